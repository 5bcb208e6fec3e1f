"""One Raft group on this node: the core, the state machine it feeds, and the batches of this node on their way.

A batch is numbered by the node that made it. It is sent to the leader, and sent again, with all that follow it, whenever
there is a new leader or a new session with it, until it is seen in the log here; the state machine takes each number
once and in order. So a change of leader neither loses nor repeats nor reorders what a client did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from quorum_queue.cluster import frames
from quorum_queue.raft.core import Raft
from quorum_queue.raft.errors import TransferInProgress
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import MEMBERS, NORMAL, PASSED_OVER, Entry

if TYPE_CHECKING:
    from quorum_queue.cluster.replicas import Replicas
    from quorum_queue.cluster.transfer import Receiving, Sending


T = TypeVar("T")

#: Counted for each entry of the log beside its data.
ENTRY_OVERHEAD = 64


class StateMachine(Protocol):
    """What a group replicates. `apply` is deterministic; what it makes happen on this node is its own business."""

    #: Does each batch want an entry of its own?
    single: bool

    @property
    def title(self) -> str:
        """What operators call it."""

    @property
    def awaited(self) -> bool:
        """Is there anybody on this node who waits for what others do to the machine?"""

    def encode(self, batches: list[bytes]) -> bytes:
        """Make an entry of batches that nodes have made. Only a leader does."""

    def apply(self, index: int, data: bytes) -> None: ...

    def passed(self, index: int) -> None:
        """An entry without a command for the machine was applied."""

    def passed_over(self, index: int) -> None:
        """In place of an entry that no member can read any more there was nothing to apply."""

    def lose_bodies(self, indexes: list[int]) -> None:
        """No member can read these entries any more, which were applied: have the group do without their bodies."""

    def settled(self) -> None:
        """Entries were applied, and for now there are no more."""

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...

    def kept_in(self, state: bytes) -> list[int]:
        """The same as `kept` of a machine restored from this state."""

    def last_own_batch(self) -> int:
        """The last batch of this node (of its present incarnation) that was applied."""

    def kept(self) -> list[int]:
        """Indexes of the applied entries whose bodies are still wanted, in order."""

    def wanted(self, index: int) -> bool:
        """Is this entry still of use, to the log or for its bodies?"""

    def released(self) -> list[int]:
        """Indexes of entries that are not wanted any more since the last call."""

    def leader_changed(self) -> None: ...

    def members_changed(self, members: Members) -> None: ...

    def failed(self, error: Exception) -> None:
        """An entry could not be applied, or the log contradicts the leader's: the group must stop on this node."""


class Flight(NamedTuple):
    """A batch that is not applied here yet."""

    number: int
    payload: bytes


class Group:
    __slots__ = (
        "applied",
        "cleaned",
        "core",
        "crowded",
        "flights",
        "id",
        "inbox",
        "leading",
        "machine",
        "next_number",
        "proposed_ms",
        "proposed_terms",
        "receiving",
        "released",
        "replicas",
        "sending",
        "sent_to",
        "since_bytes",
        "snapshot_bytes",
        "snapshot_index",
        "snapshot_log_bytes",
        "snapshotting",
        "wakes",
    )

    def __init__(
        self, replicas: Replicas, group_id: int, core: Raft, machine: StateMachine, *, applied: int
    ) -> None:
        self.id = group_id
        self.replicas = replicas
        self.core = core
        self.machine = machine
        #: Batches of this turn, of all nodes, that go into the next entry. What is empty is no object of its own:
        #: there may be thousands of groups at rest.
        self.inbox: list[bytes] | tuple[()] = ()
        self.flights: list[Flight] | tuple[()] = ()
        #: When the last entry was proposed, and whether there was more than one batch in it.
        self.proposed_ms = 0
        #: Terms in which this process led and proposed entries, but for those before the last entry applied.
        self.proposed_terms: tuple[int, ...] = ()
        self.crowded = False
        #: A timer is set for the next one.
        self.wakes = False
        self.next_number = 1
        #: Leader and term that the flights were sent to.
        self.sent_to = ("", 0)
        self.leading = False
        self.applied = applied
        self.snapshot_index = applied
        #: Up to here the log holds nothing but entries with bodies of the queue.
        self.cleaned = applied
        self.snapshot_bytes = 0
        #: Bytes of entries applied since the last snapshot.
        self.since_bytes = 0
        #: Of those before it that are kept for a follower.
        self.snapshot_log_bytes = 0
        #: A snapshot is being written.
        self.snapshotting = False
        #: Entries that nobody wants any more, to be deleted with the next snapshot.
        self.released: list[int] | tuple[()] = ()
        self.sending: dict[str, Sending] | None = None
        self.receiving: Receiving | None = None

    @property
    def leader(self) -> str:
        return self.core.leader

    @property
    def behind(self) -> bool:
        """Has a leader committed what was not applied here yet, or is it not known, because nobody leads?"""
        return self.applied < self.core.leader_commit or not self.core.leader

    @property
    def informed(self) -> bool:
        """Is everything applied here that was committed before this node started, or before it lost touch?"""
        core = self.core
        # What was committed before is followed by an entry of the leader's own term.
        if not core.leader or core.log.term_at(self.applied) != core.term:
            return False
        return core.leadership is not None or self.applied >= core.leader_commit

    @property
    def is_leader(self) -> bool:
        return self.core.leadership is not None

    @property
    def log_bytes(self) -> int:
        """About the bytes of the log that a follower could still be sent."""
        return self.since_bytes + self.snapshot_log_bytes

    # -- batches ---------------------------------------------------------------------------------------------------

    def submit(self, payload: bytes) -> None:
        """Send a batch, encoded with `next_number`, on its way."""
        self.flights = _grown(self.flights, [Flight(self.next_number, payload)])
        self.next_number += 1
        self.replicas.flight_bytes += len(payload)
        if self.sent_to == (self.core.leader, self.core.term) and self.core.leader:
            self._send(payload)
        self.replicas.touch(self)

    def _send(self, payload: bytes) -> None:
        leader = self.core.leader
        if leader == self.replicas.node:
            self.take(payload)
        else:
            self.replicas.send(leader, frames.batch(self.id, payload))

    def take(self, payload: bytes) -> None:
        """A batch has reached the leader."""
        self.inbox = _grown(self.inbox, [payload])
        self.replicas.touch(self)

    def resend(self) -> None:
        """There is a leader to send to that has not got all flights yet."""
        leader = self.core.leader
        if not leader or (leader != self.replicas.node and not self.replicas.linked(leader)):
            self.sent_to = ("", 0)
            return
        self.sent_to = (leader, self.core.term)
        for flight in self.flights:
            self._send(flight.payload)

    def wake(self) -> None:
        """What was gathered may become an entry."""
        self.wakes = False
        if self.inbox:
            self.replicas.touch(self)

    def propose(self) -> None:
        """The leader makes the batches of this turn one entry, or a few."""
        inbox, self.inbox = self.inbox, ()
        if not self.is_leader or not isinstance(inbox, list):
            # Their nodes send them to the new leader as soon as they know of it.
            return
        term = self.core.term
        if term not in self.proposed_terms:
            done = self.core.log.term_at(self.applied)
            self.proposed_terms = (*(led for led in self.proposed_terms if led >= done), term)
        limit, now = self.replicas.options.entry_bytes, self.replicas.clock.monotonic_ms()
        self.proposed_ms, self.crowded = now, len(inbox) > 1
        if self.machine.single:
            limit = 0
        at = 0
        while at < len(inbox):
            size, end = len(inbox[at]), at + 1
            while end < len(inbox) and size + len(inbox[end]) <= limit:
                size += len(inbox[end])
                end += 1
            try:
                self.core.propose(self.machine.encode(inbox[at:end]))
            except TransferInProgress:
                # They go out when the transfer is given up; a new leader gets them from their nodes.
                self.inbox = inbox[at:]
                return
            at = end

    def proposed(self, index: int) -> bool:
        """True if this process, as leader, proposed the entry with this index, which is being applied."""
        return self.core.log.term_at(index) in self.proposed_terms

    # -- applying --------------------------------------------------------------------------------------------------

    def apply(self, entries: tuple[Entry, ...]) -> None:
        machine = self.machine
        for index, _, kind, data in entries:
            self.since_bytes += len(data) + ENTRY_OVERHEAD
            if kind == NORMAL:
                machine.apply(index, data)
            elif data == PASSED_OVER:
                machine.passed_over(index)
            else:
                machine.passed(index)
                if kind == MEMBERS:
                    machine.members_changed(self.core.members)
            self.applied = index
        machine.settled()
        self.forget_applied()
        released = machine.released()
        if released:
            self.released = _grown(self.released, released)

    def forget_applied(self) -> None:
        """Forget the batches of this node that were applied."""
        flights = self.flights
        if not isinstance(flights, list):
            return
        last_applied = self.machine.last_own_batch()
        count = 0
        while count < len(flights) and flights[count].number <= last_applied:
            self.replicas.flight_bytes -= len(flights[count].payload)
            count += 1
        if count < len(flights):
            del flights[:count]
        else:
            self.flights = ()

    def failed(self, error: Exception) -> None:
        """What this member knows cannot be trusted any more."""
        self.machine.failed(error)

    def watch_leader(self) -> None:
        """Find out whether the leader changed, and do what that asks for."""
        core = self.core
        if self.sent_to != (core.leader, core.term) or not core.leader:
            self.resend()
        leading = self.is_leader
        if leading is not self.leading:
            self.leading = leading
            self.replicas.led_count += 1 if leading else -1
            self.machine.leader_changed()
        self.machine.settled()


def _grown(items: list[T] | tuple[()], more: list[T]) -> list[T]:
    """Return the items with more of them behind: the same list, if they are one already."""
    if isinstance(items, list):
        items += more
        return items
    return more
