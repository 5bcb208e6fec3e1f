"""The estimated memory of declared objects, in bytes.

A client may declare hundreds of thousands of objects, each with arguments as large as a frame; and durable
objects come back at each start. So all objects together have a limit (`declared_bytes_max`); otherwise one
client could fill the memory of a node permanently. The figures are measured and rounded up: with very short
arguments, most of the memory is for the Python objects around them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

QUEUE, EXCHANGE, BINDING, CONSUMER = 3_600, 1_600, 500, 1_200
#: A node of the trie of a topic exchange, and its entry in its parent node.
WORD = 320
#: A header under which a binding is indexed.
HEADER = 250
#: A table, a field of a table, an array and an element of an array, without their contents.
_TABLE, _FIELD, _ARRAY, _ELEMENT = 230, 60, 70, 10


def of_queue(arguments: Mapping[str, object]) -> int:
    return QUEUE + 2 * _table(arguments)


def of_exchange(arguments: Mapping[str, object]) -> int:
    return EXCHANGE + 2 * _table(arguments)


def of_binding(routing_key: str, arguments: Mapping[str, object]) -> int:
    """Return the weight of a binding. It is the same for all types of exchanges: when the binding is removed,
    its exchange may be deleted already.
    """
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
