"""Listening sockets, and the shared parts of all connections at the edge."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Awaitable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.broker import Broker
from amqp_server.config import Config, parse_address
from amqp_server.connection import log
from amqp_server.connection.handed_over import Farewell, SessionState, take_over, was_lost
from amqp_server.connection.login.authentication import Authentication
from amqp_server.connection.login.certificate_names import Tls, described, login_name
from amqp_server.connection.login.password_checks import Outcome, PasswordChecks
from amqp_server.connection.login.sasl import EXTERNAL
from amqp_server.connection.login.tokens import Tokens, is_token
from amqp_server.connection.session import State
from amqp_server.connection.sockets.client_wire import ClientWire
from amqp_server.connection.sockets.handshake_failures import explained
from amqp_server.connection.sockets.poller import Poller
from amqp_server.connection.sockets.proxy_protocol import (
    BadProxyHeader,
    HostPort,
    Proxies,
    ProxyHeader,
    plain_host,
)
from amqp_server.connection.sockets.proxy_reader import read_header, receiver
from amqp_server.connection.sockets.socket_waits import SocketWaits
from amqp_server.connection.sockets.tls import ListenerTLS
from amqp_server.connection.sockets.transport import Affinity, Backpressure, Transport
from amqp_server.connection.sockets.unauthenticated import (
    HalfOpen,
    HalfOpens,
    OtherHalfOpens,
)
from amqp_server.descriptors import Descriptors
from quorum_queue.links.accept import accept_all
from quorum_queue.links.sources import source_of
from quorum_queue.links.wire import TlsWire
from quorum_queue.shared_ticks import now_ms, until_beat_s

if TYPE_CHECKING:
    from quorum_queue.links.ports import Wire

logger = logging.getLogger("mqd.connection")

#: Connections accepted in one turn.
ACCEPT_BATCH: Final = 8
#: Time that a process leaves others of this node to accept a connection, for each that it has more, s.
GIVE_WAY_S: Final = 0.001
#: The longest such time, s: a process that hangs is no hindrance.
GIVE_WAY_MAX_S: Final = 0.008
#: The time that a process which takes no more clients leaves others that take some, s.
GIVE_WAY_FULL_S: Final = 0.25
#: Interval of checks of all connections, ms.
WATCH_MS: Final = 1_000
#: Time for which connections are checked before others have their turns, s.
CHECKED_S: Final = 0.004
#: Stands for the proxy header of a direct connection.
NO_PROXY: Final = ProxyHeader(0)
#: Address of clients within this process: a separate loopback address, so that their failed logins slow down
#: no other client.
WITHIN: Final = "127.255.255.254"
#: User name shown for the node itself.
NODE_NAME: Final = "mqd-internal"
#: Interval of summaries of lines that were not logged individually, s.
LOG_SUMMARY_S: Final = 10.0


class ListenError(Exception):
    """An address that cannot be listened on."""


class AwaitedBackpressure(Backpressure, Protocol):
    #: Number of bytes from which `ahead` is True.
    high_bytes: int

    def wait(self) -> Awaitable[None]: ...


class OtherWorkers(OtherHalfOpens, Protocol):
    """The other processes of this node, which accept from the same sockets."""

    def note_connections(self, count: int) -> None:
        """This process has so many connections."""

    def connections(self) -> int:
        """Return the connections of the other processes."""

    def surplus(self) -> int:
        """Return how many connections this process has more than the one with the fewest."""

    def note_takes_clients(self, takes: bool) -> None:
        """This process takes clients from now on, or none."""

    def others_take_clients(self) -> bool: ...


class _NoOthers:
    """Stands for the other processes of a node that is one process."""

    def note_connections(self, count: int) -> None: ...

    def connections(self) -> int:
        return 0

    def surplus(self) -> int:
        return 0

    def note_takes_clients(self, takes: bool) -> None: ...

    def others_take_clients(self) -> bool:
        return False

    def note_half_open(self, count: int, source: str, of_source: int) -> None: ...

    def half_open(self) -> int:
        return 0

    def half_open_of(self, source: str) -> int:
        return 0


NO_OTHERS: Final = _NoOthers()


def bind(option: str, address: str) -> socket.socket:
    """Return a socket that is bound to the address of this option, and does not listen yet. Raises
    ListenError, whose text says what to do.
    """
    parsed = parse_address(address)
    assert parsed is not None
    host, port = parsed
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ListenError(_why_not(option, address, host, port, error)) from error
    return sock


def bind_all(config: Config) -> dict[str, socket.socket]:
    """Return the sockets of all listeners for clients by option, bound. Raises ListenError."""
    return {
        option: bind(option, address)
        for option in ("amqp", "amqps", "http", "metrics")
        if (address := getattr(config, option))
    }


def begin_listening(option: str, sock: socket.socket, backlog: int) -> None:
    """Raises ListenError."""
    try:
        sock.listen(backlog)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        sock.close()
        raise ListenError(_why_not(option, f"{host}:{port}", host, port, error)) from error
    sock.setblocking(False)


def listen_for_nodes(config: Config) -> socket.socket:
    """Return the socket that listens for the other nodes of the cluster. Raises ListenError, whose text says
    what to do.
    """
    option = "cluster_listen" if config.cluster_listen else "peers"
    sock = bind(option, config.links_address)
    begin_listening(option, sock, config.listen_backlog)
    return sock


def _why_not(option: str, address: str, host: str, port: int, error: OSError) -> str:
    """Return the reason and what to do about it."""
    flag = f"--{option.replace('_', '-')}"
    if isinstance(error, socket.gaierror):
        advice = f"The name {host!r} does not resolve: give {flag} an address of this machine"
    elif error.errno == errno.EADDRINUSE:
        advice = f"Is another broker running there? Choose another port with {flag}, such as {host}:{port + 1 & 0xFFFF}"
    elif error.errno == errno.EADDRNOTAVAIL:
        advice = f"This machine has no such address: 0.0.0.0:{port} listens on all that it has ({flag})"
    elif error.errno in (errno.EACCES, errno.EPERM):
        advice = f"Ports below 1024 need a permission (CAP_NET_BIND_SERVICE): choose a higher one with {flag}"
    else:
        advice = f"Choose another address with {flag}"
    return f"cannot listen on {address}: {error.strerror or error}. {advice}"


class Server:
    """Accepts connections, and watches over them. See connection.transport.Edge."""

    def __init__(
        self,
        broker: Broker,
        backpressure: AwaitedBackpressure,
        password_checks: PasswordChecks,
        poller: Poller,
        authentication: Authentication | None = None,
        descriptors: Descriptors | None = None,
        others: OtherWorkers = NO_OTHERS,
    ) -> None:
        """`others` are the other processes of the node, if it has several."""
        self.broker = broker
        self._others = others
        self._takes_clients = True
        #: See workers.handing_over; None if the node is one process.
        self.affinity: Affinity | None = None
        self.descriptors = descriptors or Descriptors(broker.config, broker.alarms)
        self.config = broker.config
        self.turn = broker.turn
        self.poller = poller
        self.backpressure = backpressure
        self.password_checks = password_checks
        self.authentication = authentication or Authentication(
            broker.access.users, broker.config, password_checks, None
        )
        self.transports: dict[Transport, None] = {}
        #: False while the node is drained: it accepts no clients, except those within this process.
        self.in_service = True
        #: True once the process is about to end.
        self._ends = False
        #: Number of accepted connections, including those in the TLS handshake.
        self._open = 0
        #: Number of clients within this process so far.
        self._within = 0
        #: Connections that have not logged in.
        self.half_opens = HalfOpens(self.config, others)
        self._proxies = Proxies(self.config.proxy_sources)
        self.tokens = Tokens(self.config) if self.config.oauth_resource_server_id else None
        self._handshakes = trio.Lock()
        self._waits = SocketWaits()
        #: Publishers that are not read until the disk has caught up.
        self._wait_for_disk: list[Transport] = []
        self._disk_awaited = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve connections until cancelled; then end all of them."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._waits.run)
                await self._watch_disk()
        finally:
            self._nursery = None
            self.poller.end_all(self.transports)

    async def serve(self, listening: socket.socket, tls: ListenerTLS | None = None) -> None:
        """Accept until the socket is closed, or cancelled."""
        async with trio.open_nursery() as nursery:

            def accepted(sock: socket.socket, address: tuple[str, int]) -> None:
                self._accept(nursery, sock, str(address[0]), None if tls is None else tls.context)

            batch = ACCEPT_BATCH if self._others is NO_OTHERS else 1
            await accept_all(listening, batch, accepted, self._cannot_accept, self._give_way_s)

    def _give_way_s(self) -> float:
        if not self._takes_clients and self._others.others_take_clients():
            return GIVE_WAY_FULL_S
        return min(self._others.surplus() * GIVE_WAY_S, GIVE_WAY_MAX_S)

    def _cannot_accept(self, error: OSError) -> None:
        if self.broker.log_limit.allows("connections that could not be accepted", "clients", 1):
            logger.error("cannot accept a connection: %s; it waits", error)
        self.descriptors.failed(error)

    def _accept(
        self, nursery: trio.Nursery, sock: socket.socket, peer: str, tls: ssl.SSLContext | None
    ) -> None:
        place = self._admit_open(peer)
        if place is None:
            self._say_refused(peer)
            sock.close()
            return
        proxied = self._proxies.trusts(peer)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None and not proxied:
                self._begin(sock, ClientWire(sock), place)
        except OSError:
            # The client has disconnected already.
            self._gone(sock, place)
            return
        if tls is not None or proxied:
            nursery.start_soon(self._prepare, sock, tls, place, proxied)

    def _admit(self, peer: str) -> HalfOpen | None:
        """Return a place for a connection of this address; None if there is none."""
        return self.half_opens.admit(source_of(peer), trio.current_time())

    def _admit_open(self, peer: str) -> HalfOpen | None:
        """Return a place for one more open connection, of this address; None if there is none."""
        if (self._ends or not self.in_service) and peer != WITHIN:
            return None
        opened = self._open + self._others.connections()
        if opened >= self.config.connections_max or not self.descriptors.take():
            return None
        place = self._admit(peer)
        if place is None:
            self.descriptors.give()
            return None
        self._open_place()
        return place

    def _open_place(self) -> None:
        """A connection has begun, and has taken its descriptor."""
        self._open += 1
        self._note_open()

    def _close_place(self) -> None:
        """A connection has ended, or could not begin."""
        self._open -= 1
        self.descriptors.give()
        self._note_open()

    def _note_open(self) -> None:
        self._others.note_connections(self._open)
        takes = self.descriptors.has_room and not self._ends
        if takes is not self._takes_clients:
            self._takes_clients = takes
            self._others.note_takes_clients(takes)

    def take_no_more(self) -> None:
        """The process is about to end: from now on other processes of the node take the clients that come."""
        self._ends = True
        self._note_open()

    def _say_refused(self, peer: str) -> None:
        source = source_of(peer)
        if self._ends:
            return
        if not self.in_service:
            if self.broker.log_limit.allows("connection to a drained node", source, 1):
                logger.info("connection from %s refused: this node is drained (mqctl revive ends that)", peer)
            return
        if self.broker.log_limit.allows("connection refused", source, 1):
            logger.warning(
                "connection from %s refused: %d of at most %d connections are open, %d are logging in, %d of "
                "them from that address",
                peer,
                self._open + self._others.connections(),
                self.descriptors.connections_max,
                len(self.half_opens),
                self.half_opens.count_of(source),
                extra={"peer": peer},
            )

    def _certificate_name(self, certificate: dict[str, Any]) -> str | None:
        """Return the user in the client's certificate; None if certificates cannot log in."""
        config = self.config
        if config.tls_login_from == "off":
            return None
        return login_name(
            certificate, config.tls_login_from, config.tls_login_san_type, config.tls_login_san_index
        )

    def _begin(
        self,
        sock: socket.socket,
        wire: Wire,
        place: HalfOpen,
        proxy: ProxyHeader = NO_PROXY,
        certificate_name: str | None = None,
        trusted_as: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Serve a connection from now on. Raises OSError."""
        peer = proxy.client or HostPort(*sock.getpeername()[:2])
        here = proxy.here or HostPort(*sock.getsockname()[:2])
        host = plain_host(peer.host)
        name = f"{host}:{peer.port} -> {plain_host(here.host)}:{here.port}"
        transport = Transport(self, wire, host, name, place)
        transport.session.client.certificate_name = certificate_name
        transport.session.client.tls = tls
        transport.session.client.trusted_as = trusted_as
        place.drop = partial(self._give_way, transport)
        self.transports[transport] = None
        transport.contain(transport.start)

    def connect(self, user: str | None, name: str) -> socket.socket:
        """Return a connection of a client within this process: as this user, without a password (EXTERNAL),
        or as the node itself; with a password it may log in as another user. Raises OSError.
        """
        place = self._admit_open(WITHIN)
        if place is None:
            raise OSError("no more connections are allowed (connections_max)")
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self.descriptors.failed(error)
            self._close_place()
            self.half_opens.remove(place)
            raise
        try:
            ours.setblocking(False)
            # A loopback address, so that users who may only log in from this machine can log in.
            self._within += 1
            proxy = ProxyHeader(0, HostPort(WITHIN, self._within), HostPort(name, 0))
            self._begin(ours, ClientWire(ours), place, proxy, user or NODE_NAME, user or ITSELF)
        except OSError:
            self._gone(ours, place)
            theirs.close()
            raise
        return theirs

    def adopt(self, sock: socket.socket, state: SessionState) -> None:
        """Serve a connection that has begun in another process of this node."""
        # A worker that has no room gets none; some may have been on their way when it had room.
        self.descriptors.take_given()
        self._open_place()
        place = HalfOpen(source_of(state.peer), trio.current_time())
        try:
            sock.setblocking(False)
            transport = Transport(self, ClientWire(sock), state.peer, state.name, place)
        except OSError:
            self._gone(sock, place)
            self.was_lost(Farewell.of(state))
            return
        self.transports[transport] = None
        try:
            take_over(transport.session, state)
        except KeyError as gone:
            logger.info("connection %s ends: %s was deleted meanwhile", state.name, gone)
            transport.close()
            self.was_lost(Farewell.of(state))
            return
        transport.contain(partial(transport.go_on_with, state.unread))

    def was_lost(self, farewell: Farewell) -> None:
        """A connection that comes from another process of this node has ended on its way."""
        was_lost(self.broker, farewell)

    def _gone(self, sock: socket.socket, place: HalfOpen) -> None:
        sock.close()
        self._close_place()
        self.half_opens.remove(place)

    async def _prepare(
        self, sock: socket.socket, tls: ssl.SSLContext | None, place: HalfOpen, proxied: bool
    ) -> None:
        """Serve a connection after its proxy header and its TLS handshake, which may both take a while."""
        begun = False
        kind = "PROXY header" if proxied else "TLS handshake"
        try:
            with trio.CancelScope() as scope:
                if place.gone:
                    return
                place.drop = scope.cancel
                proxy, certificate_name, facts = NO_PROXY, None, None
                wire: Wire = ClientWire(sock)
                with trio.fail_after(self.config.handshake_timeout_s):
                    if proxied:
                        proxy = await read_header(receiver(sock), self.config.proxy_header_bytes_max)
                        kind = "TLS handshake"
                    if proxy.client is not None:
                        # From here on the connection counts for the client's own address.
                        self.half_opens.remove(place)
                        client_place = self._admit(proxy.client.host)
                        if client_place is None:
                            self._say_refused(proxy.client.host)
                            return
                        place = client_place
                        place.drop = scope.cancel
                    if tls is not None:
                        wire = through_tls = TlsWire(sock, tls, server_host=None)
                        await through_tls.handshake(self._handshakes, self._waits)
                        certificate = through_tls.certificate()
                        certificate_name = self._certificate_name(certificate)
                        facts = described(through_tls.version, certificate)
                self._begin(sock, wire, place, proxy, certificate_name, tls=facts)
                begun = True
        except (BadProxyHeader, ssl.SSLError, trio.TooSlowError, OSError) as error:
            if self.broker.log_limit.allows(f"{kind} failed", place.source):
                said = explained(error)
                logger.info("%s with %s failed: %s", kind, place.source, said, extra={"peer": place.source})
        finally:
            if not begun:
                self._gone(sock, place)

    def _give_way(self, transport: Transport) -> None:
        log.closing(transport.session, "too many connections are logging in")
        transport.close()

    # -- what transports ask for -----------------------------------------------------------------------------

    def log_in(self, transport: Transport) -> None:
        """Check the password, then call `logged_in`."""
        assert self._nursery is not None
        self._nursery.start_soon(self._log_in, transport)

    async def _log_in(self, transport: Transport) -> None:
        login, turn = transport.session.login, self.turn
        if login is None:
            return
        with trio.CancelScope() as scope:
            transport.cancel_login = scope.cancel
            reason, token = "", None
            try:
                client = transport.session.client
                if client.mechanism != EXTERNAL:
                    # The client authenticates itself.
                    client.trusted_as = None
                if client.trusted_as == ITSELF:
                    outcome = Outcome.ACCEPTED
                elif client.trusted_as is not None:
                    outcome, reason = self._log_in_as(login.user)
                elif client.mechanism == EXTERNAL:
                    outcome, reason, token = await self.authentication.log_in_by_certificate(
                        client.peer, login.user
                    )
                elif self.tokens is not None and is_token(login.password):
                    outcome, reason, token = await self.tokens.log_in(
                        self.password_checks, client.peer, login.password
                    )
                else:
                    outcome, reason, token = await self.authentication.log_in(
                        client.peer, login.user, login.password
                    )
            except Exception as error:  # noqa: BLE001 - the turn decides what it ends
                turn.run(turn.failed, transport.session, error)
                transport.close()
                return
            turn.run(transport.logged_in, outcome, reason, token)

    def _log_in_as(self, user: str) -> tuple[Outcome, str]:
        """Log in a client within this process that acts as this user."""
        if self.broker.access.users.get(user) is None:
            return Outcome.REFUSED, "the user does not exist"
        return Outcome.ACCEPTED, ""

    @property
    def share_bytes(self) -> int:
        return min(
            self.config.unsynced_share_bytes, self.backpressure.high_bytes // (len(self.transports) or 1)
        )

    def wait_for_disk(self, transport: Transport) -> None:
        """Call `caught_up` when the disk has caught up."""
        self._wait_for_disk.append(transport)
        self._disk_awaited.set()

    async def _watch_disk(self) -> None:
        while True:
            await self._disk_awaited.wait()
            self._disk_awaited = trio.Event()
            while self.backpressure.ahead:
                await self.backpressure.wait()
            self._disk_has_caught_up()

    def _disk_has_caught_up(self) -> None:
        # A separate function, so that no variable of `_watch_disk` keeps a connection alive after its end.
        waiting, self._wait_for_disk = self._wait_for_disk, []
        for transport in waiting:
            transport.caught_up()

    def ended(self, transport: Transport) -> None:
        """The connection has released everything."""
        del self.transports[transport]
        self._close_place()
        if transport.waits_for_disk:
            self._wait_for_disk.remove(transport)

    async def watch(self) -> None:
        """End connections whose client is gone or never logs in. Checks once a second."""
        summarised = trio.current_time()
        while True:
            await trio.sleep(until_beat_s(WATCH_MS, now_ms()))
            left = self._all()
            while left:
                self._check_some(left)
                await trio.lowlevel.checkpoint()
            if trio.current_time() - summarised >= LOG_SUMMARY_S:
                summarised = trio.current_time()
                self._summarise()

    def _summarise(self) -> None:
        for text in self.broker.log_limit.summaries():
            logger.warning("%s", text)

    def _all(self) -> list[Transport]:
        return list(self.transports)

    def _check_some(self, left: list[Transport]) -> None:
        """Check some of these, and remove them from the list. Others have their turns in between."""
        # A separate function, so that no variable of `watch` keeps a connection alive after its end.
        now, ends = monotonic(), monotonic() + CHECKED_S
        while left:
            transport = left.pop()
            if transport in self.transports:
                self._check(transport, now)
            if monotonic() > ends:
                return

    def _check(self, transport: Transport, now: float) -> None:
        session, handshake_s = transport.session, self.config.handshake_timeout_s
        transport.check_rest(now)
        if session.state in (State.CLOSING, State.CLOSED):
            # Its last bytes may still wait for the disk, or for the client to take them.
            said = session.answered_close and not transport.outbox.size
            limit_s = session.close_wait_s if said else handshake_s
            if self.broker.clock.monotonic_ms() - session.closing_since_ms > 1000 * limit_s:
                transport.close()
            return
        if session.state is not State.RUNNING:
            if now - transport.began > handshake_s:
                log.closing(session, log.HANDSHAKE_TIMEOUT)
                transport.close()
            return
        if session.client.grant is not None:
            self.turn.run(session.check_grant, self.broker.clock.wall_ms())
        self._check_heartbeats(transport, now)

    def _check_heartbeats(self, transport: Transport, now: float) -> None:
        session, interval = transport.session, transport.session.limits.heartbeat_s
        if not interval:
            return
        if now - transport.heard(now) > 2 * interval:
            log.closing(session, f"missed heartbeats from client, timeout: {interval}s")
            transport.close()

    @property
    def has_goodbyes(self) -> bool:
        """True if open connections still have data to send, and do not only wait for a client to close."""
        return any(
            not transport.session.answered_close or transport.outbox.size for transport in self.transports
        )
