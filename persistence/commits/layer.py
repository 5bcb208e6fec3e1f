"""Submissions that are not durable yet.

Layers wait for the running commit: the oldest may be in a transaction, the newest takes new submissions. A
layer is one transaction, so it is closed when it is large, but only between turns: after a crash the
submissions of one turn, such as a dead letter or all of a tx, exist completely or not at all. A done() waits
for the layer that was open when it was given.

A layer in the write-ahead log is durable, and stays here until LMDB has it. Later layers that reach the log
are merged into it. In this order there are here: the layer in the transaction that runs, the one that only
the log has, those that wait or are being written to the log, and the open one. Each of the first two may be
absent. A layer is called durable only after all before it.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final

from persistence import settled
from persistence.record import Payload, size_of
from persistence.replica_logs.changes import GroupChanges

# A layer of this size is large.
LAYER_BYTES_MAX: Final = 32 * 1024 * 1024
LAYER_APPENDS_MAX: Final = 50_000

# A synced transaction costs about this much beside its bytes, so that many small things count, too.
ENTRY_BYTES: Final = 64

#: Fewer settled records than this are kept: removing some of them moves all later ones in the list.
FORGET_MIN: Final = 16

Append = tuple[int, int, Payload, int]  # first_seq, count, payload, parts of it that are its head
SpanNote = tuple[int, int, bytes]  # first_seq, the one after the last, note
_FIRST: Final = itemgetter(0)
#: A message that came alone: its queue and its sequence number.
Lone = tuple[int, int]


class QueueChanges:
    """Changes of one queue within one layer."""

    __slots__ = (
        "annotations",
        "appends",
        "dropped",
        "forgotten",
        "ordered",
        "span_notes",
        "starts",
        "state",
        "stops",
    )

    def __init__(self) -> None:
        self.clear()
        self.dropped = False  # the queue was dropped, before all other changes here

    def clear(self) -> None:
        self.ordered = True  # true if the appends are in the order of their sequence numbers
        self.appends: list[Append] = []
        self.starts: list[int] = []  # settled intervals, in order of arrival; the last one grows
        self.stops: list[int] = []
        #: Spans of removed records; no other record lies within them.
        self.forgotten: list[tuple[int, int]] = []
        #: Notes about messages one by one, which count more than those about several in a row.
        self.annotations: dict[int, bytes] = {}
        #: Notes about several messages in a row (first, the one after the last, note). A later one counts
        #: more than an earlier one.
        self.span_notes: list[SpanNote] = []
        self.state: bytes | None = None

    def append(self, append: Append) -> None:
        if self.appends and self.appends[-1][0] > append[0]:
            self.ordered = False
        self.appends.append(append)

    def in_order(self) -> list[Append]:
        if not self.ordered:
            self.appends.sort(key=_FIRST)
            self.ordered = True
        return self.appends

    def is_empty(self) -> bool:
        return not (self.appends or self.starts or self.dropped or self.writes_notes) and self.state is None

    @property
    def writes_notes(self) -> bool:
        return bool(self.annotations or self.span_notes)

    def annotate(self, start: int, stop: int, note: bytes) -> None:
        """Replace the notes about these messages."""
        annotations, spans = self.annotations, self.span_notes
        if stop - start == 1:
            annotations[start] = note
            return
        if annotations:
            few = annotations if len(annotations) < stop - start else range(start, stop)
            for seq in [seq for seq in few if start <= seq < stop]:
                annotations.pop(seq, None)
        if spans and spans[-1][1] == start and spans[-1][2] == note:
            spans[-1] = spans[-1][0], stop, note
        else:
            spans.append((start, stop, note))

    def has_note(self, seq: int) -> bool:
        return seq in self.annotations or any(start <= seq < stop for start, stop, _ in self.span_notes)

    def drop(self) -> None:
        self.clear()
        self.dropped = True

    def settle(self, seqs: range) -> None:
        if seqs.step == 1:
            # Acks in order, by far the most common, only move the end of the last interval.
            if self.stops and self.stops[-1] == seqs.start:
                self.stops[-1] = seqs.stop
            else:
                self.starts.append(seqs.start)
                self.stops.append(seqs.stop)
            return
        for seq in seqs:
            self.starts.append(seq)
            self.stops.append(seq + 1)

    def settle_scattered(self, seqs: list[int]) -> None:
        """Settle messages that are no range, in order."""
        starts, stops = self.starts, self.stops
        stop = -1
        for seq in seqs:
            if seq == stop:
                stops[-1] = stop = seq + 1
            else:
                starts.append(seq)
                stop = seq + 1
                stops.append(stop)

    def merge_settled(self) -> None:
        """Join settled intervals that touch: of messages that were acked in another order than they came,
        few are left.
        """
        self.starts, self.stops = settled.merge(self.starts, self.stops)

    def unsettled(self) -> Iterator[Payload]:
        """The payloads of the records that are not completely settled."""
        starts, stops = settled.merge(self.starts, self.stops)
        for first_seq, count, payload, _ in self.appends:
            if settled.mask_of(first_seq, count, starts, stops) != settled.whole(count):
                yield payload

    def absorb(self, later: "QueueChanges") -> None:
        if later.dropped:
            self.drop()
        if later.starts and len(self.appends) >= FORGET_MIN:
            self._forget(later.starts, later.stops)
        self.forgotten += later.forgotten
        for append in later.appends:
            self.append(append)
        self.starts += later.starts
        self.stops += later.stops
        for start, stop, note in later.span_notes:
            self.annotate(start, stop, note)
        self.annotations.update(later.annotations)
        if later.state is not None:
            self.state = later.state

    def _forget(self, starts: list[int], stops: list[int]) -> None:
        """Remove records that are completely settled: they are never written.

        All records of a stream are settled when its segments have them, and a transaction that passed over a
        second's worth of them would keep commits waiting for milliseconds.
        """
        appends = self.in_order()
        for start, stop in zip(starts, stops, strict=True):
            if stop - start < FORGET_MIN:
                continue
            low = bisect_left(appends, start, key=_FIRST)
            high = bisect_left(appends, stop, low, key=_FIRST)
            if high > low and appends[high - 1][0] + appends[high - 1][1] > stop:
                high -= 1
            if high - low < FORGET_MIN:
                continue
            for first, count, _, _ in appends[low:high]:
                if self.forgotten and self.forgotten[-1][1] == first:
                    self.forgotten[-1] = (self.forgotten[-1][0], first + count)
                else:
                    self.forgotten.append((first, first + count))
            del appends[low:high]


class Layer:
    __slots__ = (
        "alone",
        "appended",
        "bytes",
        "done",
        "durable",
        "groups",
        "metadata",
        "queues",
        "sequence",
        "to_store",
    )

    def __init__(self) -> None:
        self.queues: dict[int, QueueChanges] = {}
        self.groups: dict[int, GroupChanges] = {}
        self.metadata: dict[
            bytes, tuple[str, bytes | None]
        ] = {}  # stored key → key, value or None if deleted
        self.done: list[Callable[[], None]] = []
        #: The same for messages that came alone: removed again if they are acked before anything is written.
        self.alone: dict[Lone, Callable[[], None]] = {}
        #: Appended bytes that are not durable yet.
        self.bytes = 0
        self.appended = 0
        #: Its last record in the write-ahead log, or 0.
        self.sequence = 0
        #: True if it must be in the store before it is called durable.
        self.to_store = False
        #: True if the write-ahead log has all of it.
        self.durable = False

    def __bool__(self) -> bool:
        return bool(self.queues or self.groups or self.metadata)

    def changes(self, queue_id: int) -> QueueChanges:
        changes = self.queues.get(queue_id)
        if changes is None:
            changes = self.queues[queue_id] = QueueChanges()
        return changes

    def group(self, group: int) -> GroupChanges:
        changes = self.groups.get(group)
        if changes is None:
            changes = self.groups[group] = GroupChanges()
        return changes

    def when_durable(self, done: Callable[[], None], alone: Lone | None = None) -> None:
        """Call `done` when the layer is durable, unless its message `alone` is withdrawn before."""
        if alone is not None:
            self.alone[alone] = done
        else:
            self.done.append(done)

    def told(self) -> list[Callable[[], None]]:
        """All callbacks for its durability."""
        return [*self.done, *self.alone.values()] if self.alone else self.done

    def only_erases(self) -> bool:
        """Return whether this layer only settles and drops."""
        return (
            not self.metadata
            and all(changes.only_erases() for changes in self.groups.values())
            and not any(
                changes.appends or changes.writes_notes or changes.state is not None
                for changes in self.queues.values()
            )
        )

    def lasting(self) -> tuple[int, int]:
        """The appended bytes that this layer brings to the disk, and in how many pieces: what it has settled
        itself is never written, and `bytes` counts it all the same.
        """
        sizes = [size_of(payload) for changes in self.queues.values() for payload in changes.unsettled()]
        for changes in self.groups.values():
            sizes += [len(entry[3]) for entry in changes.entries.values()]
            if changes.snapshot is not None:
                sizes.append(size_of(changes.snapshot[2]))
        return sum(sizes) + ENTRY_BYTES * len(sizes), len(sizes)

    def absorb(self, later: "Layer") -> None:
        for queue_id, changes in later.queues.items():
            self.changes(queue_id).absorb(changes)
        for group, group_changes in later.groups.items():
            self.group(group).absorb(group_changes)
        self.metadata.update(later.metadata)
        self.done += later.done
        self.alone |= later.alone
        self.bytes += later.bytes
        self.appended += later.appended
        self.sequence = max(self.sequence, later.sequence)
        self.to_store = self.to_store or later.to_store


class Pending:
    """The layers of one store, oldest first. One is always open."""

    def __init__(self) -> None:
        self.open = Layer()
        self.layers: deque[Layer] = deque([self.open])
        #: The oldest layer, if it is in the transaction that runs.
        self.storing: Layer | None = None
        #: The layer after it, or the oldest, if only the write-ahead log has it.
        self.logged: Layer | None = None
        self.bytes = 0
        #: True if the open layer must not be closed yet; see persistence.commits.holds.
        self.held = False

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def count(self, size: int) -> None:
        """The open layer grew by an append of this size."""
        layer = self.open
        size += ENTRY_BYTES
        self.bytes += size
        layer.bytes += size
        layer.appended += 1

    def withdraw(self, queue_id: int, seq: int) -> bool:
        """Withdraw the queue's last append, if it is this message, which came alone, and is still in the open
        layer.
        """
        layer = self.open
        changes = layer.queues.get(queue_id)
        if changes is None or (queue_id, seq) not in layer.alone or not changes.appends:
            return False
        first, count, payload, _ = changes.appends[-1]
        if first != seq or count != 1 or changes.has_note(seq):
            return False
        changes.appends.pop()
        if changes.is_empty():
            del layer.queues[queue_id]
        del layer.alone[queue_id, seq]
        size = ENTRY_BYTES + size_of(payload)
        self.bytes -= size
        layer.bytes -= size
        layer.appended -= 1
        return True

    @property
    def is_large(self) -> bool:
        """Return whether the open layer must be closed after this turn."""
        return self.open.bytes >= LAYER_BYTES_MAX or self.open.appended >= LAYER_APPENDS_MAX

    @property
    def is_held_back(self) -> bool:
        """True if only the open layer waits, and must not be closed yet."""
        return self.held and self.oldest is self.open

    def close_layer(self) -> None:
        """Later submissions go into a transaction of their own. Between turns only."""
        if self.open and not self.held:
            self.open = Layer()
            self.layers.append(self.open)

    @property
    def oldest(self) -> Layer:
        """The oldest layer that is neither durable nor in the transaction that runs."""
        return self.layers[self._before]

    @property
    def _before(self) -> int:
        """The number of layers before it."""
        return (0 if self.storing is None else 1) + (0 if self.logged is None else 1)

    @property
    def waiting(self) -> int:
        """Closed layers from the oldest one on."""
        return len(self.layers) - 1 - self._before

    @property
    def is_behind(self) -> bool:
        """True if the store lacks something that was submitted before the oldest layer."""
        return self.storing is not None or self.logged is not None

    @property
    def unsynced(self) -> bool:
        """True if anything submitted is not durable yet."""
        return (
            bool(self.open)
            or self.oldest is not self.open
            or (self.storing is not None and not self.storing.durable)
        )

    def take(self) -> Layer:
        """The oldest layer, closed. It stays here, to be read from. Between turns only."""
        assert not self.is_held_back
        layer = self.oldest
        if layer is self.open:
            self.open = Layer()
            self.layers.append(self.open)
        return layer

    def take_for_store(self, *, oldest: bool) -> Layer:
        """What goes into the next transaction, closed: the layer that only the log has, and with `oldest` the
        one after it. It stays here until `remove`. Between turns only.
        """
        assert self.storing is None
        logged = self.logged
        layer: Layer | None = self.take() if oldest else None
        self.logged = None
        if logged is None and layer is None:
            # To continue deletions.
            logged = Layer()
            logged.durable = True
            self.layers.appendleft(logged)
        elif logged is not None and layer is not None:
            logged.absorb(layer)
            logged.durable = False
            del self.layers[1]
        self.storing = logged if logged is not None else layer
        assert self.storing is not None
        return self.storing

    def note_logged(self, layer: Layer) -> None:
        """The write-ahead log has the oldest layer."""
        at = self._before
        assert layer is self.layers[at] and layer is not self.open
        self.bytes -= layer.bytes
        layer.bytes = layer.appended = 0
        layer.done, layer.alone = [], {}
        layer.durable = True
        if self.logged is None:
            self.logged = layer
        else:
            self.logged.absorb(layer)
            del self.layers[at]

    def remove(self, layer: Layer) -> None:
        """The store has the layer that was in the transaction."""
        assert layer is self.storing and layer is self.layers[0]
        self.layers.popleft()
        self.storing = None
        self.bytes -= layer.bytes

    def give_back(self) -> None:
        """The transaction was undone."""
        layer, self.storing = self.storing, None
        assert layer is not None
        if not layer.durable:
            return
        if self.logged is not None:
            layer.absorb(self.logged)
            del self.layers[1]
        self.logged = layer

    def behind(self) -> list[Layer]:
        """All submissions after the layer in the transaction, in closed layers. Between turns only."""
        self.close_layer()
        return [layer for layer in self.layers if layer is not self.storing and layer is not self.open]

    def erasures(self, behind: list[Layer], durable_snapshot: Callable[[int], int]) -> Layer:
        """The erasures of these layers, the next ones after the first, that may be committed ahead of it.

        For a Raft group these are only entries at and below the snapshot on disk (`durable_snapshot`). An
        entry above it belongs to the log on disk, even if a snapshot that waits in the oldest layer covers
        it. Votes, snapshots and whole groups go in their order. If an older layer drops the group, its number
        may be used again, and the indexes mean nothing.
        """
        erasing = Layer()
        renewed = {group for group, changes in self.layers[0].groups.items() if changes.dropped}
        for layer in behind:
            if layer.only_erases():
                for queue_id, changes in layer.queues.items():
                    erasing.changes(queue_id).absorb(changes)
                for group, group_changes in layer.groups.items():
                    end = 0 if group in renewed else durable_snapshot(group) + 1
                    if group_changes.dropped:
                        erasing.group(group).erase(0, end)
                    for start, stop in zip(group_changes.starts, group_changes.stops, strict=True):
                        if start < min(stop, end):
                            erasing.group(group).erase(start, min(stop, end))
            renewed |= {group for group, changes in layer.groups.items() if changes.dropped}
        return erasing

    def merge(self, behind: list[Layer]) -> Layer:
        """Merge these layers, the next ones after the first, into it."""
        first = self.layers[0]
        for layer in behind:
            assert self.layers[1] is layer
            first.absorb(layer)
            first.durable = first.durable and layer.durable
            del self.layers[1]
        self.logged = None
        return first
