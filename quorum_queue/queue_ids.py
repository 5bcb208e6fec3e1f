"""Ids of queues, which are those of their groups.

An id is the index of the operation that declared the queue. One operation can create very many queues, the
partitions of a super stream: the id of such a queue consists of that index, its position in the operation,
and a bit that no index has.
"""

from __future__ import annotations

from typing import Final

_PARTITION: Final = 1 << 61
_PLACE_BITS: Final = 14
#: Maximum number of partitions of one operation.
PLACES_MAX: Final = 1 << 14


def partition_id(index: int, place: int) -> int:
    """Return the id of a partition, which is as unique as the index of its operation."""
    return _PARTITION | index << _PLACE_BITS | place


def is_partition(queue_id: int) -> bool:
    """Return whether the queue is one of several that one operation has created."""
    return bool(queue_id & _PARTITION)


def index_of(queue_id: int) -> int:
    """Return the index of the operation that made the queue with this id."""
    return (queue_id & ~_PARTITION) >> _PLACE_BITS if queue_id & _PARTITION else queue_id


__all__ = ["PLACES_MAX", "index_of", "is_partition", "partition_id"]
