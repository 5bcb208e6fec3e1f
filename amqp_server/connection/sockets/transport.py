"""Moves bytes between one client's socket and its session. The poller calls it when the socket is ready.

Nothing here waits: at its end, every turn writes for all connections that have data to send. Only when a
socket is full does the poller wait until it has room again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from amqp_server.connection import log
from amqp_server.connection.login.password_checks import Outcome
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session, State
from amqp_server.connection.sockets.client_wire import LARGE_BYTES, ClientWire
from amqp_server.connection.sockets.poller import READ, WRITE, Poller
from amqp_server.connection.sockets.unauthenticated import HalfOpen

if TYPE_CHECKING:
    from amqp_server.broker.access.token_permissions import Token
    from amqp_server.broker.broker import Broker
    from amqp_server.config import Config
    from amqp_server.connection.sockets.unauthenticated import HalfOpens
    from amqp_server.turn import Turn
    from quorum_queue.links.ports import Wire

#: Time for a client to take its last bytes, s.
CLOSE_TIMEOUT_S: Final = 5.0
#: Only the log has this reason: the client gets the same answer as for every refusal.
BUSY: Final = "not checked, because too many logins of this address have failed or wait"


class Backpressure(Protocol):
    @property
    def ahead(self) -> bool:
        """True if more was published than may wait for the disk or for other nodes."""


class Affinity(Protocol):
    """Hands connections over to other processes of the node. See workers.handing_over."""

    def moves(self, transport: Transport, data: bytes) -> bool:
        """The client has sent this. True if it goes to another process, and the connection with it."""


class Edge(Protocol):
    """The shared parts of a node's connections. See connection.listener.Server."""

    broker: Broker
    config: Config
    turn: Turn
    poller: Poller
    half_opens: HalfOpens
    #: None if the node is one process.
    affinity: Affinity | None

    @property
    def backpressure(self) -> Backpressure: ...

    @property
    def share_bytes(self) -> int:
        """Bytes that each client may publish while too much data waits for the disk."""

    def log_in(self, transport: Transport) -> None:
        """Check the password, then call `logged_in`."""

    def wait_for_disk(self, transport: Transport) -> None:
        """Call `caught_up` when the disk has caught up."""

    def ended(self, transport: Transport) -> None: ...


def _nothing() -> None: ...


class Transport:
    """The network edge of one connection.

    See connection.session.Edge, and amqp_server.turn.Sender.
    """

    __slots__ = (
        "_broken",
        "_discarding",
        "_draining",
        "_ended",
        "_from_bytes",
        "_half_open",
        "_logging_in",
        "_low_bytes",
        "_muted",
        "_poller",
        "_send_until",
        "_sending_rest",
        "_server",
        "_slow",
        "_straight",
        "_turn",
        "_unsent",
        "_wire",
        "affinity",
        "began",
        "cancel_login",
        "fd",
        "heavy",
        "last_received",
        "last_sent",
        "looks",
        "outbox",
        "queued",
        "session",
        "waits_for_disk",
        "watched",
    )

    def __init__(self, server: Edge, wire: Wire, peer: str, name: str, half_open: HalfOpen) -> None:
        self._server = server
        self._turn = server.turn
        self._poller = server.poller
        self._low_bytes = server.config.outbox_low_bytes
        self._wire = wire
        #: The same socket, if large bodies are received directly into their own objects.
        self._straight = wire if isinstance(wire, ClientWire) else None
        self.fd = wire.fileno()
        #: Events that the poller waits for, and the poller's queue of ready connections that this one is in.
        self.watched = 0
        self.queued = False
        #: True if the last read was large or left work, or if reads take long. See the poller.
        self.heavy = self._slow = False
        self.outbox = Outbox(
            server.turn, self, server.config.outbox_high_bytes, server.broker.services.memory.unsent
        )
        self.session = Session(server.broker, self.outbox, self, peer, name)
        self._half_open = half_open
        self._unsent: list[bytes | memoryview] = []
        #: True while the socket is full.
        self._draining = False
        #: True while the connection is not read, until `resumed`.
        self._muted = False
        #: Received bytes at the time when the disk was first found to be behind, or -1.
        self._from_bytes = -1
        #: True while this publisher is not read, because the disk has to catch up.
        self.waits_for_disk = False
        self._logging_in = False
        self.cancel_login: Callable[[], None] = _nothing
        #: True after the end of the session: the rest is sent, at most until `_send_until`.
        self._sending_rest = False
        self._send_until = 0.0
        #: True when everything is sent: input is discarded until the client closes the socket.
        self._discarding = False
        #: True after the end of the stream, or an error.
        self._broken = False
        self._ended = False
        #: Until it is known where the connection belongs, and how many reads were looked at for that.
        self.affinity = server.affinity
        self.looks = 0
        self.began = self.last_received = self.last_sent = monotonic()

    def start(self) -> None:
        """Begin to read."""
        self._watch()
        if self._wire.more:
            self._poller.again(self)

    def _watch(self) -> None:
        self._poller.watch(self, (0 if self._muted else READ) | (WRITE if self._draining else 0))

    def contain(self, call: Callable[[], None]) -> None:
        """Call; an error ends only this connection."""
        if self._ended:
            return
        try:
            call()
        except OSError:
            self.close()
        except Exception as error:  # noqa: BLE001 - the turn decides what it ends
            self._blame(error)

    def _blame(self, error: Exception) -> None:
        self._turn.failed(self.session, error)
        self._send_rest()

    # -- in, called by the poller within a turn --------------------------------------------------------------

    def read_little(self) -> None:
        """Read a light connection once. Its queues are applied with those of the other connections. Errors
        are contained.
        """
        if self._ended:
            return
        try:
            data = self._receive(self._poller.little)
            if data and not (self.affinity is not None and self.affinity.moves(self, data)):
                self._turn.take(self.session, data, False)
                self._received()
        except OSError:
            self.close()
        except Exception as error:  # noqa: BLE001 - the turn decides what it ends
            self._blame(error)

    def left(self) -> None:
        """The turn was too short for the connection's queues: read nothing more until they have applied its
        messages; otherwise memory would fill up.
        """
        self.heavy = True
        self.session.go_on_later()

    def read_much(self) -> None:
        """Read a heavy connection once, or continue with the rest of its last read, and apply its queues."""
        incoming = self.session.incoming
        if incoming.congested and self.session.state is State.RUNNING:
            if self.held:
                self._mute()
                return
            self._turn.take(self.session, b"")
        else:
            data = self._receive(self._poller.buffer)
            if not data or (self.affinity is not None and self.affinity.moves(self, data)):
                return
            self._turn.take(self.session, data)
        self._received()

    @property
    def is_quiet(self) -> bool:
        """True if nothing is on its way to the client or from it, as far as this process knows."""
        wire = self._wire
        return (
            self._straight is not None
            and not (self._draining or self._unsent or self._muted or self._sending_rest or self._discarding)
            and not (self._broken or self._ended or self._logging_in or wire.pending_bytes or wire.more)
        )

    def go_on_with(self, data: bytes) -> None:
        """Begin to read a connection that comes from another process, which has read this already."""
        self.affinity = None
        self._watch()
        if data:
            self._turn.take(self.session, data)
            self._received()

    def slow(self, slow: bool) -> bool:
        """Note whether the last read took long; return True if the previous one did, too.

        The machine may be the cause of a single long read: a page that was not in memory, or another process
        on the core.
        """
        both = slow and self._slow
        self._slow = slow
        return both

    def _receive(self, buffer: memoryview) -> bytes:
        """Read once; return an empty result if the bytes must not be handled."""
        if self._discarding:
            # If the socket were closed now, a client that is still writing, or has not read close-ok, could
            # get an error instead. `Server.watch` closes it if that takes too long.
            if self._wire.receive([self._poller.buffer]) == 0:
                self.close()
            elif self._wire.more:
                self._poller.again(self)
            return b""
        if self._sending_rest or self.held:
            self._mute()
            return b""
        if self._straight is not None and self.session.incoming.unfinished.bytes >= LARGE_BYTES:
            received = self._straight.receive_new(len(self._poller.buffer))
        else:
            count = self._wire.receive([buffer])
            received = None if count is None else bytes(buffer[:count])
        if received is None:
            return b""
        if not received:
            self._broken = True
            self._send_rest()
            return b""
        self.last_received = self._poller.now
        if len(received) >= len(self._poller.little):
            self.heavy = True
        return received

    def _received(self) -> None:
        """Follow the session's state after a read."""
        session = self.session
        if session.unfinished:
            self.heavy = True
        if session.login is not None:
            self._begin_login()
        if session.state is State.CLOSED:
            self._send_rest()
            return
        wire = self._wire
        if session.state is State.RUNNING and self._ahead_of_disk():
            self._mute()
        elif (wire.more or session.incoming.congested) and not self.held:
            self._poller.again(self)
        if wire.pending_bytes:
            # TLS has sent an answer itself.
            self._drain()

    @property
    def held(self) -> bool:
        """True if the connection must not be read now. `resumed` is called when the reason is gone."""
        session = self.session
        if session.unfinished or self._logging_in:
            return True
        waits = session.suspended is not None
        if session.state is not State.RUNNING:
            return waits
        incoming, outbox = session.incoming, self.outbox
        return (
            # It publishes during an alarm.
            incoming.stalled
            or (waits and incoming.backlogged)
            # It does not take its bytes.
            or outbox.size > 2 * outbox.high_bytes
            or self._ahead_of_disk()
        )

    def _ahead_of_disk(self) -> bool:
        """True if this client has published, too much data waits for the disk, and the client publishes much,
        or has used its share. Connections that only consume are always read.
        """
        incoming = self.session.incoming
        if not incoming.published:
            return False
        if not self._server.backpressure.ahead:
            self._from_bytes = -1
            return False
        if self._from_bytes < 0:
            self._from_bytes = incoming.received_bytes
        return self.heavy or incoming.received_bytes - self._from_bytes >= self._server.share_bytes

    def _mute(self) -> None:
        self._muted = True
        self._watch()
        if not self._sending_rest and self._ahead_of_disk() and not self.waits_for_disk:
            self.waits_for_disk = True
            self._server.wait_for_disk(self)

    def resumed(self) -> None:
        """A reason not to read the connection may be gone."""
        if self._ended or self._sending_rest or self._discarding:
            return
        if self.session.state is State.CLOSED:
            self._send_rest()
            return
        if self.held:
            if self._ahead_of_disk():
                self._mute()
            return
        if self._muted:
            self._muted = False
            # The client's heartbeats were not read meanwhile.
            self.last_received = monotonic()
            self._watch()
        if self.session.incoming.congested or self._wire.more:
            self._poller.again(self)

    def caught_up(self) -> None:
        """The disk has caught up with the publishes."""
        self.waits_for_disk = False
        self.resumed()

    def heard(self, now: float) -> float:
        """Return when the client was last known to be alive.

        While a client is not read, its heartbeats are not seen. A consumer that takes its bytes is alive,
        too.
        """
        session = self.session
        if session.incoming.stalled or self.waits_for_disk:
            self.last_received = now
        elif self._muted:
            unread = session.unfinished or session.suspended is not None
            self.last_received = max(self.last_received, now if unread else self.last_sent)
        return self.last_received

    # -- the login -------------------------------------------------------------------------------------------

    def _begin_login(self) -> None:
        if self.session.login is not None and not self._logging_in:
            self._logging_in = self._half_open.checking = True
            self._server.log_in(self)

    def logged_in(self, outcome: Outcome, reason: str = "", token: Token | None = None) -> None:
        """The login was checked; `reason` is the reason of a refusal, for the log. Called within a turn."""
        self._logging_in = False
        if self._ended:
            return
        self._turn.contain(self.session, self._login_done, outcome, reason, token)
        # A client may have sent several secrets at once.
        self._begin_login()
        self.resumed()

    def _login_done(self, outcome: Outcome, reason: str, token: Token | None) -> None:
        if outcome is Outcome.BUSY:
            self.session.login_done(accepted=False, reason=BUSY)
        else:
            self.session.login_done(
                accepted=outcome is Outcome.ACCEPTED, reason=reason or "invalid credentials", token=token
            )

    def opened(self) -> None:
        """The login has succeeded or failed."""
        self._server.half_opens.remove(self._half_open)
        if self.session.state is State.RUNNING and self.session.limits.heartbeat_s:
            self._wake_after(self.session.limits.heartbeat_s / 2)

    def wake(self) -> None:
        """Send a heartbeat if nothing else was sent for half of the interval. See broker.timers."""
        if self.session.state is not State.RUNNING:
            return
        half_s = self.session.limits.heartbeat_s / 2
        left_s = self.last_sent + half_s - monotonic()
        if left_s < 0.001:
            # A full socket needs no heartbeat: it would arrive late, behind the other bytes.
            if not self._draining:
                self.session.heartbeat()
            left_s = half_s
        self._wake_after(left_s)

    def failed(self, error: Exception) -> None:
        """A timer of this connection has raised."""
        self.session.failed(error)

    def _wake_after(self, seconds: float) -> None:
        broker = self.session.broker
        broker.timers.wake(self, broker.clock.monotonic_ms() + ceil(1000 * seconds))

    # -- out -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the waiting bytes, as far as the socket takes them now."""
        if self._draining or self._ended:
            return
        outbox = self.outbox
        chunks = self._unsent or outbox.take()
        if not chunks and not self._wire.pending_bytes:
            # All bytes wait for the disk.
            return
        try:
            while chunks:
                sent = self._wire.send(chunks)
                if not sent:
                    self._unsent = chunks
                    self._drain()
                    return
                outbox.sent(sent)
                self._unsent = _after(chunks, sent)
                chunks = self._unsent or (outbox.take() if outbox.size else [])
        except OSError:
            self.close()
            return
        self.last_sent = monotonic()
        if self._wire.pending_bytes:
            self._drain()
        if self.session.paused:
            self.session.drained()
        self._sent()

    def _drain(self) -> None:
        """The socket is full: continue when it has room."""
        if not self._draining:
            self._draining = True
            self._watch()

    def writable(self) -> None:
        """The socket has room again. Called by the poller within a turn."""
        outbox, wire = self.outbox, self._wire
        wire.push()
        chunks = self._unsent or outbox.take()
        sent = wire.send(chunks) if chunks else 0
        outbox.sent(sent)
        self._unsent = _after(chunks, sent)
        self.last_sent = monotonic()
        if not self._unsent and not wire.pending_bytes:
            chunks = self._unsent = outbox.take()
            if not chunks:
                self._draining = False
                self._watch()
        if outbox.size <= self._low_bytes:
            if self.session.paused:
                self.session.drained()
            self._sent()

    def _sent(self) -> None:
        """The outbox has room again."""
        if self._sending_rest:
            self._said()
        elif self._muted or self.session.incoming.congested:
            self.resumed()

    # -- the end ---------------------------------------------------------------------------------------------

    def _send_rest(self) -> None:
        """The session is over. Give the client a short time to take its last bytes."""
        if self._sending_rest or self._discarding:
            return
        self._sending_rest = True
        self._send_until = monotonic() + CLOSE_TIMEOUT_S
        self._muted = True
        self._watch()
        self._said()

    def _said(self) -> None:
        # Bytes in the outbox may wait for the disk.
        if not self.outbox.size and not self._draining:
            self._discard()

    def _discard(self) -> None:
        """Everything is sent: discard input. A client that closes in order closes the socket itself."""
        self._sending_rest = False
        if self.session.answered_close and not self._broken:
            self._discarding = True
            self._muted = False
            self._watch()
            if self._wire.more:
                self._poller.again(self)
        else:
            self._discarding = True
            self.close()

    def check_rest(self, now: float) -> None:
        """Close the connection if the client has not taken the rest in time."""
        if self._sending_rest and now > self._send_until:
            self._discard()

    def close(self) -> None:
        """End the connection at once, without a close."""
        if not self._ended:
            self._poller.over(self)

    def end(self) -> None:
        """Release everything that the connection holds. Call it within a turn."""
        if self._ended:
            return
        self._ended = True
        session = self.session
        self.cancel_login()
        agreed = session.state in (State.CLOSING, State.CLOSED)
        log.closing(session, "" if agreed else log.LOST)
        self._turn.contain(session, session.lost)
        self._turn.forget(session, self)
        self.opened()
        session.broker.timers.forget(self)
        self.cancel_login = _nothing
        self._unsent = []
        self._poller.watch(self, 0)
        self._server.ended(self)
        self._wire.close()


def _after(chunks: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """Return the rest after `sent` bytes, without a copy."""
    for index, chunk in enumerate(chunks):
        if sent < len(chunk):
            left = chunks[index:]
            if sent:
                left[0] = memoryview(chunk)[sent:]
            return left
        sent -= len(chunk)
    return []
