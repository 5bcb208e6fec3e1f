"""Offsets of partitions: the content of a checkpoint, the division of a limit, the cutting of ranges for
tasks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

from spark_sink import option_values
from spark_sink.option_values import EARLIEST, BadOption, ByPartition, nearest
from spark_sink.source.offsets import BadCheckpoint


class Partition(NamedTuple):
    """A partition of a stream; a single stream is one partition, number 0."""

    stream: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of stream '{self.stream}'"


#: The key of the offsets at which a query began, in the offset at which its first micro-batch ends: no stream
#: has this name.
BEGAN = ""

#: A range ends before its end.
Offsets = dict[Partition, int]
#: Offsets of one task of a batch read, unless an option says otherwise.
RANGE_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, for one task."""

    partition: Partition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[Partition, int], began: Mapping[Partition, int] | None = None) -> dict[str, Any]:
    """Return offsets as the Kafka source has them, by the stream's name and the partition's number; and where
    the query began if this is the end of its first micro-batch.
    """
    by_stream: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        by_stream.setdefault(partition.stream, {})[str(partition.number)] = offsets[partition]
    return by_stream if began is None else by_stream | {BEGAN: to_json(began)}


def from_json(offset: Mapping[str, Any]) -> Offsets:
    """Read the content of a checkpoint. Raises BadCheckpoint."""
    try:
        return {
            Partition(stream, int(number)): int(value)
            for stream, numbers in offset.items()
            if stream != BEGAN
            for number, value in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise BadCheckpoint(
            f"the checkpoint was written by another source: {offset!r} is not an offset of a stream of "
            "format amqp"
        ) from None


def began_at(offset: Mapping[str, Any]) -> Offsets | None:
    """Return where the query began if its first micro-batch ends at this offset. Raises BadCheckpoint."""
    return from_json(offset[BEGAN]) if BEGAN in offset else None


def resolved(option: str, given: option_values.Offsets, first: Offsets, following: Offsets) -> Offsets:
    """Return the offsets that an option means, where partitions have these first and next ones. Raises
    BadOption.
    """
    if given == "earliest":
        return dict(first)
    if given == "latest":
        return dict(following)
    assert isinstance(given, dict)
    found: Offsets = {}
    for partition, offset in of_all(option, given, first).items():
        if offset < 0:
            offset = first[partition] if offset == EARLIEST else following[partition]
        elif offset > following[partition]:
            raise BadOption(
                f"option '{option}': offset {offset} of {partition} is beyond its end, {following[partition]}"
            )
        found[partition] = offset
    return found


def of_all(option: str, given: ByPartition, known: Mapping[Partition, object]) -> dict[Partition, int]:
    """Return what JSON says for each partition. Raises BadOption unless it names all partitions, and no
    others.
    """
    streams = sorted({partition.stream for partition in known})
    if "" in given and len(streams) == 1:
        given = {streams[0]: given[""]}
    if unknown_names := sorted(given.keys() - set(streams)):
        name = unknown_names[0]
        raise BadOption(f"option '{option}' names stream '{name}', which is not read{nearest(name, streams)}")
    named = {
        Partition(stream, number): value
        for stream, numbers in given.items()
        for number, value in numbers.items()
    }
    unknown, missing = sorted(named.keys() - known.keys()), sorted(known.keys() - named.keys())
    if unknown or missing:
        what = f"names {unknown[0]}" if unknown else f"does not name {missing[0]}"
        numbers = _numbers([each.number for each in known if each.stream == (unknown or missing)[0].stream])
        raise BadOption(f"option '{option}' {what}: the partitions are {numbers}, and each has to be named")
    return named


def _numbers(partitions: Sequence[int]) -> str:
    low, high = min(partitions), max(partitions)
    if high - low + 1 != len(partitions):
        return ", ".join(map(str, sorted(partitions)))
    return str(low) if low == high else f"{low} to {high}"


def available(start: Offsets, end: Offsets) -> int:
    return sum(end[partition] - start[partition] for partition in end)


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
    whole = [each for each in whole if each.start < each.end]
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
