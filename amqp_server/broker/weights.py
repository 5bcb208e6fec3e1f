"""What declared things take up in memory, estimated in bytes.

A client may declare hundreds of thousands of them, with as much in the arguments of each as a frame takes;
and a durable one comes back at each start. So all together are bounded (`declared_bytes_max`), or one client
could fill the memory of a node for good. The figures are measured ones, rounded up: with very short arguments
the objects around them are most of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

QUEUE, EXCHANGE, BINDING, CONSUMER = 3_600, 1_600, 500, 1_200
#: A node of the trie of a topic exchange, and its place in the one above it.
WORD = 320
#: A header that a binding is filed under.
HEADER = 250
#: A table, a field of one, an array and an element of one, beside what is in them.
_TABLE, _FIELD, _ARRAY, _ELEMENT = 230, 60, 70, 10


def of_queue(arguments: Mapping[str, object]) -> int:
    return QUEUE + 2 * _table(arguments)


def of_exchange(arguments: Mapping[str, object]) -> int:
    return EXCHANGE + 2 * _table(arguments)


def of_binding(routing_key: str, arguments: Mapping[str, object]) -> int:
    """The same for all types of exchanges: when it goes, its exchange may have gone."""
    weight = BINDING + sys.getsizeof(routing_key) + WORD * (routing_key.count(".") + 1)
    return weight + (HEADER * len(arguments) + 2 * _table(arguments) if arguments else 0)


def of_consumer(arguments: Mapping[str, object]) -> int:
    return CONSUMER + _table(arguments)


def _table(table: Mapping[str, object]) -> int:
    return (
        sum([_FIELD + sys.getsizeof(name) + _value(value) for name, value in table.items()]) if table else 0
    )


def _value(value: object) -> int:
    if isinstance(value, Mapping):
        return _TABLE + _table(value)
    if isinstance(value, list):
        return _ARRAY + sum([_ELEMENT + _value(each) for each in value])
    return sys.getsizeof(value)
