"""Bodies of a queue on this node: out of memory when the budget is used up, and back ahead of delivery."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from quorum_queue.empty import NO_LIST
from quorum_queue.host import Peeked, QueueHost
from quorum_queue.machine import codec, positions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import BURST_BYTES, Command, Machine
from quorum_queue.machine.peeking import Look, Seen, peek
from quorum_queue.machine.positions import Seqs
from quorum_queue.machine.ready import Ready
from quorum_queue.machine.run import Run
from quorum_queue.pages import Page
from quorum_queue.ports import Refused
from quorum_queue.unsent_bytes import LARGE_BYTES

if TYPE_CHECKING:
    from quorum_queue.local_host import NodeServices

logger = logging.getLogger("mqd.queue")

#: Consumer, run, and first delivery id.
Delivery = tuple[Consumer, Run, int]

#: One journal record has at most about this many bytes, so that paging in one does not stall the loop.
RECORD_BYTES_MAX = 256 * 1024
#: Positions further apart are read by themselves, without what is between them.
NEAR: Final = 256
#: Time for which pages are assumed to stay in the page cache, ms.
KNOWN_MS: Final = 1_000
#: Most runs of consumers that one relief looks at; many may be paged out already.
PAGE_OUT_LOOKS_MAX: Final = 1_000


class _Asked(NamedTuple):
    """First and last requested position, and the time of the request."""

    first: int
    last: int
    at_ms: int


NOTHING_ASKED = _Asked(0, -1, 0)


class Paging(QueueHost):
    """The part of a host that moves bodies. The journal has the bodies of durable messages; others go to the
    spill.
    """

    queue_id: int
    pending: list[Command]
    machine: Machine
    services: NodeServices
    journalled: bool
    resident_bytes: int
    #: Durable messages up to here are on disk.
    _durable_seq: int
    #: Transient messages after this one are in memory only.
    _spilled_to: int
    #: Number of stores that read the next bodies in a thread.
    _warming: int
    #: The requested positions.
    _next: _Asked
    #: Gets that wait for these reads.
    _gets_waiting: list[Command]
    #: Bytes read since `apply_pending` was called.
    _handed_out: int
    #: Positions that the disk reads ahead, and those that it has read.
    _asked: _Asked
    _at_hand: _Asked | None

    def page_out(self, bytes_wanted: int) -> int:
        """Drop the newest bodies from memory, which are the last to be delivered; return the bytes freed."""
        freed = 0
        for level in self.machine.ready.levels:
            held_back: list[Run] = []
            resident = level.resident
            keep = level.main.first if level.main else None
            while resident and freed < bytes_wanted:
                run = resident.pop()
                if not run.ready or not run.in_memory:
                    continue
                if run is keep:
                    held_back.append(run)
                    break
                if self.journalled and run.attributes.persistent:
                    if run.seqs[-1] > self._durable_seq:
                        held_back.append(run)
                        continue
                elif not run.spilled:
                    self._spill(run)
                freed += run.page_out()
            resident.extend(reversed(held_back))
        if freed < bytes_wanted:
            freed += self._page_out_handed_out(bytes_wanted - freed)
        self.resident_bytes -= freed
        self.services.memory.used -= freed
        return freed

    def _page_out_handed_out(self, bytes_wanted: int) -> int:
        """Drop bodies of deliveries and of returned messages: they are seldom needed again."""
        freed = looked_at = 0
        held = [consumer.checkout.runs for consumer in self.machine.consumers.by_key.values()]
        aside = self.machine.ready.put_aside()
        # Keep the next messages: they may have been read a moment ago.
        heads = [*(next(iter(runs), None) for runs in aside), self.machine.ready.wants()]
        for runs in (*held, *aside, *self.machine.delayed.lists()):
            for run in reversed(runs):
                looked_at += 1
                if freed >= bytes_wanted or looked_at > PAGE_OUT_LOOKS_MAX:
                    return freed
                if not run.in_memory or run in heads:
                    continue
                if self.journalled and run.attributes.persistent:
                    if run.seqs[-1] > self._durable_seq:
                        continue
                elif not run.spilled:
                    self._spill(run)
                freed += run.page_out()
        return freed

    def _spill(self, run: Run) -> None:
        if run.packed is not None:
            run.unpack()
        self._spilled_to = max(self._spilled_to, run.seqs[-1])
        run.spilled = True
        # Deliveries of consumers may have gaps; records have none.
        whole = run.seqs.step == 1
        parts = parts_of(run) if whole else [run.part(at, at + 1) for at in range(len(run.seqs))]
        for part in parts:
            encoded = codec.encode([part])
            self.services.spill.append(
                self.queue_id, part.seqs.start, len(part.seqs), encoded, codec.HEAD_PARTS
            )

    def _read_ahead(self, *, wanted: bool) -> None:
        """Read the bodies that will be needed next. `wanted`: a consumer waits for them."""
        ready = self.machine.ready
        head = ready.wants()
        if head is None or head.contents is not None:
            if wanted:
                self._go_on()
            return
        if self._warming:
            return
        unsent = self.services.memory.unsent
        if head.size > LARGE_BYTES and unsent.full:
            if wanted:
                unsent.wait(self, partial(self._turn.contain, self, self._has_room))
            return
        runs = ready.paged_out(0, self.services.read_ahead.memory_bytes)
        if not self._known(runs):
            self._next = _Asked(runs[0].seqs.start, runs[-1].seqs[-1], 0)
            self._warming = self._ask(runs, self._warmed)
        if not self._warming:
            self._bring_back(ready)
            if wanted:
                self._go_on()

    def _has_room(self) -> None:
        """Clients have read enough of their messages."""
        if not self.ended:
            self._go_on()
            self._turn.schedule(self)

    def _ask(self, runs: list[Run], done: Callable[[], None]) -> int:
        """Let the disk read these bodies if they are not in the page cache; return how often `done` will be
        called.
        """
        durable: list[tuple[int, int]] = []
        spilled: list[tuple[int, int]] = []
        for run in runs:
            spans = durable if self.journalled and run.attributes.persistent else spilled
            for seqs in positions.near_together(run.seqs, NEAR):
                if spans and spans[-1][1] + 1 == seqs.start:
                    spans[-1] = spans[-1][0], seqs[-1]
                else:
                    spans.append((seqs.start, seqs[-1]))
        services = self.services
        waits = durable and not services.journal.warm(self.queue_id, durable, done)
        return bool(waits) + bool(spilled and not services.spill.warm(self.queue_id, spilled, done))

    def _ask_ahead(self, ready: Ready) -> None:
        """While bodies in memory are delivered, let the disk read the following ones."""
        asked_from, asked_to, _ = self._asked
        ahead = self.services.read_ahead
        later = ready.paged_out(ahead.memory_bytes, ahead.disk_bytes)
        fresh = [run for run in later if not asked_from <= run.seqs.start <= asked_to]
        if 2 * sum(run.size for run in fresh) < ahead.disk_bytes:
            return
        follows = len(fresh) < len(later)
        given = not follows or self._at_hand is self._asked
        if not follows:
            asked_from = fresh[0].seqs.start
        self._asked = asked = _Asked(asked_from, fresh[-1].seqs[-1], self.services.clock.monotonic_ms())
        waits = self._ask(fresh, lambda: self._came_ahead(asked))
        self._at_hand = asked if given and not waits else None

    def _came_ahead(self, asked: _Asked) -> None:
        if asked is self._asked:
            self._at_hand = asked

    def _known(self, runs: list[Run]) -> bool:
        """True if the page cache had these bodies a moment ago."""
        known = self._at_hand
        return (
            known is not None
            and self.services.clock.monotonic_ms() - known.at_ms < KNOWN_MS
            and all(known.first <= run.seqs.start and run.seqs[-1] <= known.last for run in runs)
        )

    def _warmed(self) -> None:
        """The disk has read the requested bodies."""
        self._warming -= 1
        if not self._warming and not self.ended:
            self._at_hand = self._next._replace(at_ms=self.services.clock.monotonic_ms())
            self._handed_out = 0
            self._go_on()
            self._turn.schedule(self)

    def _go_on(self) -> None:
        """Deliver the messages that waited for their bodies."""
        gets, self._gets_waiting = self._gets_waiting, NO_LIST
        self.pending += gets
        if self._handed_out < BURST_BYTES:
            self.pending.append(("tick",))
        else:
            # As after any burst, let other work come first.
            self.services.timers.wake(self, 0)

    def _bring_back(self, ready: Ready) -> None:
        """Load the next bodies, which need no wait for the disk; let the disk read the following ones
        meanwhile.
        """
        brought = ready.paged_out(0, self.services.read_ahead.memory_bytes)
        for at, run in enumerate(brought):
            if not self._load(run, keep=True):
                del brought[at:]
                break
        ready.brought_back(brought)
        self._ask_ahead(ready)

    def _load(self, run: Run, *, keep: bool) -> bool:
        """Read a run's bodies back. `keep`: the run stays in the queue, so its memory counts.

        Return False if the disk has lost some of them: then the run is unchanged, and the lost messages leave
        the queue with the next commands.
        """
        durable = self.journalled and run.attributes.persistent
        contents = self.services.pages.find(self.queue_id, durable, run.seqs)
        if contents is None:
            found = self._read(run.seqs, durable)
            if len(found) < len(run.seqs):
                return False
            contents = [found[seq] for seq in run.seqs]
        run.page_in(contents)
        if keep:
            self.resident_bytes += run.size
            self.services.memory.used += run.size
        return True

    def _load_deliveries(self, deliveries: list[Delivery]) -> None:
        """Read the bodies of deliveries. Lost messages are not delivered."""
        damaged: list[int] = []
        for at, (_, run, _) in enumerate(deliveries):
            if run.contents is None and not self._load(run, keep=False):
                damaged.append(at)
        for at in reversed(damaged):
            consumer, run, first_id = deliveries[at]
            deliveries[at : at + 1] = [
                (consumer, part, first_id + index) for index, part in self._what_is_left(run)
            ]

    def _what_is_left(self, run: Run) -> Iterator[tuple[int, Run]]:
        """Yield copies of the parts of a run whose bodies are on the disk, each with its place in the run."""
        found = self._read(run.seqs, self.journalled and run.attributes.persistent)
        for index, seq in enumerate(run.seqs):
            if seq in found:
                single = run.every(index, len(run.seqs))
                single.page_in([found[seq]])
                yield index, single

    def _read(self, wanted: Seqs, durable: bool) -> dict[int, bytes]:
        """Return the bodies at these positions, as many as the disk has."""
        found: dict[int, bytes] = {}
        for part in positions.near_together(wanted, NEAR):
            found.update(self._read_part(part, durable))
        if len(found) < len(wanted):
            self._lose([seq for seq in wanted if seq not in found], "there is no record of them")
        return found

    def _read_part(self, wanted: Seqs, durable: bool) -> dict[int, bytes]:
        """As `_read`, of positions that are near to one another; it reads all between them."""
        store = self.services.journal if durable else self.services.spill
        found: dict[int, bytes] = {}
        for record in store.read(self.queue_id, wanted[0], wanted[-1]):
            first = record.first_seq
            if record.fault:
                self._lose([seq for seq in wanted if first <= seq < first + record.count], record.fault)
                continue
            contents = codec.decode_contents(record.payload)
            if wanted.step == 1:
                low, high = max(wanted.start, first), min(wanted.stop, first + record.count)
                found.update(zip(range(low, high), contents[low - first : high - first], strict=True))
            else:
                found.update(
                    (seq, contents[seq - first]) for seq in wanted if first <= seq < first + record.count
                )
            if record.count > 1:
                self.services.pages.keep(self.queue_id, durable, Page(first, contents), len(record.payload))
        return found

    def peek(self, look: Look, done: Peeked) -> None:
        """See quorum_queue.ports.Host."""

        waits = 0

        def begin(*why: Refused) -> None:
            nonlocal waits
            if why or self.ended:
                done(why[0] if why else Refused(self.ended_text))
                return
            found = peek(self.machine, look)
            missing = [run for _, run in found if run.contents is None]
            waits = self._ask(missing, came) if missing else 0
            if not waits:
                done(list(self._with_bodies(found)))

        def came() -> None:
            nonlocal waits
            waits -= 1
            if waits:
                return
            if self.ended:
                done(Refused(self.ended_text))
            else:
                # Some messages may be gone meanwhile.
                done(list(self._with_bodies(peek(self.machine, look))))

        self.barrier(begin)

    def _with_bodies(self, found: list[Seen]) -> Iterator[Seen]:
        for level, run in found:
            if run.contents is not None or self._load(run, keep=False):
                yield Seen(level, run)
            else:
                for _, part in self._what_is_left(run):
                    yield Seen(level, part)
                self._turn.schedule(self)

    def _lose(self, seqs: list[int], fault: str) -> None:
        """Log lost messages, once, and continue without them."""
        known = [command for command in self.pending if command[0] == "lose"]
        fresh = [seq for seq in seqs if not any(low <= seq <= high for _, low, high in known)]
        for command in _spans(fresh):
            self.pending.append(command)
            logger.error("%s lost messages %d to %d: %s", self._title, *command[1:], fault)

    @property
    def _title(self) -> str:
        return f"queue '{self.queue.name}' in vhost '{self.queue.vhost.name}'"


def _spans(seqs: list[int]) -> list[Command]:
    """Commands for all of these positions, which are in order."""
    spans: list[Command] = []
    for seq in seqs:
        if spans and spans[-1][2] == seq - 1:
            spans[-1] = ("lose", spans[-1][1], seq)
        else:
            spans.append(("lose", seq, seq))
    return spans


def parts_of(run: Run) -> list[Run]:
    """Cut a run, which must be a copy of the caller's own, into records of bounded size."""
    if len(run.seqs) == 1 or codec.size(run) <= RECORD_BYTES_MAX:
        return [run]
    assert run.contents is not None
    parts: list[Run] = []
    start = size = 0
    for index, content in enumerate(run.contents):
        more = len(content) + codec.head_size(run, index)
        if index > start and size + more > RECORD_BYTES_MAX:
            parts.append(run.part(start, index))
            start, size = index, 0
        size += more
    parts.append(run.part(start, len(run.contents)))
    return parts
