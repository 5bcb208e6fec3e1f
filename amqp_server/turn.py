"""The turn: everything that the node does between two waits of the event loop.

    receive    A client, a link, a timer or a finished commit brings something. Commands go to the hosts of queues.
    apply      Every host with pending commands applies them as one batch. Clients whose answer came go on.
    replicate  Every Raft group with something to do writes, sends and applies. Back to apply until nothing is left;
               then the frames for other nodes leave.
    write      What was submitted to the store becomes the next commit, if none is under way.
    send       Confirms go to the outboxes, and what is in the outboxes goes to the clients' sockets.

One node and three run the same phases. Whoever begins a turn calls `run` or `receive`; whatever changes something
outside of one (a task of the edge) asks for a turn by scheduling what it changed.

The turn is also the one place that decides what an exception ends: the smallest unit whose state may be wrong.

- An error for a client is data (an AMQPError, handled by its session) and never gets here.
- An exception while a session handles its client's bytes ends that connection.
- An exception while a queue or its Raft group applies commands stops that queue on this node; all others go on.
- `Fatal`, and any exception anywhere else, ends the process: in the topology, the log, the disk, the links or the
  timers nobody knows what else is wrong. What was confirmed is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from persistence.errors import CommitFailed
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Run
from quorum_queue.ports import Recipient, Sink

#: What the disk may do to whoever reads or writes, which no unit can be blamed for.
DISK_ERRORS = (CommitFailed,)


class Fatal(BaseException):
    """The process has to end. It is no Exception, so that nothing between here and the top holds it up."""


class Commits(Protocol):
    """See persistence.commit."""

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None:
        """Commit what was submitted."""


class Unit(Protocol):
    """What an exception may leave in a wrong state: a session, a queue's host, a Raft group."""

    def failed(self, error: Exception) -> None:
        """Take no part in anything any more. Raises Fatal where the node can't do without."""


class Session(Unit, Protocol):
    def receive(self, data: bytes) -> None: ...

    def go_on(self) -> None:
        """An answer that the session waited for is there."""


class Gatherer(Protocol):
    """Gathers over a turn what goes to other nodes."""

    def flush(self) -> None: ...


class Confirms(Protocol):
    """Gathers over a turn what a publisher is answered."""

    def flush(self) -> None: ...


class Sender(Protocol):
    """Has something for a client's socket."""

    def flush(self) -> None: ...


class Peers(Protocol):
    """The other nodes, and the Raft groups that this node shares with them."""

    def turn_begins(self) -> None: ...

    @property
    def dirty(self) -> object:
        """True if any group has something to do."""

    def take_dirty(self) -> Iterable[Unit]: ...

    def carry_out(self, group: Any) -> None: ...

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

    def carry_out(self, group: Any) -> None: ...

    def write(self) -> None: ...

    def flush(self) -> None: ...


class Turn:
    """What is to be done before the node waits again. All calls on the loop's thread."""

    __slots__ = (
        "_answered",
        "_applying",
        "_commits",
        "_confirms",
        "_gatherers",
        "_peers",
        "_running",
        "_senders",
        "_wake",
        "scheduled",
    )

    def __init__(self, commits: Commits, peers: Peers, wake: Callable[[], None]) -> None:
        """`wake` has a task of the edge run an empty turn soon."""
        self._commits = commits
        self._peers = peers
        self._wake = wake
        self._running = self._applying = False
        #: Hosts with pending commands. Within a turn they may be put here without `schedule`.
        self.scheduled: dict[Recipient, None] = {}
        #: Sessions that waited for an answer and have it.
        self._answered: dict[Session, None] = {}
        self._gatherers: dict[Gatherer, None] = {}
        self._confirms: dict[Confirms, None] = {}
        self._senders: dict[Sender, None] = {}

    # -- what is to be done ----------------------------------------------------------------------------------------

    def schedule(self, host: Recipient) -> None:
        """Have the pending commands of a host applied."""
        self.scheduled[host] = None
        if not self._running:
            self._wake()

    def answered(self, session: Session) -> None:
        """Have a session go on behind the method that it waited with."""
        self._answered[session] = None
        if not self._running:
            self._wake()

    def gather(self, gatherer: Gatherer) -> None:
        """Have `flush` called before the frames for other nodes leave."""
        self._gatherers[gatherer] = None
        if not self._running:
            self._wake()

    def confirm(self, confirms: Confirms) -> None:
        """Have a publisher answered."""
        self._confirms[confirms] = None
        if not self._running:
            self._wake()

    def send(self, sender: Sender) -> None:
        """Have bytes sent to a client."""
        self._senders[sender] = None
        if not self._running:
            self._wake()

    def forget(self, session: Session, sender: Sender) -> None:
        """A connection is over."""
        self._answered.pop(session, None)
        self._senders.pop(sender, None)

    # -- receive ---------------------------------------------------------------------------------------------------

    def receive(self, session: Session, data: bytes) -> None:
        """One turn that begins with what a client sent."""
        self.run(self.contain, session, session.receive, data)

    def run(self, receive: Callable[..., object], *arguments: Any) -> None:
        """One turn that begins with this call. Within another turn it is only the call."""
        if self._running:
            receive(*arguments)
            return
        self._running = True
        self._commits.turn_begins()
        self._peers.turn_begins()
        try:
            receive(*arguments)
            self._finish()
        finally:
            self._running = False

    def end(self) -> None:
        """A turn in which nothing is received: what was scheduled outside of one is done."""
        self.run(_nothing)

    def contain(self, unit: Unit, call: Callable[..., object], *arguments: Any) -> None:
        """Call; if that raises, the unit has failed and nothing else."""
        try:
            call(*arguments)
        except Exception as error:
            self.failed(unit, error)

    def deliver(self, sink: Sink, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """Hand a run to a consumer's sink. If that raises, the sink has failed and not the queue."""
        try:
            sink.deliver(consumer, run, first_id)
        except Exception as error:
            self.failed(sink, error)

    def failed(self, unit: Unit, error: Exception) -> None:
        """A unit raised: it takes no part in anything any more. Raises Fatal if it is not the unit that is broken."""
        if isinstance(error, DISK_ERRORS):
            # The disk is everybody's.
            raise Fatal(str(error)) from error
        unit.failed(error)

    # -- the other phases ------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        while True:
            while self._answered or self.scheduled or self._peers.dirty:
                self._go_on()
                self.apply()
                self._replicate()
            self._send_to_peers()
            self._peers.write()
            self._commits.turn_ends()
            self._send_to_clients()
            if not (self._answered or self.scheduled or self._confirms or self._senders or self._peers.dirty):
                return
            # A client took what was sent and has room for more.
            self._commits.turn_begins()
            self._peers.turn_begins()

    def _go_on(self) -> None:
        while self._answered:
            session, _ = self._answered.popitem()
            self.contain(session, session.go_on)

    def apply(self) -> None:
        """Apply what is pending, and what that makes pending. A method that answers with counts calls this, too."""
        if self._applying:
            return
        self._applying = True
        try:
            while self.scheduled:
                scheduled, self.scheduled = self.scheduled, {}
                for host in scheduled:
                    try:
                        host.apply_pending()
                    except Exception as error:
                        self.failed(host, error)
        finally:
            self._applying = False

    def _replicate(self) -> None:
        peers = self._peers
        for group in peers.take_dirty():
            try:
                peers.carry_out(group)
            except Exception as error:
                self.failed(group, error)

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
    "Fatal",
    "Gatherer",
    "NoPeers",
    "Peers",
    "Sender",
    "Session",
    "Turn",
    "Unit",
]
