"""Deliveries of messages that mostly have a shape of their own, as bodies of many sizes make them.

The numbers of their shapes are columns, and each loop does one thing for all messages: compiled, such a loop
takes a few ns for a message. An object or a call for each message would take many times that.
"""
# ruff: noqa: B905  # Compiled code makes a loop only of a zip without `strict`.

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Final

from amqp_server.streams.layout.columns import joined, low_bytes
from amqp_server.streams.layout.stored_message import table_at
from amqp_server.wire.deliver import LARGE_BYTES, DeliverTemplate
from persistence.streams.batch import (
    COUNT_AT,
    SECOND_AT,
    SIZE_AT,
    THIRD_AT,
    Batch,
    first_column,
    shape_column,
)

#: A batch is read this way from this number of shapes on, if a shape has at most so many messages on average.
SHAPES_MIN: Final = 8
MESSAGES_MAX: Final = 8


def is_mixed(batch: Batch) -> bool:
    """Return whether most messages of the batch have a shape of their own."""
    shapes = batch.shape_count
    return shapes >= SHAPES_MIN and batch.count <= shapes * MESSAGES_MAX


class MixedItems:
    """The items of a batch, and where they are."""

    __slots__ = (
        "_firsts",
        "_frame_sizes",
        "_hard",
        "_hard_for",
        "_heads",
        "_payloads",
        "_starts",
        "_whole",
    )

    def __init__(self, batch: Batch) -> None:
        packed = batch.packed_shapes
        counts = shape_column(packed, COUNT_AT).tolist()
        #: Numbers of the first messages of the shapes, and of all messages.
        self._firsts = [0, *accumulate(counts)]
        sizes = _each(shape_column(packed, SIZE_AT).tolist(), counts)
        self._starts = [0, *accumulate(sizes)]
        self._heads = _each(first_column(packed).tolist(), counts)
        self._payloads = _each(shape_column(packed, SECOND_AT).tolist(), counts)
        self._frame_sizes = _each(shape_column(packed, THIRD_AT).tolist(), counts)
        #: Slicing bytes takes a third of the time of slicing a view.
        self._whole = bytes(batch.items)
        #: Numbers of the messages that need more work than joining, for consumers with these limits.
        self._hard: list[int] = []
        self._hard_for: tuple[bool, int, int] | None = None

    def place(self, number: int) -> tuple[int, int, int]:
        """Return the shape of a message, how many of the next messages have it, and where the item is; the
        number may be that of all messages.
        """
        firsts = self._firsts
        shape = min(bisect_right(firsts, number), len(firsts) - 1) - 1
        return shape, firsts[shape + 1] - number, self._starts[number]

    def easy(self, number: int, count: int, template: DeliverTemplate, more: int) -> int:
        """Return how many of `count` messages from this one on `put` can take; `more` is the number of bytes
        of added headers.
        """
        wanted = (template.channel == 1, template.frame_max, more)
        if self._hard_for != wanted:
            self._hard_for = wanted
            self._hard = self._find_hard(template.channel == 1, template.frame_max, more)
        at = bisect_left(self._hard, number)
        return min(count, self._hard[at] - number) if at < len(self._hard) else count

    def _find_hard(self, as_stored: bool, frame_max: int, more: int) -> list[int]:
        payload_max = frame_max - 8 - more
        found: list[int] = []
        starts, heads, payloads, frames = self._starts, self._heads, self._payloads, self._frame_sizes
        for number in range(len(heads)):
            head_bytes, payload_bytes, frame_bytes = heads[number], payloads[number], frames[number]
            size = starts[number + 1] - starts[number]
            if (
                size >= LARGE_BYTES
                or payload_bytes > payload_max
                or frame_bytes > frame_max
                # Bodies in several frames.
                or not (as_stored or size == head_bytes + payload_bytes + frame_bytes + 10)
            ):
                found.append(number)
        return found

    def put(
        self,
        number: int,
        count: int,
        fields: bytes,
        template: DeliverTemplate,
        tag: int,
        out: list[bytes | memoryview],
    ) -> None:
        """Put the deliveries of these messages into `out`; see deliver.BatchReader.take."""
        stop = number + count
        heads, starts, ends = (
            self._heads[number:stop],
            self._starts[number:stop],
            self._starts[number + 1 : stop + 1],
        )
        columns = [_prefixes(heads, template, tag), low_bytes(tag, count)]
        whole = self._whole
        if template.channel == 1 and not fields:
            columns.append([whole[start:end] for start, end in zip(starts, ends)])
        else:
            payloads = self._payloads[number:stop]
            columns += _changed(whole, heads, starts, ends, payloads, fields, template.channel)
        out.append(joined(columns, 0, count))


def _each(numbers: list[int], counts: list[int]) -> list[int]:
    """Return the number of its shape for each message."""
    if sum(counts) == len(counts):
        return numbers
    return [number for number, count in zip(numbers, counts) for _ in range(count)]


def _prefixes(heads: list[int], template: DeliverTemplate, tag: int) -> list[bytes]:
    """Return the bytes in front of the last byte of the tag for each message."""
    count, found = len(heads), list[bytes]()
    same = heads.count(heads[0]) == count
    while len(found) < count:
        done = len(found)
        part = min(256 - (tag + done & 255), count - done)
        upper = (tag + done >> 8).to_bytes(7, "big")
        if same:
            found += [template.prefix(heads[0]) + upper] * part
        else:
            own = heads[done : done + part]
            known = {head_bytes: template.prefix(head_bytes) + upper for head_bytes in own}
            found += [known[head_bytes] for head_bytes in own]
    return found


def _changed(
    whole: bytes,
    heads: list[int],
    starts: list[int],
    ends: list[int],
    payloads: list[int],
    fields: bytes,
    channel: int,
) -> list[list[bytes]]:
    """Return the parts of items that get `fields` in front of their headers, and this channel number."""
    count, more = len(heads), len(fields)
    number = channel.to_bytes(2, "big")
    #: Where the length of the content header's payload is.
    lengths = [start + head_bytes + 5 for start, head_bytes in zip(starts, heads)]
    columns = [[whole[start : length - 2] for start, length in zip(starts, lengths)], [number] * count]
    if fields:
        tables = [start + table_at(whole, head_bytes, start) for start, head_bytes in zip(starts, heads)]
        columns.append([(payload_bytes + more).to_bytes(4, "big") for payload_bytes in payloads])
        columns.append([whole[length + 4 : table] for length, table in zip(lengths, tables)])
        columns.append(
            [(int.from_bytes(whole[table : table + 4], "big") + more).to_bytes(4, "big") for table in tables]
        )
        columns.append([fields] * count)
        begins = [table + 4 for table in tables]
    else:
        begins = lengths
    if channel == 1:
        columns.append([whole[begin:end] for begin, end in zip(begins, ends)])
        return columns
    bodies = [length + payload_bytes + 5 for length, payload_bytes in zip(lengths, payloads)]
    columns.append(
        [whole[begin : body + 1 if body < end else end] for begin, body, end in zip(begins, bodies, ends)]
    )
    columns.append([number if body < end else b"" for body, end in zip(bodies, ends)])
    # Compiled code makes no slice that ends before it begins.
    columns.append([whole[body + 3 : end] if body < end else b"" for body, end in zip(bodies, ends)])
    return columns


__all__ = ["MixedItems", "is_mixed"]
