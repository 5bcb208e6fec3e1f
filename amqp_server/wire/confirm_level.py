"""The header x-confirm, by which a publisher chooses when a message is confirmed."""

from __future__ import annotations

from typing import Final

from amqp_server.wire import tables
from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY

NAME: Final = b"x-confirm"
#: The beginning of the field in a table. Its bytes may also stand in a value.
FIELD: Final = bytes((len(NAME),)) + NAME
#: What the value is if it is none of LEVELS.
UNKNOWN: Final = -1
LEVELS: Final = {b"leader": LEADER, b"all": ALL}
_LONG_STRING: Final = 0x53  # S


def of_table(data: bytes, start: int, end: int) -> int:
    """Return the level that the table in data[start:end], its length first, asks for; MAJORITY if it says
    nothing.
    """
    level = MAJORITY
    for name, at, after in tables.entries(data, start + 4, end):
        if name == NAME:
            level = LEVELS.get(data[at + 5 : after], UNKNOWN) if data[at] == _LONG_STRING else UNKNOWN
    return level
