"""The replica of a consumer group on each member of its Raft group: the group, and the state that replication
adds. Pure.

Every replica applies the same entries and comes to the same state; every node then delivers to its own
consumers. The state only has their keys, which begin with the node and that node's start.

The leader is the coordinator: it knows the ends of the streams, and proposes deliveries. A proposal may come
too late, because a member has gone or a message was returned meanwhile. It is checked when it is applied, and
then has no effect. So whatever a leader knew, a partition has one member at a time, and no message is with
two members at once.

A node numbers its batches, and replicas apply them only in order (see quorum_queue.machine.replicated).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from quorum_queue.batch_order import NOT_NEXT
from quorum_queue.consumer_groups import snapshot
from quorum_queue.consumer_groups.entries import CodecError, Command, Key, NodeBatch
from quorum_queue.consumer_groups.group import Member
from quorum_queue.consumer_groups.partition import UNKNOWN, Partition, Span
from quorum_queue.consumer_groups.state import AHEAD_MAX, Death, ReplicaState, new_member
from quorum_queue.machine.consumers import ALL_IDS
from quorum_queue.machine.effects import GONE, Reason
from quorum_queue.machine.parts import READY, TransactionId
from quorum_queue.machine.seal import SEALED, Sealed, outcome

#: Commands that are executed in one step.
COMMANDS_MAX: Final = 32


class Handed(NamedTuple):
    """A delivery to a consumer of this node: messages from `low` up to `stop`, with consecutive ids from
    `first` on.
    """

    key: Key
    stream_id: int
    first: int
    low: int
    stop: int
    attempts: int


class Applied:
    """The effects of an entry on this node."""

    __slots__ = (
        "attached",
        "forgotten",
        "gone",
        "got_nothing",
        "handed",
        "in_use",
        "lost",
        "missed",
        "moved",
        "numbers",
        "prepared",
        "purged",
        "resolved",
        "sealed",
        "seals",
    )

    def __init__(self) -> None:
        #: Own batches that were applied, and own batches in an entry that no member can read any more.
        self.numbers: list[int] = []
        self.missed = range(0)
        #: Outcomes of own attaches: refusals, or None.
        self.attached: list[tuple[Key, str | None]] = []
        self.handed: list[Handed] = []
        #: Own getters without a message.
        self.got_nothing: list[Key] = []
        #: (token, messages) of own purges, and tokens of own moves.
        self.purged: list[tuple[int, int]] = []
        self.moved: list[int] = []
        #: (token, members) of own moves that were refused because the group has members.
        self.in_use: list[tuple[int, int]] = []
        #: (token, outcome) of own parts of transactions, and transactions that were resolved by any node.
        self.prepared: list[tuple[int, int]] = []
        self.resolved: list[TransactionId] = []
        #: (token, outcome) of own seals; and True if the group was sealed, by any node or again.
        self.seals: list[tuple[int, Sealed]] = []
        self.sealed = False
        #: Own consumers that were removed because the group considered the node down; `handed` has nothing
        #: for them.
        self.gone: list[Key] = []
        #: Own consumers that have lost their places for good.
        self.lost: list[Key] = []
        #: Streams whose earlier deliveries are all settled or returned.
        self.forgotten: list[int] = []


class GroupReplica(ReplicaState):
    """One member's copy of a group."""

    __slots__ = ("_applied", "_own", "dead_letters")

    def __init__(self, delivery_limit: int | None, *, dead_letters: bool) -> None:
        """The options are those of the declaration. `dead_letters`: the group has a dead-letter exchange."""
        super().__init__(delivery_limit)
        self.dead_letters = dead_letters
        self._applied = Applied()
        self._own: tuple[str, int] = ("", 0)

    def passed_over(self, index: int) -> None:
        """No member can read the entry with this index any more."""
        self.applied = index
        self.order.passed_over()

    def apply(self, index: int, now_ms: int, found: list[NodeBatch], own: tuple[str, int]) -> Applied:
        """Apply an entry; return its effects for the node and incarnation `own`. Raises CodecError."""
        for _ in self.applying(index, now_ms, found, own):
            pass
        return self.effects

    def applying(
        self, index: int, now_ms: int, found: list[NodeBatch], own: tuple[str, int]
    ) -> Iterator[None]:
        """Apply an entry in steps; then `effects` has its effects for the node and incarnation `own`. Until
        the last step the state is that of no entry. Raises CodecError.
        """
        if index <= self.applied:
            raise ValueError(f"entry {index} comes after entry {self.applied}")
        self.applied = index
        self.now_ms = max(self.now_ms, now_ms)
        applied = self._applied = Applied()
        self._own = own
        order = self.order
        for batch in found:
            begins = order.begins(batch.node, batch.incarnation)
            last = order.take(batch.node, batch.incarnation, batch.number)
            if last == NOT_NEXT:
                continue
            if begins:
                # The first batch of a new start ends the earlier one.
                yield from self._node_down(batch.node, batch.incarnation - 1)
            is_own = batch.node == own[0] and batch.incarnation == own[1]
            if is_own:
                if batch.number != last + 1:
                    applied.missed = range(last + 1, batch.number)
                applied.numbers.append(batch.number)
            for place, command in enumerate(batch.commands, 1):
                if place % COMMANDS_MAX == 0:
                    yield
                try:
                    steps = self._do(command, is_own=is_own)
                    if steps is not None:
                        yield from steps
                except (IndexError, TypeError, KeyError) as error:
                    raise CodecError(f"a command of a consumer group: {command[0]!r}: {error!r}") from error
        self._finish()

    @property
    def effects(self) -> Applied:
        """The effects of the last entry."""
        return self._applied

    def begin_with(self, index: int, now_ms: int) -> None:
        """The group was restored without a log: its log begins after this entry."""
        self.applied, self.now_ms = index, now_ms
        self._finish()

    def _finish(self) -> None:
        group = self.group
        group.rebalance()
        if group.dead:
            dead, group.dead = group.dead, []
            if self.dead_letters:
                for each in dead:
                    self._die(*each)
            else:
                for partition, span, _ in dead:
                    group.buried(partition, span.low, span.stop)
        # A replica's partition has no record of its own.
        group.changed.clear()

    def _die(self, partition: Partition, span: Span, reason: Reason) -> None:
        first, self.deaths = self.deaths, self.deaths + span.stop - span.low
        if self.dead:
            last = self.dead[-1]
            low, stop, attempts = last.span
            follows = last.first + stop - low == first and stop == span.low and attempts == span.attempts
            if last.partition is partition and last.reason == reason and follows:
                # Many rejections come one by one.
                self.dead[-1] = Death(partition, Span(low, span.stop, attempts), reason, last.first)
                return
        self.dead.append(Death(partition, span, reason, first))

    # -- commands --------------------------------------------------------------------------------------------

    def _do(self, command: Command, *, is_own: bool) -> Iterator[None] | None:
        """Execute a command, or return the steps of one that may take long. Raises CodecError."""
        group, verb = self.group, command[0]
        if verb == "settle":
            return self._settle(group.settle, command[1], command[2], command[3])
        elif verb == "hand":
            self._hand(command[1], command[2], command[3], command[4])
        elif verb == "sent":
            member = group.find(command[1])
            if member is not None and command[2] > member.sent:
                member.sent = command[2]
                group.roomy[member] = None
        elif verb == "return":
            return self._settle(group.give_back, command[1], command[2], command[3])
        elif verb == "unsent":
            return self._settle(self._unsent, command[1], command[2], command[3])
        elif verb == "discard":
            return self._settle(group.discard, command[1], command[2], command[3])
        elif verb == "attach":
            return self._attach(command[1], command[2], command[3], is_own=is_own)
        elif verb == "detach":
            return self._leave(command[1], gone=command[2])
        elif verb == "limit":
            member = group.members.get(command[1])
            if member is not None:
                member.prefetch = command[2]
                group.roomy[member] = None
        elif verb == "get":
            self.getting[command[1]] = command[2], self.getting.get(command[1], (0, 0))[1] + 1
        elif verb == "nothing":
            self._got_nothing(command[1])
        elif verb == "streams":
            return self._streams(command[1], command[2])
        elif verb == "begin":
            partition = group.partitions.get(command[1])
            if partition is not None and partition.cursor == UNKNOWN:
                group.begin(partition, command[2])
        elif verb == "passed":
            partition = group.partitions.get(command[1])
            if partition is not None:
                partition.passed(command[2], command[3])
                group.freed[partition] = None
        elif verb == "buried":
            self._buried(command[1], command[2])
        elif verb == "purge":
            self._purge(command[1], command[2], is_own=is_own)
        elif verb == "move_unused" and group.members:
            if is_own:
                self._applied.in_use.append((command[1], len(group.members)))
        elif verb in ("move", "move_unused"):
            return self._move(command[1], command[2], is_own=is_own)
        elif verb == "seal":
            self._seal(command[1], command[2], command[3], is_own=is_own)
        elif verb == "pend":
            self.parts.pend(*command[1:])
        elif verb == "prepare":
            _, token, transaction, count, queues, _ = command
            outcome = READY if self.sealed else self.parts.prepare(transaction, count, queues)
            if is_own:
                self._applied.prepared.append((token, outcome))
        elif verb == "resolve":
            self.parts.resolve(command[1], committed=command[2])
            self._applied.resolved.append(command[1])
        elif verb == "stuck":
            return self._stuck(command[1])
        elif verb == "node_down":
            return self._node_down(command[1], command[2])
        else:
            raise CodecError(f"no command of a consumer group is called {verb!r}")
        return None

    def _is_own(self, key: Key) -> bool:
        node, incarnation = self._own
        return bool(key[0] == node and key[1] == incarnation)

    # -- members ---------------------------------------------------------------------------------------------

    def _unsent(self, key: Key, low: int, high: int) -> None:
        self.group.give_back(key, low, high, seen=False)

    def _settle(
        self, settle: Callable[[Key, int, int], None], key: Key, low: int, high: int
    ) -> Iterator[None] | None:
        """Settle deliveries, in steps if there are many."""
        member = self.group.find(key)
        if member is not None and member.last_of_part(low, high) < high:
            return self._settling(settle, member, low, high)
        settle(key, low, high)
        return None

    def _settling(
        self, settle: Callable[[Key, int, int], None], member: Member, low: int, high: int
    ) -> Iterator[None]:
        while low <= high:
            last = member.last_of_part(low, high)
            settle(member.key, low, last)
            low = last + 1
            if low <= high:
                yield

    def _attach(self, key: Key, prefetch: int, next_id: int, *, is_own: bool) -> Iterator[None]:
        refused = None
        if self.sealed:
            refused = GONE
        elif self.known and not self.group.partitions:
            refused = "the stream of the group is gone"
        else:
            if self.group.find(key) is not None:
                # Its node has forgotten its deliveries.
                yield from self.group.coming_back(key)
                self.group.leave(key, gone=True)
            self.group.join(new_member(key, prefetch, next_id, next_id))
        if is_own:
            self._applied.attached.append((key, refused))

    def _leave(self, key: Key, *, gone: bool) -> Iterator[None]:
        """A consumer leaves. Its node has reported which deliveries were sent; no client has seen the rest.

        Partitions are read independently, so some deliveries below that may not have been sent either: they
        are back already.
        """
        member = self.group.find(key)
        if member is not None:
            steps = self._settle(self._unsent, key, member.sent, ALL_IDS)
            if steps is not None:
                yield from steps
            self._applied.handed = [each for each in self._applied.handed if each.key != key]
        yield from self._detach(key, gone=gone)

    def _detach(self, key: Key, *, gone: bool) -> Iterator[None]:
        if gone:
            yield from self.group.coming_back(key)
        self.group.leave(key, gone=gone)
        if gone:
            self.getting.pop(key, None)
            self._applied.handed = [each for each in self._applied.handed if each.key != key]

    def _stuck(self, before_ms: int) -> Iterator[None]:
        for member in self.group.stuck(before_ms):
            yield from self._lose(member.key)

    def _lose(self, key: Key) -> Iterator[None]:
        yield from self._detach(key, gone=True)
        if self._is_own(key):
            self._applied.lost.append(key)

    def _node_down(self, node: str, incarnation: int) -> Iterator[None]:
        """A node has ended, or has lost its consumers of these starts."""
        for part in self.parts.of_starts(node, incarnation):
            # The rest of it will not come.
            self.parts.resolve(part.transaction, committed=False)
        for key in self.holders():
            if key[0] == node and key[1] <= incarnation:
                yield from self._detach(key, gone=True)
                if self._is_own(key):
                    self._applied.gone.append(key)

    def holders(self) -> list[Key]:
        """Return all members that hold or wait for messages."""
        group = self.group
        return list(dict.fromkeys([*group.members, *group.leaving, *group.getters, *self.getting]))

    def nodes(self) -> list[tuple[str, int]]:
        """Return the nodes of consumers, with their starts: nodes that are down need a node_down."""
        return list(dict.fromkeys([(key[0], key[1]) for key in self.holders()]))

    # -- partitions ------------------------------------------------------------------------------------------

    def _streams(self, come: list[list[Any]], gone: list[int]) -> Iterator[None]:
        group, known = self.group, self.known
        yield from group.forgetting([group.partitions[each] for each in gone if each in group.partitions])
        for stream_id in gone:
            if stream_id in group.partitions:
                group.remove(stream_id)
                self._forget(stream_id)
                self.dead = [each for each in self.dead if each.partition.stream_id != stream_id]
        for stream_id, name in come:
            if stream_id not in group.partitions:
                number = max([each.number for each in group.partitions.values()], default=-1) + 1
                partition = Partition(stream_id, name, number)
                group.add(partition)
                if known:
                    group.begin(partition, 0)
        self.known = True
        if not group.partitions:
            for key in list(group.members):
                yield from self._lose(key)

    def _forget(self, stream_id: int) -> None:
        """No member holds messages of this stream any more."""
        applied = self._applied
        applied.forgotten.append(stream_id)
        applied.handed = [each for each in applied.handed if each.stream_id != stream_id]

    def _move(self, token: int, places: list[list[int]], *, is_own: bool) -> Iterator[None]:
        partitions = self.group.partitions
        yield from self.group.forgetting(
            [partitions[stream_id] for stream_id, _ in places if stream_id in partitions]
        )
        for stream_id, offset in places:
            partition = self.group.partitions.get(stream_id)
            if partition is not None:
                self.group.move(partition, offset)
                self._forget(stream_id)
                self.dead = [each for each in self.dead if each.partition is not partition]
        if is_own:
            self._applied.moved.append(token)

    def _seal(self, token: int, condition: int, places: list[list[int]], *, is_own: bool) -> None:
        unread = 0
        for stream_id, first, stop in places:
            partition = self.group.partitions.get(stream_id)
            if partition is not None:
                unread += partition.unread(first, stop)
        found = Sealed(SEALED, unread)
        if not self.sealed:
            members = len(self.group.members)
            found = Sealed(outcome(condition, consumers=members, ready=unread), unread)
        self.sealed = self.sealed or found.outcome == SEALED
        self._applied.sealed = self.sealed
        if is_own:
            self._applied.seals.append((token, found))

    def _purge(self, token: int, places: list[list[int]], *, is_own: bool) -> None:
        count = 0
        for stream_id, first, stop in places:
            partition = self.group.partitions.get(stream_id)
            if partition is not None and partition.cursor != UNKNOWN:
                count += self.group.skip_unread(partition, first, stop)
        if is_own:
            self._applied.purged.append((token, count))

    # -- deliveries ------------------------------------------------------------------------------------------

    def _hand(self, stream_id: int, key: Key, low: int, stop: int) -> None:
        """Deliver the next messages to a consumer, as far as its limits allow; does nothing if the proposal
        is outdated.
        """
        group = self.group
        partition = group.partitions.get(stream_id)
        if partition is None or partition.cursor == UNKNOWN:
            return
        member = group.members.get(key)
        wanted = self.getting.get(key)
        if member is None and wanted is not None:
            member = group.getters.get(key) or new_member(key, 0, wanted[0], wanted[0], limited=False)
            stop = min(stop, low + 1)
            if not partition.is_open_to(member):
                return
        elif member is None or partition.active() is not member:
            return
        span = partition.upcoming()
        if span.low != low:
            return
        count = min(stop, span.stop) - low
        count = min(count, member.room())
        if count <= 0:
            return
        if wanted is not None and key not in group.members:
            group.getters[key] = member
            self._got_one(key)
        stop = low + count
        first = group.hand(partition, member, range(low, stop), stop, span.attempts, self.now_ms)
        if self._is_own(key):
            self._applied.handed.append(Handed(key, stream_id, first, low, stop, span.attempts))

    def _got_one(self, key: Key) -> None:
        next_id, count = self.getting[key]
        if count > 1:
            self.getting[key] = next_id, count - 1
        else:
            del self.getting[key]

    def _got_nothing(self, key: Key) -> None:
        if key in self.getting:
            self._got_one(key)
            if self._is_own(key):
                self._applied.got_nothing.append(key)

    def _buried(self, first: int, count: int) -> None:
        """The targets have got the letters with these numbers. A reset may
        have changed the partition since.
        """
        left: list[Death] = []
        for each in self.dead:
            partition, span, reason, number = each
            start, end = max(first - number, 0), min(first + count - number, span.stop - span.low)
            if start >= end:
                left.append(each)
                continue
            low, stop = span.low + start, span.low + end
            self.group.buried(partition, low, stop)
            if span.low < low:
                left.append(Death(partition, span._replace(stop=low), reason, number))
            if span.stop > stop:
                left.append(Death(partition, span._replace(low=stop), reason, number + end))
        self.dead = left

    # -- the whole state -------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        return snapshot.encode(self)

    @classmethod
    def restore(
        cls, data: bytes | memoryview, delivery_limit: int | None, *, dead_letters: bool
    ) -> GroupReplica:
        """Build a replica from what `snapshot` returned. Raises CodecError."""
        replica = cls(delivery_limit, dead_letters=dead_letters)
        reading = snapshot.Reading(data, replica)
        while reading.go_on():
            pass
        return replica

    def digest(self) -> bytes:
        """16 bytes that are equal on replicas that applied the same entries."""
        return blake2b(self.snapshot(), digest_size=16).digest()


__all__ = ["AHEAD_MAX", "Applied", "Death", "Handed", "GroupReplica"]
