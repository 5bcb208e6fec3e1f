"""Offsets of partitions: the content of a checkpoint, the division of a limit, the cutting of ranges for
tasks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

from spark_sink.options import EARLIEST, BadOption, StartingOffsets
from spark_sink.source.offsets import BadCheckpoint

#: Offsets by the number of the partition; a range ends before its end.
Offsets = dict[int, int]
#: Offsets of one task of a batch read, unless an option says otherwise.
RANGE_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, for one task."""

    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def to_json(stream: str, offsets: Mapping[int, int]) -> dict[str, Any]:
    return {
        "stream": stream,
        "offsets": {str(partition): offsets[partition] for partition in sorted(offsets)},
    }


def from_json(offset: Mapping[str, Any], stream: str) -> Offsets:
    """Read the content of a checkpoint. Raises BadCheckpoint."""
    try:
        named = str(offset["stream"])
        offsets = {int(partition): int(value) for partition, value in offset["offsets"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadCheckpoint(
            f"the checkpoint was written by another source: {offset!r} is not an offset of a stream of "
            "format amqp"
        ) from None
    if named != stream:
        raise BadCheckpoint(
            f"the checkpoint belongs to stream '{named}', and option 'stream' says '{stream}': "
            "use a new checkpointLocation for another stream"
        )
    return offsets


def resolved(option: str, given: StartingOffsets, first: Offsets, following: Offsets) -> Offsets:
    """Return the offsets that an option means, where partitions have these first and next ones. Raises
    BadOption.
    """
    if given == "earliest":
        return dict(first)
    if given == "latest":
        return dict(following)
    assert isinstance(given, dict)
    unknown, missing = sorted(given.keys() - first.keys()), sorted(first.keys() - given.keys())
    if unknown or missing:
        what = f"names partition {unknown[0]}" if unknown else f"does not name partition {missing[0]}"
        raise BadOption(
            f"option '{option}' {what}: the partitions are {_numbers(first)}, and each has to be named"
        )
    found: Offsets = {}
    for partition, offset in given.items():
        if offset < 0:
            offset = first[partition] if offset == EARLIEST else following[partition]
        elif offset > following[partition]:
            raise BadOption(
                f"option '{option}': offset {offset} of partition {partition} is beyond its end, {following[partition]}"
            )
        found[partition] = offset
    return found


def _numbers(partitions: Mapping[int, int]) -> str:
    return "0" if len(partitions) == 1 else f"0 to {max(partitions)}"


def limited(start: Offsets, end: Offsets, most: int | None) -> Offsets:
    """Return an end with no more than `most` messages, divided in proportion to the partitions' messages."""
    due = {partition: end[partition] - start[partition] for partition in end}
    total = sum(due.values())
    if most is None or total <= most:
        return dict(end)
    shares = {partition: most * count // total for partition, count in due.items()}
    # The remainder of the rounding goes to the partitions that lost most by it, so that something is read
    # whenever there is something.
    left = most - sum(shares.values())
    for partition in sorted(due, key=lambda each: (-(most * due[each] % total), each))[:left]:
        shares[partition] += 1
    return {partition: start[partition] + share for partition, share in shares.items()}


def cut(start: Offsets, end: Offsets, least: int | None, longest: int | None = None) -> list[Range]:
    """Return the ranges of the tasks: a partition each, or parts of like size if `least` or `longest` ask for
    more.
    """
    whole = [Range(partition, start[partition], end[partition]) for partition in sorted(end)]
    whole = [each for each in whole if len(each) > 0]
    counts = [1 if longest is None else -(-len(each) // longest) for each in whole]
    due = min(least or 0, sum(map(len, whole))) - sum(counts)
    # Each time, cut the range with the longest parts once more.
    longer = [
        (-len(each) / count, index) for index, (each, count) in enumerate(zip(whole, counts, strict=True))
    ]
    heapify(longer)
    for _ in range(due):
        _, index = longer[0]
        counts[index] += 1
        heapreplace(longer, (-len(whole[index]) / counts[index], index))
    return [part for each, count in zip(whole, counts, strict=True) for part in _parts(each, count)]


def _parts(whole: Range, count: int) -> Sequence[Range]:
    edges = [whole.start + len(whole) * number // count for number in range(count + 1)]
    return [Range(whole.partition, low, high) for low, high in zip(edges, edges[1:], strict=False)]
