"""Hosts of queues on this node: the machine over no log, or over the journal.

A host gathers the commands of a turn, applies them as one batch, and carries out the effects: journal what is
durable, deliver, confirm (after the sync where something was journalled), dead-letter, and forget what is settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum_queue.machine import codec
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.run import Run
from quorum_queue.memory import MemoryBudget
from quorum_queue.pages import Page, Pages
from quorum_queue.ports import Commits, DeadLetters, Journal, Marks, Timers

#: One journal record has at most about this many bytes, so that paging in one does not stall the loop, and a restart
#: finds all heads at its beginning.
RECORD_BYTES_MAX = 256 * 1024
#: Bodies are paged in this far ahead of the head of the queue.
READ_AHEAD_BYTES = 512 * 1024
#: Runs that consumers hold and that one relief looks at; most may be paged out already.
PAGE_OUT_LOOKS_MAX = 1_000
#: A dead letter that found no taker is tried again after this time.
DEAD_LETTER_RETRY_MS = 1_000


class NodeServices:
    """What every host of the node shares."""

    __slots__ = ("clock", "commits", "dead_letters", "journal", "marks", "memory", "pages", "spill", "timers")

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        memory: MemoryBudget,
        timers: Timers,
        dead_letters: DeadLetters,
        journal: Journal,
        spill: Journal,
        commits: Commits,
        marks: Marks,
    ) -> None:
        self.clock = clock
        self.memory = memory
        self.timers = timers
        self.dead_letters = dead_letters
        self.journal = journal
        self.spill = spill
        self.commits = commits
        self.marks = marks
        self.pages = Pages()


class LocalHost:
    """Runs one queue's machine on this node."""

    def __init__(
        self,
        queue: Any,
        queue_id: int,
        machine: Machine,
        services: NodeServices,
        *,
        journalled: bool,
        marks: list[int] | None = None,
    ) -> None:
        #: The topology's queue, opaque here; the dead-letter sender asks it for its settings.
        self.queue = queue
        self.queue_id = queue_id
        self.machine = machine
        self.services = services
        self.journalled = journalled
        #: Marks' slots, one for each priority level.
        self.marks = marks or []
        #: What was marked last in each slot: consumers that take turns are served out of order, and a mark only rises.
        self._marked = [0] * len(self.marks)
        self.resident_bytes = 0
        self.pending: list[Command] = []
        self.closed = False
        #: Transient messages behind this one are in memory only.
        self._spilled_to = -1
        self._wake_at: int | None = None
        self._durable_seq = machine.next_seq - 1
        self.published_count = 0
        self.delivered_count = 0
        services.memory.register(self)

    @property
    def counts_bytes(self) -> bool:
        """Does the queue have a limit in bytes? Then it wants to know how many bytes of a content count."""
        return self.machine.settings.max_length_bytes is not None

    # -- commands --------------------------------------------------------------------------------------------------

    def submit(self, *commands: Command) -> None:
        """Apply these commands now, after what was put into `pending` before."""
        self.pending += commands
        self.turn()

    def turn(self) -> None:
        """Apply all pending commands as one batch and carry out the effects; then what that made pending."""
        while True:
            if self.closed:
                self._refuse_pending()
                return
            commands, self.pending = self.pending, []
            effects = Effects(wants_enqueued=self.journalled)
            self.machine.apply(Meta(self.services.clock()), commands, effects)
            self._perform(effects)
            if not self.pending:
                return
            # A dead letter came straight back, or its targets took it.

    def wake(self) -> None:
        """A time that the machine asked for has come."""
        self._wake_at = None
        if not self.closed:
            if self.machine.dead_lettering:
                self._retry_dead_letters()
            self.submit(("tick",))

    def close(self) -> None:
        """The queue is gone, with all that it holds."""
        self.closed = True
        services = self.services
        services.memory.forget(self)
        for consumer in self.machine.consumers.by_key.values():
            if consumer.window is not None:
                consumer.window.use(-consumer.checkout.count)
        services.pages.forget(self.queue_id)
        services.memory.used -= self.resident_bytes
        self.resident_bytes = 0
        if self.journalled:
            services.journal.drop(self.queue_id)
            services.commits.request()
        if self._spilled_to >= 0:
            services.spill.drop(self.queue_id)
        self._refuse_pending()

    def _refuse_pending(self) -> None:
        """What was on its way to a queue that has just been deleted went nowhere: that is a confirm, not a refusal."""
        commands, self.pending = self.pending, []
        for command in commands:
            if command[0] == "enqueue" and command[2] is not None:
                command[2].confirmed(command[3], command[3] + len(command[1].seqs) - 1)

    # -- effects ---------------------------------------------------------------------------------------------------

    def _perform(self, effects: Effects) -> None:
        services = self.services
        self.resident_bytes += effects.accepted_bytes
        services.memory.used += effects.accepted_bytes
        wrote = False
        if effects.enqueued:
            wrote = self._journal_enqueued(effects.enqueued)
        for consumer, run, first_id in effects.deliveries:
            if run.contents is None:
                self._load(run, keep=False)
            if self.journalled and run.attributes.persistent and not run.redelivered:
                self._mark(run)
            self.delivered_count += len(run.seqs)
            consumer.sink.deliver(consumer, run, first_id)
        if self.journalled:
            for run in effects.returned:
                for seq in run.seqs if run.attributes.persistent else ():
                    services.journal.annotate(self.queue_id, seq, run.attempts.to_bytes(4, "big"))
                    wrote = True
        if effects.dead_letters:
            self._send_dead_letters(effects)
        if effects.settled:
            wrote = self._forget(effects.settled) or wrote
        self._confirm(effects, wrote)
        for origin, first, last in effects.refused:
            if origin is not None:
                origin.refused(first, last)
        if effects.more:
            services.timers.wake(self, 0)
        if effects.wake_at is not None and (self._wake_at is None or effects.wake_at < self._wake_at):
            self._wake_at = effects.wake_at
            services.timers.wake(self, effects.wake_at)
        if services.memory.used > services.memory.budget_bytes:
            services.memory.relieve()
        self._read_ahead()

    def _journal_enqueued(self, runs: list[Run]) -> bool:
        """Write the persistent runs, batches of neighbours in one record."""
        batch: list[Run] = []
        size = 0
        wrote = False
        for run in runs:
            if not run.attributes.persistent:
                continue
            for part in _parts(run):
                part_size = codec.size(part)
                if batch and (batch[-1].seqs.stop != part.seqs.start or size + part_size > RECORD_BYTES_MAX):
                    self._append(batch)
                    batch, size = [], 0
                batch.append(part)
                size += part_size
            wrote = True
        if batch:
            self._append(batch)
        return wrote

    def _append(self, batch: list[Run]) -> None:
        first, stop = batch[0].seqs.start, batch[-1].seqs.stop
        self.services.journal.append(self.queue_id, first, stop - first, codec.encode(batch))

    def _mark(self, run: Run) -> None:
        level = min(run.attributes.priority, len(self.marks) - 1)
        if level >= 0 and run.seqs[-1] > self._marked[level]:
            self._marked[level] = run.seqs[-1]
            self.services.marks.mark(self.marks[level], run.seqs[-1])

    def _confirm(self, effects: Effects, wrote: bool) -> None:
        """Confirm at once what is not durable anyway, and the rest after the sync."""
        waiting: list[tuple[Any, int, int]] = []
        for origin, first, last, persistent in effects.confirmed:
            self.published_count += last - first + 1
            if origin is None:
                continue
            if self.journalled and persistent:
                waiting.append((origin, first, last))
            else:
                origin.confirmed(first, last)
        if not wrote:
            return
        if not waiting and not effects.enqueued:
            self.services.commits.request()
            return
        durable_seq = self.machine.next_seq - 1

        def done() -> None:
            self._durable_seq = max(self._durable_seq, durable_seq)
            for origin, first, last in waiting:
                origin.confirmed(first, last)
            if self.services.memory.used > self.services.memory.budget_bytes:
                self.services.memory.relieve()

        self.services.commits.request(done)

    def _forget(self, settled: list[Run]) -> bool:
        """Delete the entries of settled messages and give their memory back; say whether the journal was written."""
        services = self.services
        wrote = False
        for run in settled:
            if run.contents is not None:
                self.resident_bytes -= run.size
                services.memory.used -= run.size
            if self.journalled and run.attributes.persistent:
                services.journal.settle(self.queue_id, run.seqs)
                wrote = True
            elif run.seqs.start <= self._spilled_to:
                services.spill.settle(self.queue_id, run.seqs)
        return wrote

    # -- dead letters ----------------------------------------------------------------------------------------------

    def _send_dead_letters(self, effects: Effects) -> None:
        at_least_once = self.machine.settings.dead_letter_at_least_once
        for run, reason in effects.dead_letters:
            if run.contents is None:
                self._load(run, keep=True)
            taken = self.services.dead_letters.dead_letter(self.queue, run, reason)
            if not at_least_once or run.seqs.start not in self.machine.dead_lettering:
                continue
            if taken:
                self.pending.append(("dead_lettered", run.seqs[0], run.seqs[-1]))
            else:
                self._wake_later()

    def _retry_dead_letters(self) -> None:
        for seq, (run, reason) in list(self.machine.dead_lettering.items()):
            if self.services.dead_letters.dead_letter(self.queue, run, reason):
                self.pending.append(("dead_lettered", seq, seq))
        if self.machine.dead_lettering:
            self._wake_later()

    def _wake_later(self) -> None:
        at = self.services.clock() + DEAD_LETTER_RETRY_MS
        if self._wake_at is None or self._wake_at > at:
            self._wake_at = at
            self.services.timers.wake(self, at)

    # -- paging ----------------------------------------------------------------------------------------------------

    def page_out(self, bytes_wanted: int) -> int:
        """Drop the newest bodies from memory, which are the last to be delivered; return the bytes freed."""
        freed = 0
        for level in self.machine.ready.levels:
            held_back: list[Run] = []
            resident = level.resident
            keep = level.main[0] if level.main else None
            while resident and freed < bytes_wanted:
                run = resident.pop()
                if not run.ready or run.contents is None:
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
        """Drop bodies that consumers hold, or gave back: they are needed again only if something goes wrong."""
        freed = looked_at = 0
        held = [consumer.checkout.runs for consumer in self.machine.consumers.by_key.values()]
        for runs in (*held, *(level.returned for level in self.machine.ready.levels)):
            for run in reversed(runs):
                looked_at += 1
                if freed >= bytes_wanted or looked_at > PAGE_OUT_LOOKS_MAX:
                    return freed
                durable = self.journalled and run.attributes.persistent
                if run.contents is not None and durable and run.seqs[-1] <= self._durable_seq:
                    freed += run.page_out()
        return freed

    def _spill(self, run: Run) -> None:
        self._spilled_to = max(self._spilled_to, run.seqs[-1])
        run.spilled = True
        for part in _parts(run):
            self.services.spill.append(self.queue_id, part.seqs.start, len(part.seqs), codec.encode([part]))

    def _read_ahead(self) -> None:
        """Bring back the bodies that will be wanted next."""
        level = self.machine.ready.head_level()
        if level is None:
            return
        head = level.head()
        if head is None or head.contents is not None:
            return
        ahead = 0
        brought: list[Run] = []
        for run in level.main if head is (level.main[0] if level.main else None) else [head]:
            if run.contents is not None or ahead > READ_AHEAD_BYTES:
                break
            self._load(run, keep=True)
            ahead += run.size
            brought.append(run)
        level.forget_gone()
        level.resident.extendleft(reversed(brought))

    def _load(self, run: Run, *, keep: bool) -> None:
        """Read a run's bodies back. `keep`: it stays in the queue, so its memory counts."""
        durable = self.journalled and run.attributes.persistent
        pages = self.services.pages
        contents = pages.find(self.queue_id, durable, run.seqs)
        run.page_in(self._read(run.seqs, durable) if contents is None else contents)
        if keep:
            self.resident_bytes += run.size
            self.services.memory.used += run.size

    def _read(self, wanted: range, durable: bool) -> list[bytes]:
        store = self.services.journal if durable else self.services.spill
        found: dict[int, bytes] = {}
        for record in store.read(self.queue_id, wanted[0], wanted[-1]):
            contents = codec.decode_contents(record.payload)
            first = record.first_seq
            if wanted.step == 1:
                low, high = max(wanted.start, first), min(wanted.stop, first + record.count)
                found.update(zip(range(low, high), contents[low - first : high - first], strict=True))
            else:
                found.update(
                    (seq, contents[seq - first]) for seq in wanted if first <= seq < first + record.count
                )
            if record.count > 1:
                self.services.pages.keep(self.queue_id, durable, Page(first, contents), len(record.payload))
        return [found[seq] for seq in wanted]


def _parts(run: Run) -> list[Run]:
    """Cut a run, which must be a copy of the caller's own, into records of bounded size."""
    if len(run.seqs) == 1 or codec.size(run) <= RECORD_BYTES_MAX:
        return [run]
    assert run.contents is not None
    parts: list[Run] = []
    start = size = 0
    for index, content in enumerate(run.contents):
        more = len(content) + codec.head_size(run, index)
        if index > start and size + more > RECORD_BYTES_MAX:
            parts.append(_part(run, start, index))
            start, size = index, 0
        size += more
    parts.append(_part(run, start, len(run.contents)))
    return parts


def _part(run: Run, start: int, stop: int) -> Run:
    assert run.contents is not None
    part = Run(run.seqs[start:stop], run.contents[start:stop], run.head, run.attributes, run.expires_at)
    part.heads = run.heads and run.heads[start:stop]
    return part
