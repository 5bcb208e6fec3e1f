"""Runs: consecutive messages that share everything but their content, and what columns have for each.

A queue of a million messages is a few hundred runs. A prefetch window, an `ack multiple` and two hundred acks
of one read are each one run. So the machine's work is per run, and the per-message work is slicing, which C
does. Messages with different deadlines, attributes or routing are one run, too: then a column has these for
each message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from operator import attrgetter
from typing import Any, Final

from quorum_queue.machine.attributes import Attributes as Attributes
from quorum_queue.machine.positions import Positions, Seqs, seqs_of

#: Longest run that merging makes: long enough that its own cost does not matter, short enough to page in and
#: out.
RUN_LENGTH_MAX: Final = 2048
#: The same in bytes: a run is paged out, and in again, as a whole.
RUN_BYTES_MAX = 1 << 20
#: A run at most this long joins a run with other heads, which then keeps one head per message.
MIXED_LENGTH_MAX: Final = 16
#: Most different attributes in one run: a byte says which a message has.
KINDS_MAX: Final = 64
#: Contents are packed in runs of at least so many, if they have at most so many bytes each on average.
PACKED_LENGTH_MIN: Final = 32
PACKED_BYTES_MAX: Final = 1024
#: The deadline, in a column, of a message that never expires.
NEVER: Final = 1 << 62


DEFAULT_ATTRIBUTES = Attributes()

_frame_bytes = attrgetter("frame_bytes")


class Run:
    """Messages with the sequence numbers `seqs`, in order.

    `contents` holds one handle for each message (content frames as they travel), or None while the bodies are
    paged out; then `sizes` holds their lengths in bytes. `head` is the routing that all share; a mixed run
    has `heads`. All have the same attributes but where `kinds` says which of `table` each has; then
    `attributes` has the largest frame of them, and what they never differ in: whether they are persistent
    and, once they are in a queue's order, their priority level. All expire at `expires_at` but where
    `deadlines` has the time of each; then none expires before `expires_at`.
    """

    __slots__ = (
        "acquired",
        "attempts",
        "attributes",
        "contents",
        "deadlines",
        "expires_at",
        "head",
        "heads",
        "kinds",
        "packed",
        "prefix",
        "ready",
        "redelivered",
        "seqs",
        "size",
        "sizes",
        "spilled",
        "table",
        "waits_until",
    )

    def __init__(
        self,
        seqs: Seqs,
        contents: list[bytes] | None,
        head: bytes,
        attributes: Attributes = DEFAULT_ATTRIBUTES,
        expires_at: int | None = None,
        size: int = -1,
    ) -> None:
        self.seqs: Seqs = seqs
        self.contents = contents
        self.sizes: array[int] | None = None
        self.head = head
        self.heads: list[bytes] | None = None
        self.attributes = attributes
        #: The attributes of each message, as places in `table`; runs that were cut from one share the table,
        #: which only grows.
        self.kinds: bytearray | None = None
        self.table: list[Attributes] | None = None
        #: Deadline in ms of the machine's time, None for never.
        self.expires_at = expires_at
        self.deadlines: array[int] | None = None
        self.redelivered = False
        #: How often each message came back because a delivery failed (counted by a delivery limit), and how
        #: often it came back at all.
        self.attempts = self.acquired = 0
        #: Bytes of all contents together.
        self.size = sum(map(len, contents)) if size < 0 and contents is not None else size
        #: All contents as one object, without the bytes that all begin with: then `sizes` has their lengths,
        #: with these bytes, and `contents` is None. See `pack`.
        self.packed: bytes | None = None
        self.prefix = b""
        #: True if it is in the queue, not with a consumer.
        self.ready = False
        #: True if all bodies are in the spill, whether they are in memory or not: no position is written
        #: there twice.
        self.spilled = False
        #: The time (ms) before which new messages are not delivered, 0 for at once; until a queue has
        #: numbered them, how long they are to wait. Clocks of nodes differ, and an entry has one time.
        self.waits_until = 0

    def __len__(self) -> int:
        return len(self.seqs)

    def __repr__(self) -> str:
        return f"Run({self.seqs!r}, {self.size} bytes, attempts={self.attempts})"

    @property
    def counted_bytes(self) -> int:
        """Bytes that a limit in bytes counts."""
        if self.kinds is None or self.table is None:
            return self.size - self.attributes.overhead * len(self.seqs)
        counted = self.size
        for kind, attributes in enumerate(self.table):
            if attributes.overhead:
                counted -= attributes.overhead * self.kinds.count(kind)
        return counted

    def _like(self, seqs: Seqs) -> Run:
        run = Run(seqs, None, self.head, self.attributes, self.expires_at, 0)
        run.redelivered = self.redelivered
        run.attempts, run.acquired = self.attempts, self.acquired
        run.spilled = self.spilled
        run.waits_until = self.waits_until
        return run

    def take(self, count: int) -> Run:
        """Cut off the first `count` messages (fewer than all) and return them."""
        if self.packed is not None:
            self.unpack()
        return self.split(count)

    def split(self, count: int) -> Run:
        """As `take`, but what is packed stays packed."""
        front = self._like(self.seqs[:count])
        self.seqs = self.seqs[count:]
        if self.heads is not None:
            front.heads = self.heads[:count]
            del self.heads[:count]
        if self.deadlines is not None:
            front.deadlines = self.deadlines[:count]
            del self.deadlines[:count]
        if self.kinds is not None:
            front.kinds, front.table = self.kinds[:count], self.table
            del self.kinds[:count]
        if self.contents is not None:
            front.contents = self.contents[:count]
            del self.contents[:count]
            front.size = sum(map(len, front.contents))
        elif self.sizes is not None:
            front.sizes = self.sizes[:count]
            del self.sizes[:count]
            front.size = sum(front.sizes)
            if self.packed is not None:
                at = front.size - len(self.prefix) * count
                front.packed, front.prefix = self.packed[:at], self.prefix
                self.packed = self.packed[at:]
        self.size -= front.size
        if count == 1:
            front._be_one()
        if len(self.seqs) == 1:
            self._be_one()
        return front

    def moved(self) -> Run:
        """Return all of it as another run, and keep no body: something may refer to this one for long."""
        run = self._like(self.seqs)
        run.heads, run.deadlines, run.kinds, run.table = self.heads, self.deadlines, self.kinds, self.table
        run.contents, run.sizes, run.size = self.contents, self.sizes, self.size
        run.packed, run.prefix = self.packed, self.prefix
        self.contents, self.packed, self.ready = None, None, False
        return run

    def _be_one(self) -> None:
        """Drop the columns of a run of one message."""
        if self.kinds is not None and self.table is not None:
            self.attributes = self.table[self.kinds[0]]
            self.kinds = self.table = None
        if self.deadlines is not None:
            self.expires_at = self.due
            self.deadlines = None

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return which messages have positions from `low` to `high`: the first of them and the one after the
        last.
        """
        if isinstance(self.seqs, Positions):
            first = self.seqs.index_of(low)
            return first, max(first, self.seqs.index_of(high + 1))
        start, step, count = self.seqs.start, self.seqs.step, len(self.seqs)
        first = min(max(0, -((start - low) // step)), count)
        return first, max(first, min(count, (high - start) // step + 1))

    def every(self, first: int, step: int) -> Run:
        """Return the messages first, first+step, … as a run of their own;
        this run is to be forgotten then.
        """
        return self._part(slice(first, None, step))

    def part(self, start: int, stop: int) -> Run:
        """Return a copy of some messages."""
        return self._part(slice(start, stop))

    def picked(self, which: list[int]) -> Run:
        """Return copies of the messages with these indexes, which ascend."""
        seqs = self.seqs
        if which[-1] - which[0] == len(which) - 1:
            return self.part(which[0], which[-1] + 1)
        run = self._like(seqs_of([seqs[index] for index in which]))
        run._take_columns(self, which)
        return run

    def where(self, flags: bytes | bytearray, *, alike: bool = False) -> Run:
        """Return copies of the messages whose byte is not zero, at least one. `alike`: they have the same
        attributes, which the caller gives them.
        """
        run = self._like(seqs_of(list(compress(self.seqs, flags))))
        if self.heads is not None:
            run.heads = list(compress(self.heads, flags))
        if self.deadlines is not None:
            run.deadlines = array("q", list(compress(self.deadlines, flags)))
        if self.kinds is not None and not alike:
            run.kinds, run.table = bytearray(compress(self.kinds, flags)), self.table
        if self.contents is not None:
            run.contents = list(compress(self.contents, flags))
            run.size = sum(map(len, run.contents))
        elif self.sizes is not None:
            run.sizes = array("I", list(compress(self.sizes, flags)))
            run.size = sum(run.sizes)
        if len(run.seqs) == 1:
            run._be_one()
        return run

    def cut(self) -> Iterator[Run]:
        """Yield the run, or copies of its parts, each with positions that are a range."""
        if not isinstance(self.seqs, Positions):
            yield self
            return
        at = 0
        for span in self.seqs.spans():
            yield self.part(at, at + len(span))
            at += len(span)

    def seen(self, start: int, stop: int) -> Run:
        """As `part`, but this run stays as it is, packed or not."""
        if self.packed is None:
            return self.part(start, stop)
        whole = self._like(self.seqs)
        whole.heads, whole.deadlines = self.heads, self.deadlines
        whole.kinds, whole.table = self.kinds, self.table
        whole.contents = self._unpacked()
        return whole.part(start, stop)

    def _part(self, which: slice) -> Run:
        if self.packed is not None:
            self.unpack()
        part = self._like(self.seqs[which])
        if self.heads is not None:
            part.heads = self.heads[which]
        if self.deadlines is not None:
            part.deadlines = self.deadlines[which]
        if self.kinds is not None:
            part.kinds, part.table = self.kinds[which], self.table
        if self.contents is not None:
            part.contents = self.contents[which]
            part.size = sum(map(len, part.contents))
        elif self.sizes is not None:
            part.sizes = self.sizes[which]
            part.size = sum(part.sizes)
        if len(part.seqs) == 1:
            part._be_one()
        return part

    def singles(self) -> list[Run]:
        """Split into runs of one message each."""
        count = len(self.seqs)
        runs = [self.every(index, count) for index in range(count)]
        for run in runs:
            run.seqs = range(run.seqs.start, run.seqs.start + 1)
        return runs

    def uniform(self) -> Iterator[Run]:
        """Yield the run, or copies of its parts, so that all messages of each have the same attributes."""
        kinds, table = self.kinds, self.table
        if kinds is None or table is None:
            yield self
            return
        for start, stop in stretches(kinds):
            part = self.part(start, stop)
            part.attributes, part.kinds, part.table = table[kinds[start]], None, None
            yield part

    def by_level(self, level_of: Callable[[int], int]) -> Iterator[Run]:
        """Yield the run, or copies of its parts, so that the priorities of each are of one level."""
        kinds, table = self.kinds, self.table
        if kinds is None or table is None:
            yield self
            return
        by_level: dict[int, list[int]] = {}
        for kind in sorted(set(kinds)):
            by_level.setdefault(level_of(table[kind].priority), []).append(kind)
        if len(by_level) == 1:
            self._narrow()
            yield self
            return
        for level in sorted(by_level):
            own = by_level[level]
            meant = bytearray(256)
            for kind in own:
                meant[kind] = 1
            part = self.where(kinds.translate(meant), alike=len(own) == 1)
            if len(own) == 1:
                part.attributes = table[own[0]]
            else:
                part._narrow()
            yield part

    def set_kinds(self, table: list[Attributes]) -> None:
        """Let messages have the attributes in this table instead of those in the same places of their own."""
        assert self.kinds is not None
        places: dict[Attributes, int] = {}
        now = [places.setdefault(attributes, len(places)) for attributes in table]
        if len(places) < len(table):
            self.kinds = self.kinds.translate(bytes(now) + bytes(256 - len(now)))
        self.table = list(places)
        self._narrow()

    def _narrow(self) -> None:
        """Let `attributes` be of the messages that are left, and drop the column if all have the same."""
        kinds, table = self.kinds, self.table
        if kinds is None or table is None:
            return
        left = [table[kind] for kind in set(kinds)]
        self.attributes = max(left, key=_frame_bytes)
        if len(left) == 1:
            self.kinds = self.table = None

    def head_of(self, index: int) -> bytes:
        """Return the routing of one message."""
        return self.head if self.heads is None else self.heads[index]

    def attributes_of(self, index: int) -> Attributes:
        """Return the attributes of one message."""
        if self.kinds is None or self.table is None:
            return self.attributes
        return self.table[self.kinds[index]]

    def due_of(self, index: int) -> int | None:
        """Return the deadline of one message, None for never."""
        if self.deadlines is None:
            return self.expires_at
        due = self.deadlines[index]
        return None if due == NEVER else due

    @property
    def due(self) -> int | None:
        """The deadline of the first message, None for never."""
        return self.due_of(0)

    def over(self, limit: int) -> int:
        """Return how many of the first messages have a deadline up to this one."""
        if self.deadlines is None:
            return len(self.seqs) if self.expires_at is not None and self.expires_at <= limit else 0
        count = 0
        for due in self.deadlines:
            if due > limit:
                break
            count += 1
        return count

    def before_over(self, limit: int) -> int:
        """Return how many messages come before the first one with a deadline up to this one."""
        if self.deadlines is None:
            return 0 if self.expires_at is not None and self.expires_at <= limit else len(self.seqs)
        least = min(self.deadlines)
        # The one that it was known by may have left.
        self.expires_at = least
        if least > limit:
            return len(self.seqs)
        count = 0
        for due in self.deadlines:
            if due <= limit:
                break
            count += 1
        return count

    def count_of_bytes(self, wanted: int) -> int:
        """Return how many of the first messages have so many counted bytes, at most all."""
        if wanted >= self.counted_bytes:
            return len(self.seqs)
        sizes = map(len, self.contents) if self.contents is not None else self.sizes or ()
        counted = 0
        for index, size in enumerate(sizes):
            counted += size - self.attributes_of(index).overhead
            if counted >= wanted:
                return index + 1
        return len(self.seqs)

    def absorb(self, later: Run, *, gaps: bool = False) -> bool:
        """Append a run that follows, if the two may be one; return whether they were joined. `gaps`: it need
        not follow directly.
        """
        mine, theirs = self.seqs, later.seqs
        if mine.stop == theirs.start and mine.step == 1 and theirs.step == 1:
            if not self._join(later):
                return False
            self.seqs = range(mine.start, theirs.stop)
            return True
        if not gaps or mine[-1] >= theirs[0] or not self._join(later):
            return False
        self.seqs = seqs_of([*mine, *theirs])
        return True

    def _join(self, later: Run) -> bool:
        """Append the columns of a run, if the two may be one; the positions are left to the caller."""
        size = self.size + later.size
        if size > RUN_BYTES_MAX or len(self.seqs) + len(later.seqs) > RUN_LENGTH_MAX:
            return False
        if self.redelivered != later.redelivered or self.waits_until != later.waits_until:
            return False
        if self.attempts != later.attempts or self.acquired != later.acquired:
            return False
        contents, more = self.contents, later.contents
        if (contents is None) is not (more is None) or self.spilled is not later.spilled:
            return False
        if contents is None and (self.packed is not None or later.packed is not None):
            return False
        if self.heads is not None or later.heads is not None or self.head != later.head:
            if len(later.seqs) > MIXED_LENGTH_MAX and self.heads is None:
                return False
            differ = True
        else:
            differ = False
        attributes, others = self.attributes, later.attributes
        if (
            self.kinds is not None
            or later.kinds is not None
            or not (attributes is others or attributes == others or self._alike(later))
        ) and not self._join_kinds(later):
            return False
        if differ:
            if self.heads is None:
                self.heads = [self.head] * len(self.seqs)
            self.heads += later.heads if later.heads is not None else [later.head] * len(later.seqs)
        if self.deadlines is not None or later.deadlines is not None or self.expires_at != later.expires_at:
            self._join_deadlines(later)
        if contents is not None and more is not None:
            contents += more
        elif self.sizes is not None and later.sizes is not None:
            self.sizes += later.sizes
        self.size = size
        if attributes is not others and others.frame_bytes > attributes.frame_bytes:
            if self.kinds is None:
                self.attributes = others
            else:
                self.attributes = attributes._replace(frame_bytes=others.frame_bytes)
        return True

    def join_all(self, others: Iterable[Run]) -> Iterator[Run]:
        """Join other runs, whose messages may lie between those of this one, as far as they may be one run;
        yield the runs that are left, this one first. Positions ascend in each.
        """
        run, numbers = self, list(self.seqs)
        for other in others:
            if run.attributes.priority == other.attributes.priority and run._join(other):
                numbers += other.seqs
                # Only how many they are is asked until they are in order.
                run.seqs = range(len(numbers))
                continue
            run._order(numbers)
            yield run
            run, numbers = other, list(other.seqs)
        run._order(numbers)
        yield run

    def _order(self, numbers: list[int]) -> None:
        """Put the messages, which have these positions, in their order."""
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        self.seqs = seqs_of([numbers[at] for at in order])
        self._take_columns(self, order)

    def _take_columns(self, source: Run, which: list[int]) -> None:
        """Take the columns of a run's messages with these indexes, in this order."""
        heads, deadlines, kinds, contents = source.heads, source.deadlines, source.kinds, source.contents
        if heads is not None:
            self.heads = [heads[index] for index in which]
        if deadlines is not None:
            self.deadlines = array("q", [deadlines[index] for index in which])
        if kinds is not None:
            self.kinds, self.table = bytearray([kinds[index] for index in which]), source.table
        if contents is not None:
            self.contents = [contents[index] for index in which]
            self.size = sum(map(len, self.contents))
        elif source.sizes is not None:
            sizes = source.sizes
            self.sizes = array("I", [sizes[index] for index in which])
            self.size = sum(self.sizes)

    def _alike(self, later: Run) -> bool:
        """Return whether the attributes differ at most in the frame size, of
        which a run keeps the largest.
        """
        return self.attributes._replace(frame_bytes=later.attributes.frame_bytes) == later.attributes

    def _join_kinds(self, later: Run) -> bool:
        """Put the kinds of messages of a run behind those of this one, if their number allows it."""
        if self.attributes.persistent is not later.attributes.persistent:
            return False
        table = self.table if self.table is not None else [self.attributes]
        places: list[int] = []
        fresh: list[Attributes] = []
        for attributes in later.table if later.table is not None else (later.attributes,):
            if attributes in table:
                places.append(table.index(attributes))
            else:
                places.append(len(table) + len(fresh))
                fresh.append(attributes)
        if len(table) + len(fresh) > KINDS_MAX:
            return False
        table += fresh
        if self.kinds is None:
            self.kinds, self.table = bytearray(len(self.seqs)), table
        if later.kinds is None:
            self.kinds += bytes((places[0],)) * len(later.seqs)
        else:
            self.kinds += later.kinds.translate(bytes(places) + bytes(256 - len(places)))
        return True

    def _join_deadlines(self, later: Run) -> None:
        if self.deadlines is None:
            self.deadlines = self._all_deadlines()
        if later.deadlines is None and len(later.seqs) == 1:
            self.deadlines.append(NEVER if later.expires_at is None else later.expires_at)
        else:
            self.deadlines += later._all_deadlines()
        mine, theirs = self.expires_at, later.expires_at
        self.expires_at = theirs if mine is None else mine if theirs is None else min(mine, theirs)

    def _all_deadlines(self) -> array[int]:
        if self.deadlines is not None:
            return self.deadlines
        return array("q", (NEVER if self.expires_at is None else self.expires_at,)) * len(self.seqs)

    def page_out(self) -> int:
        """Drop the bodies, keep their sizes; return the bytes that this freed."""
        if self.packed is not None:
            self.packed, self.prefix = None, b""
            return self.size
        if self.contents is None:
            return 0
        self.sizes = array("I", map(len, self.contents))
        self.contents = None
        return self.size

    def page_in(self, contents: list[bytes]) -> None:
        """Put the bodies back."""
        self.contents = contents
        self.sizes = None

    @property
    def in_memory(self) -> bool:
        """True if the bodies are in memory."""
        return self.contents is not None or self.packed is not None

    def pack(self) -> None:
        """Join small contents into one object: each takes 41 bytes more as one of its own, and most of them
        begin alike.
        """
        contents, count = self.contents, len(self.seqs)
        if contents is None or count < PACKED_LENGTH_MIN or self.size > PACKED_BYTES_MAX * count:
            return
        low, high = min(contents), max(contents)
        same, most = 0, min(len(low), len(high))
        while same < most and low[same] == high[same]:
            same += 1
        self.prefix = low[:same]
        self.sizes = array("I", map(len, contents))
        self.packed = b"".join([content[same:] for content in contents])
        self.contents = None

    def unpack(self) -> None:
        """Make contents of packed ones again."""
        self.contents = self._unpacked()
        self.packed, self.prefix, self.sizes = None, b"", None

    def _unpacked(self) -> list[bytes]:
        packed, prefix, sizes = self.packed, self.prefix, self.sizes
        assert packed is not None and sizes is not None
        same, at = len(prefix), 0
        contents: list[bytes] = []
        for size in sizes:
            end = at + size - same
            contents.append(prefix + packed[at:end])
            at = end
        return contents


def stretches(numbers: bytearray | array[int]) -> Iterator[tuple[int, int]]:
    """Cut numbers wherever they change; yield the first place and the one after the last."""
    start = 0
    before = -1
    for at, number in enumerate(numbers):
        if number != before and at:
            yield start, at
            start = at
        before = number
    yield start, len(numbers)


class LargeRun(Run):
    """New messages of which some large ones were prepared before; these are identified by their contents."""

    __slots__ = ("made",)

    def __init__(
        self,
        seqs: range,
        contents: list[bytes],
        head: bytes,
        attributes: Attributes,
        size: int,
        made: dict[int, Any],
    ) -> None:
        super().__init__(seqs, contents, head, attributes, None, size)
        self.made = made
