"""The turn: everything that the node does between two waits of the event loop.

    receive    A client, a link, a timer or a finished commit brings work. Commands go to the hosts of
               queues.
    apply      Every host with pending commands applies them as one batch. Clients with an answer continue.
    replicate  Every Raft group with something to do writes, sends and applies. Back to apply until nothing is
               left; then the frames for other nodes are sent.
    write      Submitted writes become the next commit, if no commit is in progress.
    send       Confirms go to the outboxes, and the outboxes are sent to the clients' sockets.

One node and three run the same phases. A caller begins a turn with `run` or `receive`; a task of the edge
that changes a host outside of a turn asks for one by scheduling that host.

A turn is short, for any input from clients. Long work checks from time to time whether the turn is overdue,
and leaves its rest for later: a session leaves frames, the apply phase leaves hosts of queues that clients
have scheduled, a Raft group leaves entries to be applied. The driver's turns continue that work in its order,
and turns of other clients come in between. Changes that belong together reach the disk together, though they
take several turns (`hold` of persistence.commits.commit): a large transaction, and a dead letter to many
queues with the removal from its source.

quorum_queue.boundary decides what an exception ends; the turn calls sessions, hosts and groups through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final, Protocol

from quorum_queue.boundary import Boundary, Unit
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run
from quorum_queue.ports import Sink


class Commits(Protocol):
    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None:
        """Commit the submitted writes."""


class TurnSession(Unit, Protocol):
    def receive(self, data: bytes) -> None:
        """Handle bytes from the client. Queues apply the resulting commands in the apply phase."""

    def room(self) -> None:
        """The client has taken answers: continue with the rest of the last read."""

    def go_on_later(self) -> None:
        """The turn is too short for the work that the session caused: read nothing more until it is done."""

    def go_on(self) -> None:
        """The awaited answer of the session has arrived."""


class Scheduled(Unit, Protocol):
    """Has work for the apply phase; usually the host of a queue."""

    def apply_pending(self) -> None: ...


class Gatherer(Protocol):
    """Collects frames for other nodes over a turn."""

    def flush(self) -> None: ...


class Widened(Unit, Protocol):
    """Shares room for deliveries among consumers: the window of a channel."""

    def offer_room(self) -> None:
        """Let queues that wait for room deliver more."""


class Confirms(Protocol):
    """Collects the answers to a publisher over a turn."""

    def flush(self) -> None: ...


class Sender(Protocol):
    """Has bytes for a client's socket."""

    def flush(self) -> None: ...


class Peers(Protocol):
    """The other nodes, and the Raft groups that this node shares with them."""

    def turn_begins(self) -> None: ...

    @property
    def dirty(self) -> object:
        """True if any group has something to do."""

    def take_dirty(self) -> Iterable[Unit]: ...

    def carry_out(self, group: Any, turn: Turn) -> None:
        """Do what a group asks for, as far as the turn has time."""

    def touch_again(self, groups: Iterable[Any]) -> None:
        """These groups still have something to do."""

    def write(self) -> None:
        """Submit the writes of the groups."""

    def flush(self) -> None:
        """Send the frames of this turn."""


class NoPeers:
    """Stands for the other nodes on a node without a cluster."""

    dirty = False

    def turn_begins(self) -> None: ...

    def take_dirty(self) -> Iterable[Unit]:
        return ()

    def carry_out(self, group: Any, turn: Turn) -> None: ...

    def touch_again(self, groups: Iterable[Any]) -> None: ...

    def write(self) -> None: ...

    def flush(self) -> None: ...


#: Number of turns after which the collector looks for garbage among new objects.
TIDY_TURNS: Final = 64
#: A turn is full when this many queues wait to be applied, or this many messages wait for them.
SCHEDULED_MAX: Final = 64


def _no_time() -> float:
    """The clock of turns that are never overdue."""
    return 0.0


class Turn:
    """The work to do before the node waits again. All calls are on the loop's thread."""

    __slots__ = (
        "_answered",
        "_applying",
        "_commits",
        "_confirms",
        "_gatherers",
        "_lasts_s",
        "_left",
        "_left_groups",
        "_peers",
        "_replicates_until",
        "_running",
        "_senders",
        "_tidy",
        "_untidy",
        "_wake",
        "_widened",
        "alone",
        "contain",
        "cut",
        "ends",
        "failed",
        "now",
        "scheduled",
    )

    def __init__(
        self,
        commits: Commits,
        peers: Peers,
        wake: Callable[[], None],
        boundary: Boundary | None = None,
        *,
        now: Callable[[], float] = _no_time,
        lasts_s: float = inf,
        tidy: Callable[[], object] | None = None,
    ) -> None:
        """`wake` lets a task of the edge run an empty turn soon. `boundary` is the node's. A turn is overdue
        after `lasts_s`, by the clock `now`. `tidy` looks for garbage among young objects.
        """
        self._commits = commits
        self._peers = peers
        self._wake = wake
        boundary = boundary or Boundary()
        self.contain, self.failed = boundary.contain, boundary.failed
        self.now, self._lasts_s = now, lasts_s
        self._tidy = tidy or _nothing
        #: Turns since `tidy` was called.
        self._untidy = 0
        #: When the turn is overdue.
        self.ends = inf
        #: True if queues may apply commands of the current session at once, because it does not share the
        #: turn.
        self.alone = True
        #: True if this turn has left work for later.
        self.cut = False
        #: Work that earlier turns left, in order: the calls that continue it.
        self._left: dict[Unit, Callable[[], object]] = {}
        #: Raft groups that earlier turns left, in order.
        self._left_groups: dict[Unit, None] = {}
        #: Time from which the current turn leaves further groups for later; 0 before its first group.
        self._replicates_until = 0.0
        self._running = self._applying = False
        #: Hosts with pending commands. Code that runs within a turn may add them here without `schedule`.
        self.scheduled: dict[Scheduled, None] = {}
        #: Sessions that have got the answer that they waited for.
        self._answered: dict[TurnSession, None] = {}
        self._gatherers: dict[Gatherer, None] = {}
        self._widened: dict[Widened, None] = {}
        self._confirms: dict[Confirms, None] = {}
        self._senders: dict[Sender, None] = {}

    # -- scheduling work
    # -------------------------------------------------------------------------------------------

    def schedule(self, host: Scheduled) -> None:
        """Apply the pending commands of a host in this turn, or in one soon."""
        self.scheduled[host] = None
        if not self._running:
            self._wake()

    def answered(self, session: TurnSession) -> None:
        """Let a session continue after the method that it waited with."""
        self._answered[session] = None
        if not self._running:
            self._wake()

    def gather(self, gatherer: Gatherer) -> None:
        """Call `flush` before the frames for other nodes are sent."""
        self._gatherers[gatherer] = None
        if not self._running:
            self._wake()

    def widened(self, window: Widened) -> None:
        """There may be more room for deliveries. It is offered to queues once in a turn, after the queues
        that made the room were applied.
        """
        self._widened[window] = None
        if not self._running:
            self._wake()

    def confirm(self, confirms: Confirms) -> None:
        """Answer a publisher in this turn."""
        self._confirms[confirms] = None
        if not self._running:
            self._wake()

    def send(self, sender: Sender) -> None:
        """Send bytes to a client in this turn."""
        self._senders[sender] = None
        if not self._running:
            self._wake()

    def forget(self, session: TurnSession, sender: Sender) -> None:
        """A connection has ended."""
        self._answered.pop(session, None)
        self._left.pop(session, None)
        self._senders.pop(sender, None)

    # -- what takes too long ---------------------------------------------------------------------------------

    def overdue(self) -> bool:
        """True if the turn has lasted long enough: leave further work for later."""
        return self.now() > self.ends

    def is_full(self, times: int = 1) -> bool:
        """True if the turn is overdue, or will be when it has applied the scheduled queues, each of which was
        handed messages `times` times. For callers that hand messages to many queues, which takes less time
        than applying them.
        """
        return len(self.scheduled) * times >= SCHEDULED_MAX or self.overdue()

    def later(self, unit: Unit, call: Callable[[], object]) -> None:
        """Make this call in a turn that comes soon, after all work that was left before. Several calls of one
        unit become one.
        """
        self._left.setdefault(unit, call)
        self.cut = True
        if not self._running:
            self._wake()

    @property
    def behind(self) -> bool:
        """True if work was left: another turn should come soon, after the turns of others."""
        return bool(self._left or self._left_groups)

    def catch_up(self) -> None:
        """Continue the work that was left, until the turn is overdue. The driver's turns begin with this."""
        if self._left_groups:
            groups, self._left_groups = self._left_groups, {}
            self._peers.touch_again(groups)
        left, self._left = self._left, {}
        waiting = iter(left.items())
        for unit, call in waiting:
            self.contain(unit, call)
            # A queue may have scheduled another one.
            self.apply(whole=True)
            if self.overdue():
                break
        self._left = dict(waiting) | self._left

    def apply_first(
        self, hosts: dict[Scheduled, None], behind: dict[Scheduled, None], spent_s: float
    ) -> None:
        """Apply these scheduled hosts before all others, then those in `behind`. All but the first share half
        a turn less `spent_s`; if no time is left, one of them is applied and the rest is left.
        """
        if len(hosts) < len(self.scheduled):
            behind = {host: None for host in self.scheduled if host not in hosts} | behind
        self.scheduled = hosts
        self.apply()
        self.ends = min(self.ends, self.now() + self._lasts_s / 2 - spent_s)
        self.scheduled = behind
        self.apply()

    def run_half(self, call: Callable[[], object]) -> float:
        """Make this call with half a turn of time; return how long it took, s."""
        began, ends = self.now(), self.ends
        self.ends = min(ends, began + self._lasts_s / 2)
        call()
        self.ends = ends
        return self.now() - began

    def extend(self) -> None:
        """A turn that many clients share may last as long again for each of them."""
        self.ends = self.now() + self._lasts_s

    # -- receive ---------------------------------------------------------------------------------------------

    def receive(self, session: TurnSession, data: bytes) -> None:
        """Run one turn that begins with bytes from a client."""
        self.run(self.take, session, data)

    def take(self, session: TurnSession, data: bytes, alone: bool = True) -> None:
        """Within a turn, let a session receive; without data, continue with the rest of its last read. If it
        is `alone`, queues apply its commands at once, as far as the turn has time; otherwise they apply those
        of several sessions in one run.
        """
        others, self.cut = self.cut, False
        self.alone = alone
        try:
            if data:
                session.receive(data)
            else:
                session.room()
        except Exception as error:
            self.failed(session, error)
        self.alone = True
        if alone:
            self.apply()
        if self.cut:
            self.contain(session, session.go_on_later)
        self.cut = self.cut or others

    def part(self, call: Callable[[], object]) -> bool:
        """Make this call within the turn; return False if it has left work for later."""
        others, self.cut = self.cut, False
        call()
        whole = not self.cut
        self.cut = self.cut or others
        return whole

    def take_scheduled(self) -> dict[Scheduled, None]:
        """Return the scheduled hosts; what is scheduled from now on is apart from them."""
        scheduled, self.scheduled = self.scheduled, {}
        return scheduled

    def last_scheduled(self) -> Scheduled | None:
        """Return the host that was scheduled last; those scheduled earlier are applied before it."""
        return next(reversed(self.scheduled), None)

    def is_left(self, unit: Unit) -> bool:
        """True if this host is among the work that turns have left."""
        return unit in self._left

    def run(self, receive: Callable[..., object], *arguments: Any) -> None:
        """Run one turn that begins with this call. If a turn is running, only make the call."""
        if self._running:
            receive(*arguments)
            return
        self._running = True
        self.ends = self.now() + self._lasts_s
        self._replicates_until = 0.0
        self.cut = False
        self._commits.turn_begins()
        self._peers.turn_begins()
        try:
            receive(*arguments)
            self._finish()
        finally:
            self._running = False
        # Python's collector runs when enough more objects were made than freed. Under a steady load that
        # takes long, and then it has to look at all young objects.
        self._untidy += 1
        if self._untidy == TIDY_TURNS or self.cut:
            self._untidy = 0
            self._tidy()
        if self.cut:
            self._wake()

    def end(self) -> None:
        """Run a turn without anything to receive, for work that was scheduled outside of turns."""
        self.run(_nothing)

    def deliver(self, sink: Sink, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """Hand a run to a consumer's sink. An error here fails the sink, not the queue."""
        try:
            sink.deliver(consumer, run, first_id)
        except Exception as error:
            self.failed(sink, error)

    # -- the other phases ------------------------------------------------------------------------------------

    def _finish(self) -> None:
        while True:
            while self._answered or self.scheduled or self._widened or self._peers.dirty:
                self._go_on()
                self.apply()
                self._offer_room()
                self._replicate()
            self._send_to_peers()
            self._peers.write()
            self._commits.turn_ends()
            self._send_to_clients()
            if not (
                self._answered
                or self.scheduled
                or self._widened
                or self._confirms
                or self._senders
                or self._peers.dirty
            ):
                return
            # A client has taken bytes and has room for more.
            self._commits.turn_begins()
            self._peers.turn_begins()

    def _go_on(self) -> None:
        while self._answered:
            session, _ = self._answered.popitem()
            self.contain(session, session.go_on)

    def apply(self, *, whole: bool = False) -> None:
        """Apply pending commands, and those that result from them. Unless `whole`, leave work that the turn
        has no time for.

        Methods that answer with counts call this, too.
        """
        if self._applying:
            return
        self._applying = True
        try:
            while self.scheduled:
                scheduled, self.scheduled = self.scheduled, {}
                hosts = iter(scheduled)
                for host in hosts:
                    try:
                        host.apply_pending()
                    except Exception as error:
                        self.failed(host, error)
                    if not whole and self.now() > self.ends:
                        for left in hosts:
                            self.later(left, left.apply_pending)
                # Hosts that were scheduled meanwhile belong to this turn.
                whole = True
        finally:
            self._applying = False

    def _offer_room(self) -> None:
        widened, self._widened = self._widened, {}
        for window in widened:
            if self.cut:
                # After the queues that were left for later: their acks may make the room.
                self.later(window, window.offer_room)
                continue
            try:
                window.offer_room()
            except Exception as error:
                self.failed(window, error)

    def _replicate(self) -> None:
        """Carry out what groups ask for. The phase has its own time limit, because thousands of groups that
        start or elect a leader would delay all clients; earlier phases of a long turn do not use it up.
        """
        peers = self._peers
        if not peers.dirty:
            return
        if not self._replicates_until:
            self._replicates_until = self.now() + self._lasts_s
        groups = iter(peers.take_dirty())
        for group in groups:
            try:
                peers.carry_out(group, self)
            except Exception as error:
                self.failed(group, error)
            if self.now() > self._replicates_until:
                break
        for group in groups:
            self._left_groups[group] = None
            self.cut = True

    def _send_to_peers(self) -> None:
        while self._gatherers:
            gatherer, _ = self._gatherers.popitem()
            gatherer.flush()
        self._peers.flush()

    def _send_to_clients(self) -> None:
        confirms, self._confirms = self._confirms, {}
        for answers in confirms:
            answers.flush()
        senders = self._senders
        while senders:
            sender, _ = senders.popitem()
            sender.flush()


def _nothing() -> None: ...


__all__ = [
    "Commits",
    "Confirms",
    "Gatherer",
    "NoPeers",
    "Peers",
    "Scheduled",
    "Sender",
    "TurnSession",
    "Turn",
    "Unit",
]
