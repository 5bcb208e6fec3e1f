"""The progress of a group in one partition of a stream.

Offsets below `cursor` were delivered once. Some of these are with a member, some were returned and come next,
and some have died and are on their way to the dead letters. All others were acked. The committed offset is
below all of those, so it follows from them, and acks behind a gap are known as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from quorum_queue.consumer_groups.group import Member

#: The cursor of a partition whose first offset is still being looked up.
UNKNOWN = -1
#: End of the undelivered messages.
ENDLESS = 1 << 62
#: Objects that are freed in one step.
LET_GO_MAX = 4_096
#: Spans that are rather added or removed together.
_MANY = 16
#: Spans are encoded by blocks, each with the spans that begin in 2**BLOCK_BITS offsets.
BLOCK_BITS: Final = 9


class Span(NamedTuple):
    """Messages with the offsets from `low` up to `stop`, which were delivered and returned so many times."""

    low: int
    stop: int
    attempts: int


class Spans:
    """Disjoint spans in order."""

    __slots__ = ("_encoded", "_lows", "_spans", "count")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._spans: list[Span] = []
        #: The encoded blocks that have not changed since, by their numbers.
        self._encoded: dict[int, bytes] = {}
        #: Number of offsets in all spans.
        self.count = 0

    def __len__(self) -> int:
        return len(self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def first(self) -> Span:
        return self._spans[0]

    def all(self) -> list[Span]:
        return list(self._spans)

    def extend(self, spans: list[Span]) -> None:
        """Add the next ones of the spans that `all` returned."""
        rising = all(span.stop <= after.low for span, after in pairwise(self._spans[-1:] + spans))
        if not rising or any(span.low >= span.stop for span in spans):
            raise ValueError("spans are not in order")
        if spans:
            self._changed(spans[0].low, spans[-1].low)
        self._spans += spans
        self._lows += [span.low for span in spans]
        self.count += sum([span.stop - span.low for span in spans])

    def add(self, span: Span) -> None:
        """Add offsets that are in none of them."""
        low, stop, attempts = span
        spans, lows = self._spans, self._lows
        place = len(lows) if not lows or lows[-1] < low else bisect_left(lows, low)
        self.count += stop - low
        if place and spans[place - 1].stop == low and spans[place - 1].attempts == attempts:
            place -= 1
            low = spans[place].low
            del spans[place], lows[place]
        if place < len(spans) and spans[place].low == stop and spans[place].attempts == attempts:
            stop = spans[place].stop
            del spans[place], lows[place]
        spans.insert(place, Span(low, stop, attempts))
        lows.insert(place, low)
        self._changed(low, stop)

    def take(self, low: int, stop: int) -> list[Span]:
        """Remove the offsets from `low` up to `stop`, as far as they are there, and return them."""
        spans, lows = self._spans, self._lows
        start = max(bisect_right(lows, low) - 1, 0)
        if start < len(spans) and spans[start].stop <= low:
            start += 1
        end = start
        taken: list[Span] = []
        left: list[Span] = []
        while end < len(spans) and spans[end].low < stop:
            span = spans[end]
            end += 1
            if span.low < low:
                left.append(Span(span.low, low, span.attempts))
            if span.stop > stop:
                left.append(Span(stop, span.stop, span.attempts))
            taken.append(Span(max(span.low, low), min(span.stop, stop), span.attempts))
        if taken:
            self._changed(lows[start], stop)
            spans[start:end] = left
            lows[start:end] = [span.low for span in left]
            self.count -= sum([span.stop - span.low for span in taken])
        return taken

    def add_all(self, added: list[Span]) -> None:
        """Add spans one by one, in an order that does not matter: they are disjoint."""
        if len(added) < _MANY:
            for span in added:
                self.add(span)
            return
        added.sort()
        lows = self._lows
        # Neighbours may merge with them.
        start = max(bisect_left(lows, added[0].low) - 1, 0)
        end = bisect_left(lows, added[-1].stop) + 1
        if self._are_few(len(added), end - start):
            for span in added:
                self.add(span)
            return
        found = self._spans[start:end] + added
        found.sort()
        merged: list[Span] = []
        last = found[0]
        for span in found[1:]:
            if span.low == last.stop and span.attempts == last.attempts:
                last = Span(last.low, span.stop, last.attempts)
            else:
                merged.append(last)
                last = span
        merged.append(last)
        self._changed(merged[0].low, added[-1].stop)
        self._spans[start:end] = merged
        lows[start:end] = [span.low for span in merged]
        self.count += sum([span.stop - span.low for span in added])

    def remove_all(self, gone: list[tuple[int, int]]) -> None:
        """Remove offsets from one up to another, as far as they are there. These ranges are disjoint."""
        gone.sort()
        lows = self._lows
        start = max(bisect_right(lows, gone[0][0]) - 1, 0)
        end = bisect_left(lows, gone[-1][1])
        if self._are_few(len(gone), end - start):
            for low, stop in gone:
                self.take(low, stop)
            return
        before = self._spans[start:end]
        if before:
            self._changed(before[0].low, gone[-1][1])
        left: list[Span] = []
        place, last = 0, len(gone)
        for span in before:
            low, stop, attempts = span
            while place < last and gone[place][1] <= low:
                place += 1
            at = place
            while low < stop and at < last and gone[at][0] < stop:
                if low < gone[at][0]:
                    left.append(Span(low, gone[at][0], attempts))
                low = gone[at][1]
                at += 1
            if low == span.low:
                left.append(span)
            elif low < stop:
                left.append(Span(low, stop, attempts))
        self.count += sum([span.stop - span.low for span in left])
        self.count -= sum([span.stop - span.low for span in before])
        self._spans[start:end] = left
        lows[start:end] = [span.low for span in left]

    def _are_few(self, changes: int, others: int) -> bool:
        """Return whether changes one by one take less time than to go through all spans between them. Each of
        them moves, on average, half of the lists.
        """
        return changes < _MANY or others > changes * (8 + (len(self._lows) >> 10))

    def count_from(self, offset: int) -> int:
        """Return the number of these offsets that are not before the given one."""
        spans = self._spans
        if not spans or spans[0].low >= offset:
            return self.count
        start = bisect_right(self._lows, offset) - 1
        first = max(spans[start].stop - offset, 0)
        return first + sum([span.stop - span.low for span in spans[start + 1 :]])

    def let_go(self) -> Iterator[None]:
        """Clear it in steps: each span is an object that has to be freed."""
        self._encoded = {}
        while self._spans:
            del self._spans[-LET_GO_MAX:], self._lows[-LET_GO_MAX:]
            yield
        self.count = 0

    def clear(self) -> None:
        self._lows, self._spans, self._encoded, self.count = [], [], {}, 0

    # -- as bytes --------------------------------------------------------------------------------------------

    def encoded(self, encode: Callable[[list[Span]], bytes]) -> list[bytes]:
        """Return the spans in order as bytes: what `encode`, which is always the same function, returns for
        each block of them. Blocks that have not changed since the last call are not encoded again: a group
        stores its position each time that something was acked, and there may be thousands of spans.
        """
        found: list[bytes] = []
        known, lows, at = self._encoded, self._lows, 0
        while at < len(lows):
            number = lows[at] >> BLOCK_BITS
            end = bisect_left(lows, (number + 1) << BLOCK_BITS, at)
            block = known.get(number)
            if block is None:
                block = known[number] = encode(self._spans[at:end])
            found.append(block)
            at = end
        return found

    def _changed(self, low: int, stop: int) -> None:
        """Spans that begin at offsets from `low` up to and including `stop` have changed, come or gone."""
        known = self._encoded
        if not known:
            return
        first, last = low >> BLOCK_BITS, stop >> BLOCK_BITS
        if last - first >= len(known):
            for number in [number for number in known if first <= number <= last]:
                del known[number]
        else:
            for number in range(first, last + 1):
                known.pop(number, None)


class Partition:
    """One partition of a group. Its stream has an id, which changes if the stream is deleted and declared
    again.
    """

    __slots__ = (
        "cursor",
        "dying",
        "generation",
        "held",
        "holder",
        "name",
        "number",
        "owner",
        "returned",
        "stream_id",
    )

    def __init__(self, stream_id: int, name: str, number: int) -> None:
        self.stream_id = stream_id
        #: Name of its stream.
        self.name = name
        #: Key under which it is stored.
        self.number = number
        #: The offset of the first message that was never delivered.
        self.cursor = UNKNOWN
        self.held = Spans()
        self.returned = Spans()
        self.dying = Spans()
        #: Its owner, and the member that holds messages of it. These differ until a former owner has settled
        #: its messages; only then the new owner gets any.
        self.owner: Member | None = None
        self.holder: Member | None = None
        #: The group's count of assignments when the active member last changed.
        self.generation = 0

    @property
    def committed(self) -> int:
        """Everything before this offset is done."""
        found = self.cursor
        for spans in (self.held, self.returned, self.dying):
            if spans and spans.first.low < found:
                found = spans.first.low
        return found

    @property
    def wanted(self) -> int:
        """The offset to read next."""
        return self.returned.first.low if self.returned else self.cursor

    @property
    def span_count(self) -> int:
        return len(self.held) + len(self.returned) + len(self.dying)

    def is_full(self, most: int) -> bool:
        """True if it has more spans than this, so that nothing new is handed out until some are settled.
        Returned messages come first: nobody can settle them before they are handed out again.
        """
        return not self.returned and self.span_count > most

    def active(self) -> Member | None:
        """Return the member that may get messages now."""
        return self.owner if self.owner is not None and self.is_open_to(self.owner) else None

    def is_open_to(self, member: Member) -> bool:
        """True if this member may get messages: no other member holds any, and no other one owns the
        partition.
        """
        for other in (self.owner, self.holder):
            if other is not None and other.channel != member.channel:
                return False
        return True

    def passed(self, low: int, stop: int) -> bool:
        """Skip the offsets from `low` up to `stop`: no messages with them exist any more. Return whether some
        were to be read.
        """
        gone = self.returned.take(low, stop) if self.returned else []
        if low <= self.cursor < stop:
            self.cursor = stop
            return True
        return bool(gone)

    def upcoming(self) -> Span:
        """Return the span to deliver next."""
        return self.returned.first if self.returned else Span(self.cursor, ENDLESS, 0)

    def take_out(self, low: int, stop: int) -> None:
        """Remove offsets that are delivered now."""
        self.returned.take(low, stop)
        self.cursor = max(self.cursor, stop)

    def move(self, offset: int) -> None:
        """Continue at this offset, as if everything before were acked and nothing after it were ever
        delivered.
        """
        self.cursor = offset
        self.returned.clear()
        self.dying.clear()

    def unread(self, first: int, stop: int) -> int:
        """Return the number of undelivered messages of a stream with these offsets."""
        if self.cursor < 0:
            return 0
        # Retention may have deleted messages that were returned.
        return max(stop - max(self.cursor, first), 0) + self.returned.count_from(first)

    def pending(self) -> list[Span]:
        """Return the delivered offsets that are not settled, in order."""
        return sorted([span for spans in (self.held, self.returned, self.dying) for span in spans.all()])

    def encoded_pending(self, encode: Callable[[list[Span]], bytes]) -> list[bytes]:
        """Return the same as bytes, in any order; see Spans.encoded."""
        return [block for spans in (self.held, self.returned, self.dying) for block in spans.encoded(encode)]


__all__ = ["ENDLESS", "LET_GO_MAX", "UNKNOWN", "Partition", "Span", "Spans"]
