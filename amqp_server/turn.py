"""The turn: everything that the node does between two waits of the event loop.

    receive    A client, a link, a timer or a finished commit brings something. Commands go to the hosts of queues.
    apply      Every host with pending commands applies them as one batch. Clients whose answer came go on.
    replicate  Every Raft group with something to do writes, sends and applies. Back to apply until nothing is left;
               then the frames for other nodes leave.
    write      What was submitted to the store becomes the next commit, if none is under way.
    send       Confirms go to the outboxes, and what is in the outboxes goes to the clients' sockets.

One node and three run the same phases. A caller begins a turn with `run` or `receive`; a task of the edge
that changes a host outside of a turn asks for one by scheduling that host.

A turn is short, whatever a client sends. Who has much to do asks now and then whether the turn is overdue, and leaves
the rest for later: a session the frames that it has not handled, the phase apply the hosts of queues that clients have
scheduled, a Raft group the entries that are to be applied. The driver's turns go on with what was left, in its order,
and the turns of other clients come in between. What belongs together on the disk gets there together, though it takes
several turns (`hold` of persistence.commit): a large transaction, and a dead letter to many queues with what it settles.

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
    """See persistence.commit."""

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None:
        """Commit what was submitted."""


class TurnSession(Unit, Protocol):
    def receive(self, data: bytes) -> None:
        """Handle what came. Queues do what it causes in the phase apply."""

    def room(self) -> None:
        """Go on with what is left of what came: the client has taken answers."""

    def go_on_later(self) -> None:
        """The turn is too short for what it has caused: read no more before all that is done."""

    def go_on(self) -> None:
        """The session waited for an answer and has it now."""


class Scheduled(Unit, Protocol):
    """Mostly the host of a queue."""

    def apply_pending(self) -> None: ...


class Gatherer(Protocol):
    """Gathers frames for other nodes over a turn."""

    def flush(self) -> None: ...


class Widened(Unit, Protocol):
    """Shares room for deliveries among consumers: the window of a channel."""

    def offer_room(self) -> None:
        """Let queues that wait for room hand out more."""


class Confirms(Protocol):
    """Gathers the answers to a publisher over a turn."""

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
        """Do what a group asks for; what the turn has no time for is left."""

    def touch_again(self, groups: Iterable[Any]) -> None:
        """These have something to do still."""

    def write(self) -> None:
        """Submit what the groups have written."""

    def flush(self) -> None:
        """Send the frames of this turn."""


class NoPeers:
    """A node that stands alone."""

    dirty = False

    def turn_begins(self) -> None: ...

    def take_dirty(self) -> Iterable[Unit]:
        return ()

    def carry_out(self, group: Any, turn: Turn) -> None: ...

    def touch_again(self, groups: Iterable[Any]) -> None: ...

    def write(self) -> None: ...

    def flush(self) -> None: ...


#: Turns after which there is a look for garbage among the objects that have come since.
TIDY_TURNS: Final = 64
#: Queues that a turn may still apply when it is no longer to be given more, and messages that they may get.
SCHEDULED_MAX: Final = 64


def _no_time() -> float:
    """For turns that are never overdue."""
    return 0.0


class Turn:
    """The work to do before the node waits again. All calls on the loop's thread."""

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
        """`wake` lets a task of the edge run an empty turn soon. `boundary` is the node's. A turn is overdue after
        `lasts_s`, by the clock `now`. `tidy` looks for garbage among young objects."""
        self._commits = commits
        self._peers = peers
        self._wake = wake
        boundary = boundary or Boundary()
        self.contain, self.failed = boundary.contain, boundary.failed
        self.now, self._lasts_s = now, lasts_s
        self._tidy = tidy or _nothing
        #: Turns since it was called.
        self._untidy = 0
        #: When the turn is overdue.
        self.ends = inf
        #: Queues may do at once what the present session causes: it does not share the turn with others.
        self.alone = True
        #: This turn has left something for later.
        self.cut = False
        #: What earlier turns had no time for, in its order: how to go on with it.
        self._left: dict[Unit, Callable[[], object]] = {}
        #: Raft groups that they had no time for, in their order.
        self._left_groups: dict[Unit, None] = {}
        #: When the present turn leaves further groups; 0 before its first one.
        self._replicates_until = 0.0
        self._running = self._applying = False
        #: Hosts with pending commands. Within a turn they may be put here without `schedule`.
        self.scheduled: dict[Scheduled, None] = {}
        #: Sessions that waited for an answer and have got it.
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
        """Call `flush` before the frames for other nodes leave."""
        self._gatherers[gatherer] = None
        if not self._running:
            self._wake()

    def widened(self, window: Widened) -> None:
        """There may be more room for deliveries. Queues are told once in a turn, after those that made the room."""
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
        """A connection is over."""
        self._answered.pop(session, None)
        self._left.pop(session, None)
        self._senders.pop(sender, None)

    # -- what takes too long ---------------------------------------------------------------------------------------

    def overdue(self) -> bool:
        """True if the turn has lasted long enough: who has more to do leaves it for later."""
        return self.now() > self.ends

    def is_full(self, times: int = 1) -> bool:
        """True if the turn is overdue, or will be with the queues that are to be applied, each of which was handed so many
        messages: for who hands to many queues what takes them longer."""
        return len(self.scheduled) * times >= SCHEDULED_MAX or self.overdue()

    def later(self, unit: Unit, call: Callable[[], object]) -> None:
        """Call in a turn that comes soon, behind all that was left before. Calls of one unit are one call."""
        self._left.setdefault(unit, call)
        self.cut = True
        if not self._running:
            self._wake()

    @property
    def behind(self) -> bool:
        """True if something was left: another turn should come soon, when others have had theirs."""
        return bool(self._left or self._left_groups)

    def catch_up(self) -> None:
        """Go on with what was left, until the turn is overdue. For a turn that begins with it."""
        if self._left_groups:
            groups, self._left_groups = self._left_groups, {}
            self._peers.touch_again(groups)
        left, self._left = self._left, {}
        waiting = iter(left.items())
        for unit, call in waiting:
            self.contain(unit, call)
            # A queue may have caused something in another one.
            self.apply(whole=True)
            if self.overdue():
                break
        self._left = dict(waiting) | self._left

    def apply_first(
        self, hosts: dict[Scheduled, None], behind: dict[Scheduled, None], spent_s: float
    ) -> None:
        """Apply these, which are scheduled, before the others, and then those `behind`. All but the first have half a turn,
        less `spent_s`: if that is nothing, one of them is applied, and the rest is left."""
        if len(hosts) < len(self.scheduled):
            behind = {host: None for host in self.scheduled if host not in hosts} | behind
        self.scheduled = hosts
        self.apply()
        self.ends = min(self.ends, self.now() + self._lasts_s / 2 - spent_s)
        self.scheduled = behind
        self.apply()

    def run_half(self, call: Callable[[], object]) -> float:
        """Make this call, which has half a turn; return how long it took, s."""
        began, ends = self.now(), self.ends
        self.ends = min(ends, began + self._lasts_s / 2)
        call()
        self.ends = ends
        return self.now() - began

    def extend(self) -> None:
        """The turn of many clients may last as long again: they are as many parts of it as they are."""
        self.ends = self.now() + self._lasts_s

    # -- receive ---------------------------------------------------------------------------------------------------

    def receive(self, session: TurnSession, data: bytes) -> None:
        """Run one turn that begins with bytes from a client."""
        self.run(self.take, session, data)

    def take(self, session: TurnSession, data: bytes, alone: bool = True) -> None:
        """Have a session receive, within a turn; without data, go on with what is left of the last read. If it is
        `alone`, queues do at once what that causes, as far as the turn has time; else they do it in one run for several
        sessions."""
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

    def last_scheduled(self) -> Scheduled | None:
        """Return the queue that was scheduled last. All that were scheduled before it are applied before it."""
        return next(reversed(self.scheduled), None)

    def is_left(self, unit: Unit) -> bool:
        """True if a turn had no time for it yet."""
        return unit in self._left

    def run(self, receive: Callable[..., object], *arguments: Any) -> None:
        """Run one turn that begins with this call. Within a turn, only make the call."""
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
        # Python's collector comes by itself when more objects have come than gone. While as many go, young ones pile up,
        # and then it looks at all of them.
        self._untidy += 1
        if self._untidy == TIDY_TURNS or self.cut:
            self._untidy = 0
            self._tidy()
        if self.cut:
            self._wake()

    def end(self) -> None:
        """Run a turn that receives nothing, to do the work that was scheduled outside of turns."""
        self.run(_nothing)

    def deliver(self, sink: Sink, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """Hand a run to a consumer's sink. If that raises, the sink has failed and not the queue."""
        try:
            sink.deliver(consumer, run, first_id)
        except Exception as error:
            self.failed(sink, error)

    # -- the other phases ------------------------------------------------------------------------------------------

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
        """Apply pending commands, and those that result from them; what a turn has no time for is left, unless
        `whole`.

        A method that answers with counts calls this, too.
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
                # Hosts that others have scheduled meanwhile belong to this turn.
                whole = True
        finally:
            self._applying = False

    def _offer_room(self) -> None:
        widened, self._widened = self._widened, {}
        for window in widened:
            if self.cut:
                # Behind the queues that were left, whose acks may be what makes the room.
                self.later(window, window.offer_room)
                continue
            try:
                window.offer_room()
            except Exception as error:
                self.failed(window, error)

    def _replicate(self) -> None:
        """Carry out what groups ask for. The phase has a time of its own: thousands of groups that are made, or elect, would
        hold up all clients, and what comes before it in a turn never stops it."""
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
