"""The header x-confirm, with which a publisher chooses when a message is confirmed."""

from __future__ import annotations

from typing import Final

from amqp_server.wire import tables
from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY

NAME: Final = b"x-confirm"
#: The beginning of the field in a table. The same bytes may also be part of a value.
FIELD: Final = bytes((len(NAME),)) + NAME
#: Stands for a value that is none of LEVELS.
UNKNOWN: Final = -1
LEVELS: Final = {b"leader": LEADER, b"all": ALL}
_LONG_STRING: Final = 0x53  # S


def of_table(data: bytes, start: int, end: int) -> int:
    """Return the level that the table in data[start:end], which begins with its length, asks for; MAJORITY if
    it has no such field.
    """
    level = MAJORITY
    for name, at, after in tables.entries(data, start + 4, end):
        if name == NAME:
            level = LEVELS.get(data[at + 5 : after], UNKNOWN) if data[at] == _LONG_STRING else UNKNOWN
    return level
