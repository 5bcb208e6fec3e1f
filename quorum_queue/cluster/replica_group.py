"""One Raft group on this node: the core, its state machine, and the batches of this node on their way.

The node that makes a batch numbers it. It sends the batch to the leader, and sends it again, with all later
ones, whenever there is a new leader or a new session with it, until its own member has applied the batch; the
state machine takes each number once and in order. So a change of leader neither loses nor repeats nor
reorders the commands of a client.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from quorum_queue.cluster import frames, read_index
from quorum_queue.cluster.kept_entries import KeptEntries
from quorum_queue.ports import Origin
from quorum_queue.raft.core import Raft
from quorum_queue.raft.errors import TransferInProgress
from quorum_queue.raft.members import Members
from quorum_queue.raft.messages import MEMBERS, NORMAL, PASSED_OVER, Entry

if TYPE_CHECKING:
    from quorum_queue.cluster.read_index import Reads
    from quorum_queue.cluster.replicas import Replicas
    from quorum_queue.cluster.snapshots.transfer import Receiving, Sending


T = TypeVar("T")

#: Bytes counted for each entry of the log beside its data.
ENTRY_OVERHEAD: Final = 64


#: Returns whether it will call back, now or later.
Foresee = Callable[[int, bytes, Callable[[], None]], bool]


class StateMachine(Protocol):
    """The state machine of a group.

    `apply` changes its state deterministically; its effects on this node may differ.
    """

    #: Whether each batch needs an entry of its own.
    single: bool

    @property
    def title(self) -> str:
        """The name of the queue or the topology for logs."""

    @property
    def awaited(self) -> bool:
        """True if a client of this node waits for changes by other nodes."""

    @property
    def keeps(self) -> KeptEntries:
        """What it still needs of applied entries; NOTHING_KEPT if its snapshot has everything."""

    @property
    def foresee(self) -> Foresee | None:
        """Prepares appended entries, which may take longer than a turn: called with index, data, and the
        function to call afterwards.
        """

    def encode(self, batches: list[bytes]) -> bytes:
        """Make an entry of the batches of nodes. Only called on a leader."""

    def apply(self, index: int, data: bytes) -> Callable[[], object] | None:
        """Apply an entry. Return None if that is done. Otherwise its rest takes more turns, at whose end the
        machine calls the group's `entry_applied`; return a function that does all of it at once.
        """

    def passed(self, index: int) -> None:
        """An entry without a command for the machine was applied."""

    def passed_over(self, index: int) -> None:
        """An empty entry replaced one that no member can read any more."""

    def entries_applied(self) -> None:
        """Entries were applied, and there are no more for now."""

    def covered(self, applied: int) -> int:
        """Return the entry that `snapshot` reaches: the last one applied, or
        the last one stored elsewhere.
        """

    def snapshot_in_parts(self, then: Callable[[bytes], None]) -> None:
        """Call `then`, now or in a later turn, with a snapshot of the moment of this call."""

    def fill(self, state: bytes, peer: str, wanted: Callable[[], bool], then: Callable[[], None]) -> None:
        """Read a state from `peer`, and fetch the data that it refers to and that this node lacks, as long as
        it is wanted; then call `then`.
        """

    @property
    def fills_itself(self) -> bool:
        """True if a member that gets a snapshot needs no entries below it."""

    def come_to(self, state: bytes, then: Callable[[], None]) -> None:
        """Do what of `restore` takes longer than a turn, in parts; then call `then`, which restores. The
        state is durable, and nothing is applied meanwhile.
        """

    def restore(self, state: bytes) -> None: ...

    def last_own_batch(self) -> int:
        """The last batch of this node (of its present incarnation) that was applied."""

    def leader_changed(self) -> None: ...

    def members_changed(self, members: Members) -> None: ...

    def failed(self, error: Exception) -> None:
        """An entry could not be applied, or the log contradicts the leader's: the group must stop on this
        node.
        """

    def closed(self) -> None:
        """The group is closed on this node, and nothing of it is under way: drop the references to it."""


class Flight(NamedTuple):
    """A batch of this node that its member has not applied yet."""

    number: int
    payload: bytes
    #: Called with the number when the leader has it and all earlier ones on its disk; and the ticket by which
    #: the leader knows it.
    early: Callable[[int], None] | None = None
    ticket: int = 0


class Unreached(NamedTuple):
    """Messages on a majority, whose publisher waits until all members in reach have them."""

    #: Index of their entry.
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    origin: Origin
    first: int
    last: int
    #: True if the queue refused them; the refusal waits for the answers of earlier messages.
    refused: bool = False

    def answer(self, *, confirm: bool) -> None:
        answer = self.origin.confirmed if confirm and not self.refused else self.origin.refused
        answer(self.first, self.last)


class EarlyConfirm(NamedTuple):
    """A batch in the leader's inbox whose node wants to know when it is on this disk."""

    position: int
    node: str
    ticket: int


class Unsynced(NamedTuple):
    """Such a batch in an entry."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    term: int
    node: str
    ticket: int


class Led(NamedTuple):
    """Who led a group from a moment on, as this node knows it."""

    #: Of the wall clock.
    at_ms: int
    term: int
    #: Empty if there was no leader, or this node did not know it.
    leader: str


#: Leaders that a group remembers.
LEADERS_MAX: Final = 8
NOBODY: Final = Led(0, 0, "")


class Group:
    __slots__ = (
        "applied",
        "asked",
        "askers",
        "cleaned",
        "complete",
        "core",
        "crowded",
        "early",
        "flights",
        "foreseeing",
        "id",
        "inbox",
        "leaders",
        "leading",
        "machine",
        "next_number",
        "proposed_ms",
        "proposed_terms",
        "reads",
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
        "told",
        "unapplied",
        "unreached",
        "unsynced",
        "wakes",
    )

    def __init__(
        self, replicas: Replicas, group_id: int, core: Raft, machine: StateMachine, *, applied: int
    ) -> None:
        self.id = group_id
        self.replicas = replicas
        self.core = core
        self.machine = machine
        #: Batches of this turn from all nodes, for the next entry. All empty lists share one object, because
        #: there may be thousands of idle groups.
        self.inbox: list[bytes] | tuple[()] = ()
        self.early: list[EarlyConfirm] | tuple[()] = ()
        self.unsynced: list[Unsynced] | tuple[()] = ()
        #: Unreached messages by the index of their entry.
        self.unreached: list[Unreached] | tuple[()] = ()
        #: The asked leader, its term, and the highest index in the question.
        self.asked = ("", 0, 0)
        #: As the leader: for nodes that have asked, the first and last index that they wait for.
        self.askers: dict[str, tuple[int, int]] | None = None
        self.flights: list[Flight] | tuple[()] = ()
        #: Callers that wait until this member has caught up; see read_index.
        self.reads: Reads | None = None
        #: When the last entry was proposed, and whether it had more than one batch.
        self.proposed_ms = 0
        #: Terms in which this process led and proposed entries, without terms before that of the last applied
        #: entry.
        self.proposed_terms: tuple[int, ...] = ()
        self.crowded = False
        #: True if a timer is set for the next entry.
        self.wakes = False
        self.next_number = 1
        #: Leader and term that the flights were sent to.
        self.sent_to = ("", 0)
        self.leading = False
        #: The last leaders, the newest one last.
        self.leaders: tuple[Led, ...] = ()
        #: How many news it knows; see Replicas.tell.
        self.told = 0
        self.applied = applied
        self.snapshot_index = applied
        #: Up to this index the log holds only entries with bodies of the queue.
        self.cleaned = applied
        self.snapshot_bytes = 0
        #: Bytes of entries applied since the last snapshot.
        self.since_bytes = 0
        #: Bytes of entries below the snapshot that are kept for a follower.
        self.snapshot_log_bytes = 0
        #: True while a snapshot is being made or written.
        self.snapshotting = False
        #: Entries that are no longer needed, to be deleted with the next snapshot.
        self.released: list[range] | tuple[()] = ()
        self.sending: dict[str, Sending] | None = None
        self.receiving: Receiving | None = None
        #: The entry that is being applied in several turns, with committed ones after it; and what does the
        #: rest of it at once.
        self.unapplied: tuple[Entry, ...] = ()
        self.complete: Callable[[], object] | None = None
        #: Number of entries and snapshots under preparation, and entries that take several turns: until it is
        #: 0, no further entry is applied.
        self.foreseeing = 0

    def snapshot(self, then: Callable[[bytes], None]) -> None:
        """Call `then` with the state at the entry that is `covered` now, at once or in a later turn."""
        self.machine.snapshot_in_parts(then)

    @property
    def leader(self) -> str:
        return self.core.leader

    @property
    def behind(self) -> bool:
        """True if there may be committed entries that are not applied here yet: the leader reports them, or
        no leader is known.
        """
        return self.applied < self.core.leader_commit or not self.core.leader

    @property
    def informed(self) -> bool:
        """True if all entries are applied that were committed before this node started, or lost contact."""
        core = self.core
        # An entry of the leader's own term follows the entries that were committed before.
        if not core.leader or core.log.term_at(self.applied) != core.term:
            return False
        return core.leadership is not None or self.applied >= core.leader_commit

    @property
    def is_leader(self) -> bool:
        return self.core.leadership is not None

    @property
    def log_bytes(self) -> int:
        """Estimated bytes of the log that the leader could still send to a follower."""
        return self.since_bytes + self.snapshot_log_bytes

    # -- batches ---------------------------------------------------------------------------------------------

    def submit(self, payload: bytes, early: Callable[[int], None] | None = None) -> None:
        """Send a batch that was encoded with `next_number`; see Flight for `early`."""
        ticket = 0 if early is None else self.replicas.ticket()
        flight = Flight(self.next_number, payload, early, ticket)
        self.flights = _grown(self.flights, [flight])
        self.next_number += 1
        self.replicas.flight_bytes += len(payload)
        if self.sent_to == (self.core.leader, self.core.term) and self.core.leader:
            self._send(flight)
        self.replicas.touch(self)

    def _send(self, flight: Flight) -> None:
        leader, ticket = self.core.leader, flight.ticket
        if leader == self.replicas.node:
            self.take(flight.payload, leader if ticket else "", ticket)
        elif ticket:
            self.replicas.send(leader, frames.early(self.id, self.core.term, ticket, flight.payload))
        else:
            self.replicas.send(leader, frames.batch(self.id, flight.payload))

    def take(self, payload: bytes, early: str = "", ticket: int = 0) -> None:
        """A batch has reached the leader. `early` names a node that wants to know when the batch is on this
        disk.
        """
        if early:
            self.early = _grown(self.early, [EarlyConfirm(len(self.inbox), early, ticket)])
        self.inbox = _grown(self.inbox, [payload])
        self.replicas.touch(self)

    def resend(self) -> None:
        """Send all flights to a leader that has not got all of them yet."""
        leader = self.core.leader
        if not leader or (leader != self.replicas.node and not self.replicas.linked(leader)):
            self.sent_to = ("", 0)
            return
        self.sent_to = (leader, self.core.term)
        for flight in self.flights:
            self._send(flight)

    def link_changed(self, peer: str) -> None:
        """Flights to this peer may be lost, also if it is the leader again before `watch_leader` looks."""
        if self.sent_to[0] == peer:
            self.sent_to = ("", 0)
            self.replicas.touch(self)

    def wake(self) -> None:
        """The gathered batches may become an entry."""
        self.wakes = False
        if self.inbox:
            self.replicas.touch(self)

    def propose(self) -> None:
        """The leader makes the batches of this turn one entry, or a few."""
        inbox, self.inbox = self.inbox, ()
        early, self.early = self.early, ()
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
                index = self.core.propose(self.machine.encode(inbox[at:end]))
            except TransferInProgress:
                # The batches become an entry if the transfer is given up; a new leader gets them from their
                # nodes.
                self.inbox = inbox[at:]
                if early:
                    self.early = [
                        each._replace(position=each.position - at) for each in early if each.position >= at
                    ]
                return
            if early:
                entered = [each for each in early if at <= each.position < end]
                more = [Unsynced(index, term, each.node, each.ticket) for each in entered]
                self.unsynced = _grown(self.unsynced, more)
            at = end

    # -- levels of confirmation ------------------------------------------------------------------------------

    def tell_synced(self) -> None:
        """As the leader: tell nodes which of their batches are on this disk."""
        core, unsynced = self.core, self.unsynced
        if not self.is_leader:
            self.unsynced = ()
            return
        stable, count = core.log.stable_index, 0
        told: dict[str, int] = {}
        while count < len(unsynced) and unsynced[count].index <= stable:
            if unsynced[count].term == core.term:
                told[unsynced[count].node] = unsynced[count].ticket
            count += 1
        self.unsynced = list(unsynced[count:]) or ()
        for node, ticket in told.items():
            if node == self.replicas.node:
                self.synced(ticket)
            else:
                self.replicas.send(node, frames.synced(self.id, core.term, ticket))

    def synced(self, ticket: int) -> None:
        """The leader has this node's batches up to this one on its disk."""
        for flight in reversed(self.flights):
            if flight.early is not None and flight.ticket <= ticket:
                flight.early(flight.number)
                return

    def when_all(self, index: int, origin: Origin, first: int, last: int, *, refused: bool = False) -> None:
        """Answer for messages of the applied entry at this index when all members in reach have it."""
        self.unreached = _grown(self.unreached, [Unreached(index, origin, first, last, refused)])
        self.replicas.touch(self)

    def reached(self, index: int) -> None:
        """All members in reach have the log up to this index."""
        unreached, count = self.unreached, 0
        while count < len(unreached) and unreached[count].index <= index:
            count += 1
        if count:
            self.unreached = list(unreached[count:]) or ()
            for each in unreached[:count]:
                each.answer(confirm=True)

    def show_majority(self, peer: str) -> None:
        """As the leader: let a member that has stopped see whether the others commit entries without it."""
        if self.core.leadership is not None:
            with suppress(TransferInProgress):
                self.core.leadership.show_majority(peer)
            self.replicas.touch(self)

    def answer_unreached(self, *, confirm: bool) -> None:
        """Answer now: this node will not learn any more whether all members have these messages."""
        unreached, self.unreached = self.unreached, ()
        for each in unreached:
            each.answer(confirm=confirm)

    def asks(self, node: str, low: int, high: int) -> None:
        """As the leader: note that a node wants to know when all members in reach have the log up to these
        indexes.
        """
        askers = self.askers or {}
        askers[node] = low, high
        self.askers = askers
        self.replicas.touch(self)

    def forget_askers(self, peer: str) -> None:
        """The link to this node broke: it will ask again."""
        if self.askers is not None:
            self.askers.pop(peer, None)
        if self.asked[0] == peer:
            self.asked = ("", 0, 0)

    def look_for_all(self) -> None:
        """Find out, or ask the leader, how far all members in reach have the log."""
        leadership, askers = self.core.leadership, self.askers
        if leadership is None:
            self.askers = None
            if self.unreached:
                self._ask_for_all(self.unreached[0].index, self.unreached[-1].index)
            return
        index = leadership.reached()
        self.reached(index)
        if askers is None:
            return
        for node, (low, high) in list(askers.items()):
            if index >= low:
                self.replicas.send(node, frames.reached(self.id, index))
                del askers[node]
                if index < high:
                    askers[node] = index + 1, high

    def _ask_for_all(self, low: int, high: int) -> None:
        core = self.core
        wanted = core.leader, core.term, high
        if core.leader and wanted != self.asked and self.replicas.linked(core.leader):
            self.asked = wanted
            self.replicas.send(core.leader, frames.await_all(self.id, low, high))

    def catch_up(self, done: Callable[[bool], None]) -> None:
        read_index.begin(self, done)

    def proposed(self, index: int) -> bool:
        """True if this process, as leader, proposed the entry with this index, which is being applied."""
        return self.core.log.term_at(index) in self.proposed_terms

    # -- applying --------------------------------------------------------------------------------------------

    def apply(self, entries: tuple[Entry, ...]) -> None:
        machine = self.machine
        for at, (index, _, kind, data) in enumerate(entries):
            self.since_bytes += len(data) + ENTRY_OVERHEAD
            if kind == NORMAL:
                self.complete = machine.apply(index, data)
                if self.complete is not None:
                    self.unapplied = entries[at:]
                    self.apply_nothing()
                    return
            elif data == PASSED_OVER:
                machine.passed_over(index)
            else:
                machine.passed(index)
                if kind == MEMBERS:
                    machine.members_changed(self.core.members)
            self.applied = index
        machine.entries_applied()
        self.forget_applied()
        released = machine.keeps.released()
        if released:
            self.released = _grown(self.released, released)

    def needs(self, index: int) -> bool:
        """Return whether the log, or a body, still needs this entry."""
        return index > self.core.log.snapshot_index or self.machine.keeps.holds(index)

    def entry_applied(self) -> None:
        """The entry that took several turns is applied: continue with those after it."""
        entries = self.unapplied
        self.drop_unapplied()
        self.applied = entries[0].index
        self.apply(entries[1:])

    def drop_unapplied(self) -> None:
        """Forget the entry that is being applied, and those that wait for it."""
        if self.unapplied:
            self.unapplied, self.complete = (), None
            self.apply_again()

    def complete_entry(self) -> None:
        """Be in the state of an entry: do at once what is left of the one that is being applied."""
        while self.complete is not None:
            self.complete()

    def apply_nothing(self) -> None:
        """Apply no entries until `apply_again` is called."""
        self.foreseeing += 1
        self.core.applies_later = True

    def apply_again(self) -> None:
        self.foreseeing -= 1
        self.core.applies_later = self.foreseeing > 0
        self.replicas.touch(self)

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
        """The state of this member cannot be trusted any more."""
        self.machine.failed(error)

    def watch_leader(self) -> None:
        """Find out whether the leader changed, and react to that."""
        core = self.core
        led = self.leaders[-1] if self.leaders else NOBODY
        if core.leader != led.leader or (core.leader and core.term != led.term):
            now = Led(self.replicas.clock.wall_ms(), core.term, core.leader)
            self.leaders = (*self.leaders[1 - LEADERS_MAX :], now)
        if self.sent_to != (core.leader, core.term) or not core.leader:
            self.resend()
        leading = self.is_leader
        if leading is not self.leading:
            self.leading = leading
            if not leading:
                self.unsynced, self.askers = (), None
            self.replicas.led_count += 1 if leading else -1
            self.machine.leader_changed()
        self.machine.entries_applied()


def _grown(items: list[T] | tuple[()], more: list[T]) -> list[T]:
    """Return the items with more appended, in the same object if it is a list already."""
    if isinstance(items, list):
        items += more
        return items
    return more
