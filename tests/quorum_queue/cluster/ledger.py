"""The checks of a queue, made against its log: an account of every message, kept next to the real machines.

The first node that applies an entry shows it to the ledger, which applies it to a machine of its own, command
by command, and books where each message goes and why. The ledger compares with the books whatever any node
applies, delivers or confirms later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quorum_queue.machine import versions
from quorum_queue.machine.attributes import PROMISED, rank_of
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.entries import Batch, DecodedEntry, decode_entry
from quorum_queue.machine.machine import ENQUEUES, Command, Machine, Meta
from quorum_queue.machine.record.states import STATES, Found
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import EMPTY, UNUSED
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.turns import Violation

Key = tuple[Any, ...]
#: The head of dead letters, which tells them from messages that clients published.
DEAD = b"dead"


class Delivery:
    """A message handed to a consumer by the log."""

    __slots__ = ("attempts", "redelivered", "seq")

    def __init__(self, seq: int, redelivered: bool, attempts: int) -> None:
        self.seq = seq
        self.redelivered = redelivered
        self.attempts = attempts


#: Entries are applied some time after they were proposed.
TIME_SLACK_MS = 10_000


def plain_verb(command: Command) -> str:
    """Return what a command does with deliveries, however long the messages wait then."""
    verb: str = command[0]
    if verb == "retry":
        return "fail" if command[5] else "return"
    return verb


def _ranks(command: Command) -> dict[int, int]:
    """Return the ranks of the messages that a command brings, by their ordinals in the entry."""
    if command[0] not in ENQUEUES:
        return {}
    run: Run = command[1]
    return {seq: rank_of(run.attributes_of(index).priority) for index, seq in enumerate(run.seqs)}


def group_of_body(body: bytes) -> bytes:
    """Return the message group of a message, of a few that all publishers share; some have none."""
    return (b"", b"a", b"b", b"c")[int(body.split(b".")[1]) % 4]


class Ledger:
    """One queue's books."""

    def __init__(self, name: str, settings: Settings, elapsed: Callable[[], dict[str, int]]) -> None:
        """`elapsed` returns the times of the nodes' monotonic clocks."""
        self.name = name
        self._elapsed = elapsed
        self._began: dict[str, int] = {}
        self.settings = settings
        self.machine = Machine(settings, version=versions.FIRST)
        self.index = 0
        self.now_ms = 0
        #: The queue time of the first entry.
        self.first_ms = 0
        #: The entry that every replica must have applied at each index, and the state that it must have
        #: reached.
        self.entries: dict[int, bytes | None] = {}
        self.machine_digests: dict[int, bytes] = {0: snapshot.digest(self.machine)}
        self.digests: dict[int, bytes] = {}
        self.batches: dict[str, tuple[int, int]] = {}
        #: Bodies, times and state of messages, by position.
        self.bodies: dict[int, bytes] = {}
        self.placed_ms: dict[int, int] = {}
        self.live: dict[int, None] = {}
        self.holder: dict[int, tuple[Key, int]] = {}
        self.held: dict[Key, dict[int, int]] = {}
        #: How often messages came back, and how many of their deliveries failed.
        self.returns: dict[int, int] = {}
        self.fails: dict[int, int] = {}
        #: Returns since the queue counts them.
        self.acquired: dict[int, int] = {}
        #: Until when messages wait, at most; and those that waited before they were delivered first.
        self.waits: dict[int, int] = {}
        #: Messages that were picked while they waited.
        self.picked: dict[int, None] = {}
        self.overtaken: dict[int, int] = {}
        self.ranks: dict[int, int] = {}
        #: Whether the queue has message groups, and what consumers had when it began with that.
        self.groups = False
        self.before_groups: dict[int, None] = {}
        self.dead_lettering: dict[int, None] = {}
        self.last_new: dict[int, int] = {}
        #: Dead letters that were taken: their queues and positions there.
        self.letters: dict[tuple[int, int], None] = {}
        #: Positions of each accepted body.
        self.accepted: dict[bytes, list[int]] = {}
        #: The first entry with each of them.
        self.entry_of: dict[bytes, int] = {}
        self.order: dict[bytes, int] = {}
        #: How often each body went to the dead-letter exchange.
        self.dead: dict[bytes, int] = {}
        self.deliveries: dict[tuple[Key, int], list[Delivery]] = {}
        #: How often each message was delivered; and the states that one that has left may have.
        self.times: dict[int, int] = {}
        self.left: dict[int, tuple[str, ...]] = {}
        #: The first entry after which the queue keeps a record.
        self.recorded_from = 1 << 62
        #: Reported by the clients: the messages that they published, and how they settled deliveries.
        self.published: dict[bytes, None] = {}
        self.republished: dict[bytes, None] = {}
        #: Messages whose outcome nobody knew, so their publisher was told to try again; they may still come,
        #: late.
        self.refused: dict[bytes, None] = {}
        #: Messages confirmed when only the leader had them, each with its term as far as it is known: they
        #: may be lost with that leader.
        self.led: dict[bytes, int] = {}
        self.said: dict[tuple[str, Key, int], None] = {}
        #: The last entries by which no message was ready, and no consumer attached.
        self.empty_at = self.unused_at = 0
        #: The queue that gets this one's dead letters, and the queues whose dead letters this one gets.
        self.target: Ledger | None = None
        self.sources: list[Ledger] = []
        #: Starts of nodes that others had a reason to take for down.
        self.doubted: dict[tuple[str, int], None] = {}
        #: The queue is deleted, on one node after the other: messages under way to it go nowhere, and are
        #: confirmed.
        self.deleted = False
        #: All disks have lost an entry of these books, so the books can't judge anything any more.
        self.closed = False
        #: By the log: deliveries and publishes are paused.
        self.paused = (False, False)
        #: True if the leader may have confirmed the messages of the present command early.
        self.promised = False
        self.count: dict[str, int] = {}

    def fail(self, text: str) -> Violation:
        return Violation(f"queue {self.name} at {self.index}: {text}")

    def note(self, what: str, count: int = 1) -> None:
        self.count[what] = self.count.get(what, 0) + count

    # -- the log ---------------------------------------------------------------------------------------------

    def applied(
        self, node: str, index: int, data: bytes | None, digest: bytes, machine_digest: bytes
    ) -> None:
        """A node has applied an entry (None if it is not the machine's) and has reached this state."""
        if index <= self.index:
            if self.entries[index] != data:
                raise self.fail(f"{node} applied another entry {index} than was applied before")
        else:
            if index != self.index + 1:
                raise self.fail(f"{node} applied entry {index}, which nobody has come to yet")
            self.index = index
            self.entries[index] = data
            if self.recorded_from > index and self.machine.record is not None:
                self.recorded_from = index
            if data is not None:
                self._apply(decode_entry(data))
            self.machine_digests[index] = snapshot.digest(self.machine)
        self.same(node, index, digest, machine_digest)

    def same(self, node: str, index: int, digest: bytes, machine_digest: bytes) -> None:
        """A node is at this index: its state must be the one that all others had there."""
        if self.machine_digests[index] != machine_digest:
            raise self.fail(f"the machine of {node} at {index} is not what its log makes of it")
        if self.digests.setdefault(index, digest) != digest:
            raise self.fail(f"{node} at {index} is not what another replica was there")

    def _apply(self, entry: DecodedEntry) -> None:
        self.now_ms = max(self.now_ms, entry.now_ms)
        self._check_time()
        meta = Meta(self.now_ms)
        effects = Effects(wants_places=True)
        for batch in entry.batches:
            incarnation, last = self.batches.get(batch.node, (0, 0))
            if batch.incarnation > incarnation and batch.number == 1:
                self._run(meta, ("node_down", batch.node, batch.incarnation - 1), effects, entry)
            elif (batch.incarnation, batch.number) != (incarnation, last + 1):
                self.note("batches skipped")
                continue
            self.batches[batch.node] = (batch.incarnation, batch.number)
            for command in batch.commands:
                self._check_command(batch, command)
                self._run(meta, command, effects, entry)
        self._run(meta, None, effects, entry)
        self._look_for_idle()
        held = sum(map(len, self.held.values()))
        machine = self.machine
        if (machine.unacked_count, machine.ready.count + machine.delayed.count) != (
            held,
            len(self.live) - held - len(self.dead_lettering),
        ):
            raise self.fail(
                f"{machine.unacked_count} unacked and {machine.ready.count} ready, by the books {held} and "
                f"{len(self.live) - held - len(self.dead_lettering)}"
            )

    @property
    def ready(self) -> int:
        """The number of ready messages by the books."""
        return len(self.live) - sum(map(len, self.held.values())) - len(self.dead_lettering)

    @property
    def letters_count(self) -> int:
        """The number of dead letters that the queue holds, and that make it not empty."""
        return len(self.dead_lettering) if self.machine.version >= versions.HELD_COUNT else 0

    def _look_for_idle(self, expired: int = 0) -> None:
        if self.ready <= expired and not self.letters_count:
            self.empty_at = self.index
        if not self.machine.consumers.count:
            self.unused_at = self.index

    def _check_seal(self, was_sealed: bool, condition: int, expired: int) -> None:
        """Check the condition by the books where the log has sealed the queue."""
        if was_sealed or not self.machine.sealed:
            return
        self.note("seals")
        if condition & EMPTY and self.ready > expired:
            raise self.fail(f"it is sealed as if it was empty, and has {self.ready - expired} messages")
        if condition & EMPTY and self.letters_count:
            raise self.fail(f"it is sealed as if it was empty, and has {self.letters_count} dead letters")
        if condition & UNUSED and self.unused_at < self.index:
            raise self.fail("it is sealed as if it was unused, and has consumers")

    def deleted_if(self, condition: int, began: int) -> None:
        """A client that asked when the log was at `began` is told that the queue met the condition.

        Every message that was confirmed before is in an entry up to `began`.
        """
        if self.closed or self.deleted or self.machine.sealed:
            # The condition of another client may have sealed it, and it is as good as deleted.
            return
        if condition & EMPTY and self.empty_at < began:
            raise self.fail(
                f"it is deleted as if it was empty, and has had {self.ready} messages since {began}"
            )
        if condition & UNUSED and self.unused_at < began:
            raise self.fail(f"it is deleted as if it was unused, and has had consumers since {began}")

    def counted(self, applied: int, began: int) -> None:
        """A client that asked when the log was at `began` gets a count by what a node has applied."""
        if applied < began and not self.closed:
            raise self.fail(f"a count at {applied} comes after what was applied up to {began}")
        self.note("counts")

    def looked(self, body: bytes, found: Found, applied: int, began: int) -> None:
        """A client that asked when the log was at `began` hears what became of a message; -1 if nobody knows
        what the node that answered has applied.
        """
        taken = self.entry_of.get(body)
        if self.closed or (taken is not None and taken < self.recorded_from):
            return
        self.note("looks")
        if taken is None or (applied >= 0 and taken > applied):
            if found.copies:
                raise self.fail(f"{body!r} is known and was not taken yet")
            return
        if not found.copies:
            record, seqs = self.machine.record, self.accepted[body]
            # A node that did not know of the record yet sent it without its id.
            if taken <= began and (record is None or record.since_ms < self.placed_ms[seqs[-1]]):
                raise self.fail(f"{body!r} was taken by {taken}, asked for at {began}, and is unknown")
            return
        self.note("looks that find")
        if applied != self.index:
            # The books are those of another entry.
            return
        copy, seq = found.copies[-1], self.accepted[body][-1]
        if (copy.position, copy.deliveries) != (seq, min(self.times.get(seq, 0), 255)):
            raise self.fail(f"{body!r} is {seq} and was delivered {self.times.get(seq, 0)} times, not {copy}")
        allowed = self.left.get(seq)
        if allowed is None:
            allowed = ("delivered",) if seq in self.holder else ("queued",)
        if STATES[copy.state] not in allowed:
            raise self.fail(f"{body!r} is {STATES[copy.state]} by the record, and {allowed} by the books")
        self.note(f"looks: {STATES[copy.state]}")

    def _check_command(self, batch: Batch, command: Command) -> None:
        if command[0] == "node_down":
            node, incarnation = command[1], command[2]
            if not any(
                name == node and known >= incarnation - incarnation % 100 for name, known in self.doubted
            ):
                raise self.fail(f"{batch.node} took {node} for down, which was always in contact")
            self.note("nodes down")

    def _run(self, meta: Meta, command: Command | None, effects: Effects, entry: DecodedEntry) -> None:
        """Run one command, or the end of the entry, and book its effects."""
        starts = [
            len(effects.places or ()),
            len(effects.deliveries),
            len(effects.settled),
            len(effects.dead_letters),
            len(effects.delayed),
        ]
        refused = len(effects.refused)
        self.promised = (
            command is not None and command[0] in ENQUEUES and command[1].attributes.confirm_level == PROMISED
        )
        verb = "" if command is None else plain_verb(command)
        ranks = {} if command is None else _ranks(command)
        if len(set(ranks.values())) > 1:
            self.note("ranks in one run")
        released = self._let_go(command) if command is not None else []
        was_sealed = self.machine.sealed
        if command is None:
            self.machine.finish(meta, effects)
        else:
            self.machine.run(meta, [command], effects)
            if verb == "seal":
                # A seal drops what has expired before it decides.
                dropped = [
                    *effects.settled[starts[2] :],
                    *(run for run, _ in effects.dead_letters[starts[3] :]),
                ]
                expired = len({seq for run in dropped for seq in run.seqs})
                self._look_for_idle(expired)
                self._check_seal(was_sealed, command[2], expired)
        for first_seq, count, ordinal in (effects.places or [])[starts[0] :]:
            ordinals = range(ordinal, ordinal + count)
            for seq, each in enumerate(ordinals, first_seq):
                self.ranks[seq] = ranks[each]
            self._accept(first_seq, entry.bodies.contents(ordinals), command)
        if verb in ("return", "fail", "node_down") or (
            verb == "detach" and command is not None and command[2]
        ):
            for seq in released:
                if seq in self.picked:
                    del self.picked[seq]
                    self.note("picked, and came back")
                    continue
                self.returns[seq] = self.returns.get(seq, 0) + 1
                if self.machine.counts_failures:
                    self.acquired[seq] = self.acquired.get(seq, 0) + 1
                if verb in ("fail", "detach") or not self.machine.counts_failures:
                    self.fails[seq] = self.fails.get(seq, 0) + 1
        for due_ms, run in effects.delayed[starts[4] :]:
            if command is not None and command[0] == "retry" and due_ms > self.now_ms + command[4]:
                raise self.fail(
                    f"{run.seqs} are to wait {command[4]} ms from {self.now_ms}, not until {due_ms}"
                )
            for seq in run.seqs:
                self.waits[seq] = due_ms
            self.note("waits", len(run.seqs))
        given: dict[int, None] = {}
        if self.machine.grouped is not None:
            for run in effects.settled[starts[2] :]:
                given.update(dict.fromkeys(run.seqs))
        new: list[int] = []
        deliveries = effects.deliveries[starts[1] :]
        if command is not None and command[0] == "get":
            # The machine may still know the getter by what it asked for before.
            deliveries = [(command[1], run, first_id) for _, run, first_id in deliveries]
        if command is not None and verb == "configure":
            self.paused = command[1].deliveries_paused, command[1].publishes_paused
        elif self.paused[0] and not all(consumer.position for consumer, _, _ in deliveries):
            raise self.fail(f"{verb or 'the end of an entry'} hands out messages while deliveries are paused")
        if len(effects.refused) > refused and self.paused[1]:
            self.note("refused by a paused queue")
        if self.machine.grouped is not None and not self.groups:
            self.groups = True
            self.before_groups = dict.fromkeys(self.holder)
        for consumer, run, first_id in deliveries:
            self._hand(consumer, run, first_id, new, given)
            if consumer.no_ack:
                given.update(dict.fromkeys(run.seqs))
        for seq in sorted(new):
            rank = self.ranks[seq] if self.machine.ready.strict else -1
            if seq <= self.last_new.get(rank, 0):
                raise self.fail(f"message {seq} is handed out after {self.last_new[rank]}")
        for seq in new:
            rank = self.ranks[seq] if self.machine.ready.strict else -1
            self.last_new[rank] = max(self.last_new.get(rank, 0), seq)
        reasons: dict[int, str] = {}
        for run, reason in effects.dead_letters[starts[3] :]:
            self._dead_letter(run, reason, reasons, entry)
        settled: dict[int, None] = {}
        for run in effects.settled[starts[2] :]:
            for seq in run.seqs:
                if seq not in self.live:
                    raise self.fail(f"message {seq} is settled, and was settled before or never there")
                settled[seq] = None
                if seq not in self.left:
                    acked = seq in given or (verb == "settle" and seq in released)
                    self.left[seq] = ("acknowledged",) if acked else ("dropped", "expired")
                self._check_left(seq, verb, released, given, reasons.get(seq))
                del self.live[seq]
        for seq in reasons:
            if seq not in settled:
                self._check_left(seq, verb, released, given, reasons[seq])
                self.dead_lettering[seq] = None
        if verb == "settle" and [seq for seq in released if seq not in settled]:
            raise self.fail("a consumer's ack did not settle what it held")

    def _let_go(self, command: Command) -> list[int]:
        """Take the messages that this command takes from consumers."""
        verb = plain_verb(command)
        if verb in ("settle", "return", "fail", "discard"):
            held = self.held.get(command[1], {})
            ids = [number for number in held if command[2] <= number <= command[3]]
            for number in ids:
                self._check_said(verb, command[1], number)
            return [self._release(command[1], number) for number in sorted(ids)]
        keys: list[Key] = []
        if verb == "detach" and command[2]:
            keys = [command[1]]
        elif verb == "node_down":
            keys = [key for key in self.held if key[0] == command[1] and key[1] <= command[2]]
        return [self._release(key, number) for key in keys for number in sorted(self.held.get(key, ()))]

    def _check_said(self, verb: str, key: Key, number: int) -> None:
        # When a link breaks, the queue's home gives back the messages that clients behind it held.
        by_guest = len(key) > 6 and verb == "return"
        if (verb, key[-6:], number) not in self.said and not by_guest:
            raise self.fail(f"{verb} of delivery {number} to {key}, which its client never said")

    def _release(self, key: Key, number: int) -> int:
        seq = self.held[key].pop(number)
        if not self.held[key]:
            del self.held[key]
        del self.holder[seq]
        return seq

    def _check_time(self) -> None:
        """However clocks are set, the queue's time goes no faster than that of the node with the fastest
        clock.
        """
        now, began = self._elapsed(), self._began
        if not began:
            began.update(now)
            self.first_ms = self.now_ms
        passed = max(now[name] - began[name] for name in now)
        spread = max(now.values()) - min(now.values())
        if self.now_ms - self.first_ms > passed + spread + TIME_SLACK_MS:
            raise self.fail(f"it is {self.now_ms - self.first_ms} ms later, and {passed} ms have passed")

    def _accept(self, first_seq: int, bodies: Iterable[bytes], command: Command | None) -> None:
        assert command is not None
        run: Run = command[1]
        if self.paused[1] and self.promised:
            self.note("taken by a paused queue")
        elif self.paused[1] and run.head != DEAD and command[0] != "pend":
            raise self.fail(f"{command[0]} brings messages while publishes are paused")
        waiting = {seq: due_ms for due_ms, late in self.machine.delayed.items() for seq in late.seqs}
        for seq, body in enumerate(bodies, first_seq):
            self.bodies[seq] = body
            self.placed_ms[seq] = self.now_ms
            self.live[seq] = None
            if seq in waiting:
                self.waits[seq] = self.overtaken[seq] = waiting[seq]
                self.note("waits before its delivery")
            before = self.accepted.setdefault(body, [])
            before.append(seq)
            self.entry_of.setdefault(body, self.index)
            if run.head == DEAD:
                sources = [source for source in self.sources if body in source.dead]
                if not sources:
                    raise self.fail(f"{body!r} came as a dead letter and was none")
                if command[0] == "enqueue_letter" and self.machine.version >= versions.LETTERS:
                    letter = command[4][:2]
                    if letter in self.letters:
                        raise self.fail(f"{body!r} was taken twice as the dead letter {letter}")
                    self.letters[letter] = None
                    self.note("dead letters taken once")
                elif any(source.settings.dead_letter_at_least_once for source in sources):
                    if len(before) > 1:
                        self.note("dead letters twice")
                elif len(before) > sum(source.dead[body] for source in sources):
                    raise self.fail(f"{body!r} came as a dead letter more often than it became one")
                else:
                    self.note("dead letters at most once")
                continue
            if body not in self.published:
                raise self.fail(f"{body!r} was published by nobody")
            if len(before) > 1:
                raise self.fail(f"{body!r} was taken twice, at {before}")
            publisher, number = body.split(b".")[:2]
            if body not in self.republished and body not in self.refused:
                if self.order.get(publisher, -1) >= int(number):
                    raise self.fail(f"{body!r} comes after {self.order[publisher]} of its publisher")
                self.order[publisher] = int(number)
        self.note("accepted")

    def _hand(
        self, consumer: Consumer, run: Run, first_id: int, new: list[int], given: dict[int, None]
    ) -> None:
        for number, seq in enumerate(run.seqs, first_id):
            if seq not in self.live or seq in self.holder or seq in self.dead_lettering:
                raise self.fail(f"message {seq} is handed to {consumer.key} and is not ready")
            returns, fails = self.returns.get(seq, 0), self.fails.get(seq, 0)
            if consumer.due_ms:
                if self.waits.get(seq, 0) != consumer.due_ms or seq != consumer.position:
                    raise self.fail(f"message {seq} is picked and does not wait until {consumer.due_ms}")
                self.picked[seq] = None
                self.note("picked")
            else:
                if self.waits.get(seq, 0) > self.now_ms:
                    raise self.fail(f"message {seq} should wait until {self.waits[seq]}")
                self.picked.pop(seq, None)
                if self.machine.ready.strict:
                    self._check_rank(seq, consumer, given)
                if self.machine.grouped is not None:
                    self._check_group(seq, consumer, given)
            if run.redelivered != (returns > 0):
                raise self.fail(f"message {seq} came back {returns} times, redelivered is {run.redelivered}")
            self.times[seq] = self.times.get(seq, 0) + 1
            if self.settings.delivery_limit is not None and run.attempts != fails:
                raise self.fail(f"message {seq} failed {fails} times, and {run.attempts} were counted")
            if run.acquired != self.acquired.get(seq, 0):
                raise self.fail(
                    f"message {seq} came back {self.acquired.get(seq, 0)} times, and {run.acquired} were counted"
                )
            if not returns and seq not in self.overtaken and self.machine.grouped is None:
                new.append(seq)
            self.deliveries.setdefault((consumer.key[-6:], number), []).append(
                Delivery(seq, run.redelivered, run.attempts)
            )
            if not consumer.no_ack:
                self.holder[seq] = consumer.key, number
                self.held.setdefault(consumer.key, {})[number] = seq
        self.note("redelivered" if run.redelivered else "delivered", len(run.seqs))

    def _check_rank(self, seq: int, consumer: Consumer, given: dict[int, None]) -> None:
        """Check that no message of a higher rank is ready. `given`: messages that need no ack have gone."""
        settings = self.settings
        if settings.message_ttl_ms is not None or settings.max_length is not None:
            # A higher one may have expired by the same entry, or is taken only when this one has gone.
            return
        if seq in self.returns:
            return
        for other in self.live:
            if (
                other in self.holder
                or other in self.dead_lettering
                or other in self.returns
                or other in given
                or self.waits.get(other, 0) > self.now_ms
            ):
                continue
            if self.ranks[other] > self.ranks[seq]:
                raise self.fail(f"message {seq} is handed to {consumer.key} before {other} of higher rank")

    def _check_group(self, seq: int, consumer: Consumer, given: dict[int, None]) -> None:
        """Check that nobody else has messages of the group, and that all earlier ones were handed out.
        `given`: messages that need no ack have gone.
        """
        group = group_of_body(self.bodies[seq])
        if not group:
            return
        for other in self.live:
            if other == seq or group_of_body(self.bodies[other]) != group or other in self.dead_lettering:
                continue
            if other in self.holder:
                if self.holder[other][0] != consumer.key and other not in self.before_groups:
                    raise self.fail(
                        f"message {seq} is handed to {consumer.key}, and {self.holder[other][0]} has its group"
                    )
            elif other in given or (other in self.overtaken and self.waits[other] > self.now_ms):
                continue
            elif other < seq and other not in self.overtaken:
                raise self.fail(f"message {seq} is handed out before {other} of its group")

    def _dead_letter(self, run: Run, reason: str, reasons: dict[int, str], entry: DecodedEntry) -> None:
        self.note(f"dead letters, {reason}", len(run.seqs))
        if run.seqs.start < 1:
            # The message was never in the queue.
            ordinals = range(-run.seqs.start, -run.seqs.start + len(run.seqs))
            for body in entry.bodies.contents(ordinals):
                self.dead[body] = self.dead.get(body, 0) + 1
            return
        for seq in run.seqs:
            if seq in self.dead_lettering:
                raise self.fail(f"message {seq} becomes a dead letter twice")
            reasons[seq] = reason
            self.left[seq] = ("dead-lettered",)
            body = self.bodies[seq]
            self.dead[body] = self.dead.get(body, 0) + 1

    def _check_left(
        self, seq: int, verb: str, released: list[int], given: dict[int, None], reason: str | None
    ) -> None:
        """A message leaves the queue: check that it may."""
        settings = self.settings
        limit, ttl = settings.delivery_limit, settings.message_ttl_ms
        if seq in self.dead_lettering:
            target = self.target
            if verb != "dead_lettered" or target is None or self.bodies[seq] not in target.accepted:
                raise self.fail(f"dead letter {seq} is let go before its target has it")
            del self.dead_lettering[seq]
            return
        if seq in self.holder:
            raise self.fail(f"message {seq} leaves while {self.holder[seq]} has it")
        over = limit is not None and self.fails.get(seq, 0) > limit
        full = settings.max_length is not None or settings.max_length_bytes is not None
        expired = ttl is not None and self.placed_ms[seq] + ttl <= self.now_ms
        allowed = {
            "expired": expired,
            "maxlen": full,
            "rejected": verb == "discard" and seq in released,
            "delivery_limit": over,
        }
        if reason is not None:
            right = allowed[reason]
        else:
            right = seq in given or verb == "purge" or (verb == "settle" and seq in released)
            right = right or (not settings.dead_letter and any(allowed.values()))
        if not right:
            raise self.fail(
                f"message {seq} left the queue by {verb or 'the end of an entry'}, reason {reason}"
            )

    # -- clients ---------------------------------------------------------------------------------------------

    def confirmed(self, body: bytes) -> None:
        """A node has told a publisher that this message is safe."""
        if body not in self.accepted and not self.deleted:
            raise self.fail(f"{body!r} is confirmed and was never taken")
        self.note("confirmed")

    def confirmed_by_leader(self, body: bytes, term: int) -> None:
        """A node has told a publisher that the leader of this term has the message; 0 if nobody knows the
        term.
        """
        self.led[body] = term
        self.note("confirmed by the leader")

    def check_led(self, term: int) -> None:
        """Check at rest in this term: messages that a leader has confirmed are there, unless another node has
        led since.
        """
        for body, led in self.led.items():
            if body not in self.accepted and not (self.deleted or self.closed):
                if led >= term:
                    raise self.fail(
                        f"{body!r} was confirmed by the leader of term {led}, which leads, and is lost"
                    )
                self.note("lost with the leader that confirmed it")
        self.led.clear()

    def received(self, owner: Key, first_id: int, run: Run) -> None:
        """A client got this run."""
        assert run.contents is not None
        if len(run.contents) != len(run.seqs):
            raise self.fail(f"{len(run.seqs)} messages with {len(run.contents)} bodies")
        for number, (seq, body) in enumerate(zip(run.seqs, run.contents, strict=True), first_id):
            if self.bodies.get(seq) != body:
                raise self.fail(f"{owner} got {body!r} as message {seq}, which is {self.bodies.get(seq)!r}")
            found = [each for each in self.deliveries.get((owner, number), ()) if each.seq == seq]
            if not any(
                (run.redelivered, run.attempts) == (each.redelivered, each.attempts) for each in found
            ):
                raise self.fail(f"{owner} got message {seq} as delivery {number}, which the log does not say")
