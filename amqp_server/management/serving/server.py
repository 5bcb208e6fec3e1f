"""Connections of the management listener: HTTP/1.1, with time limits for each and a limit of their number.

Hypercorn speaks HTTP; this module replaces its network edge. Hypercorn's own edge waits for ever for a client
that does not read its answer or that sends its request byte by byte. It offers HTTP/2 without TLS, whose
streams a client can hold open by the hundred, and leaves reason phrases empty.
"""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp

from amqp_server.config import Config
from amqp_server.connection.sockets.handshake_failures import is_hello
from amqp_server.connection.sockets.proxy_protocol import BadProxyHeader, Proxies, ProxyHeader, plain_host
from amqp_server.connection.sockets.proxy_reader import read_header
from amqp_server.logs import LineLimit
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.serving.heads import check_heads
from quorum_queue.links.accept import accept_all
from quorum_queue.links.sources import source_of

log = logging.getLogger("mqd.management")
#: Hypercorn's own logger, which would log a greeting at every start.
server_log = logging.getLogger("mqd.management.server")
server_log.setLevel(logging.WARNING)

#: Bytes that are read or written at a time: the memory that one connection may hold without a login.
CHUNK_BYTES = 16_384
#: Connections accepted before other tasks run.
ACCEPT_BATCH = 8
#: Time for a client to read a refusal and to close its connection.
LINGER_S = 1.0
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(frozen=True)
class Limits:
    connections_max: int
    #: Time from the first byte of a request until it is complete, and from the last answer to the next first
    #: byte.
    request_timeout_s: float
    #: Time for a client to read CHUNK_BYTES of an answer, and in all for an answer.
    send_timeout_s: float
    answer_timeout_s: float
    proxy_header_bytes_max: int
    #: Maximum number of consecutive requests that were each sent before the previous one was answered.
    pipelined_max: int

    @classmethod
    def of(cls, config: Config, connections_max: int | None = None) -> Limits:
        """`connections_max` is the limit in force, if the descriptors allow no more."""
        return cls(
            connections_max or config.http_connections_max,
            config.http_request_timeout_s,
            config.http_send_timeout_s,
            config.http_answer_timeout_s,
            config.proxy_header_bytes_max,
            config.http_pipelined_max,
        )


class Http1(H11Protocol):
    """Adds reason phrases, because some clients only show these of a refusal; never upgrades to HTTP/2."""

    #: True if the client had sent the next request before it got the answer to the last one. (Once it has the
    #: answer, the next one may come before hypercorn has finished with the last.)
    was_followed = False

    async def _send_h11_event(self, event: Any) -> None:
        if isinstance(event, h11.Response):
            waiting, _ = self.connection.trailing_data
            self.was_followed = bool(waiting) and self.connection.their_state is h11.DONE
            reason = PHRASES.get(event.status_code, b"")
            event = h11.Response(status_code=event.status_code, headers=event.headers, reason=reason)
        await super()._send_h11_event(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Do not upgrade: the request is answered as HTTP/1.1."""

    @property
    def awaits_request(self) -> bool:
        return self.connection.their_state in (h11.IDLE, h11.SEND_BODY)


class _Body:
    """The body that a handler reads. The connection does not wait for a handler that has ended without
    reading it.

    (Hypercorn's own queue does wait: after a refused request with a body the connection hangs for ever.)
    """

    def __init__(self) -> None:
        self._events: deque[Any] = deque()
        self._over = False
        self._changed = trio.Event()

    async def put(self, event: Any) -> None:
        if event["type"] == "http.disconnect":
            self.end()
            return
        while self._events and not self._over:
            await self._changed.wait()
        if not self._over:
            self._events.append(event)
            self._change()

    async def take(self) -> Any:
        while not self._events:
            if self._over:
                return {"type": "http.disconnect"}
            await self._changed.wait()
        event = self._events.popleft()
        self._change()
        return event

    def end(self) -> None:
        self._over = True
        self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class _Handlers(TaskGroup):
    async def spawn_app(self, app: Any, config: HypercornConfig, scope: Any, send: Any) -> Any:
        body = _Body()

        async def run() -> None:
            try:
                await app(scope, body.take, send, trio.to_thread.run_sync, trio.from_thread.run)
            except Exception:
                log.exception("%s %s failed", scope.get("method"), scope.get("path"))
            body.end()
            await send(None)

        self.spawn(run)
        return body.put


class Server:
    """All connections of the listener.

    When there is one too many, one is closed that does not answer a logged-in user, and belongs to no
    administrator: the oldest one of the address with most connections. So a probe always gets a connection,
    and connections of one address do not displace those of others.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        slices: Slices,
        log_limit: LineLimit,
        proxies: Proxies | None = None,
    ) -> None:
        self.log_limit = log_limit
        self.app = ASGIWrapper(app)  # type: ignore[arg-type]
        self.limits = limits
        self.proxies = proxies or Proxies(())
        self.slices = slices
        self.settings = HypercornConfig()
        self.settings.include_server_header = False
        self.settings.accesslog = None
        self.settings.errorlog = server_log
        self.context = WorkerContext(None)
        #: Connections in the order of their last answer.
        self._connections: dict[Connection, None] = {}

    async def serve(
        self,
        listening: socket.socket,
        stop: Callable[[], Awaitable[None]],
        drain_s: float,
        failed: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Serve until `stop` returns; then requests that are being answered have `drain_s` to end. `failed`
        is told the errors of connections that cannot be accepted.
        """

        def cannot_accept(error: OSError) -> None:
            if self.log_limit.allows("connections that could not be accepted", "management clients", 1):
                log.error("cannot accept a management connection: %s; it waits", error)
            failed(error)

        async with trio.open_nursery() as clients:

            def accepted(sock: socket.socket, _: object) -> None:
                try:
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                    source = source_of(str(sock.getpeername()[0]))
                except OSError:
                    # The client has disconnected already.
                    sock.close()
                    return
                self._begin(stream, source, clients)

            async with trio.open_nursery() as accepting:
                accepting.start_soon(accept_all, listening, ACCEPT_BATCH, accepted, cannot_accept)
                await stop()
                accepting.cancel_scope.cancel()
            clients.cancel_scope.deadline = trio.current_time() + drain_s
            for connection in list(self._connections):
                if not connection.answering:
                    connection.close()

    def _begin(self, stream: trio.SocketStream, source: str, clients: trio.Nursery) -> None:
        if len(self._connections) >= self.limits.connections_max and not self._make_room(source):
            stream.socket.close()
            return
        connection = Connection(self, stream, source)
        self._connections[connection] = None
        clients.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._connections.pop(connection, None)

    def _make_room(self, source: str) -> bool:
        """Close a connection for a new one of this address; return False if all of them have to stay."""
        counts = Counter(connection.source for connection in self._connections)
        may_go = [connection for connection in self._connections if not connection.protected]
        if not may_go:
            return False
        fewest = counts[source] + 1
        others = [connection for connection in may_go if counts[connection.source] > fewest]
        # The oldest one of the busiest address; of its own, if no other address has more.
        busiest = max((counts[connection.source] for connection in others), default=0)
        closed = next(
            (connection for connection in others if counts[connection.source] == busiest),
            next((connection for connection in may_go if connection.source == source), may_go[0]),
        )
        # This connection ends soon; another new connection in the meantime has to displace a different one.
        closed.displace()
        del self._connections[closed]
        return True

    def answered(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None


class Connection:
    def __init__(self, server: Server, stream: trio.SocketStream, source: str) -> None:
        self._server = server
        #: The client's address, for the shares of addresses.
        self.source = source
        self._stream = stream
        self._scope = trio.CancelScope()
        self._displaced = False
        self._lingering = trio.CancelScope()
        self._sending = trio.Lock()
        self._reading = trio.CancelScope()
        self._began = False
        #: Number of consecutive requests that arrived before the previous one was answered.
        self._pipelined = 0
        #: Time for which the node has waited for the client to take the present answer, s.
        self._waited_s = 0.0
        self._protocol: Http1
        #: True while a request is being answered.
        self.answering = False
        #: True while it answers a user who is logged in: then new connections do not displace it.
        self.protected = False

    def close(self) -> None:
        self._scope.cancel()

    def displace(self) -> None:
        """Close at once: its descriptor is for another connection."""
        self._displaced = True
        self._lingering.cancel()
        self.close()

    async def run(self) -> None:
        try:
            with self._scope:
                await self._talk()
            if not self._displaced:
                with self._lingering:
                    await self._linger()
        except OSError:
            # The client is gone.
            pass
        except Exception:
            log.exception("a connection of the management listener failed")
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _talk(self) -> None:
        server, sock = self._server, self._stream.socket
        # Many connections may arrive at a time, and each one costs as much as a request.
        await server.slices.rest()
        peer = parse_socket_addr(sock.family, sock.getpeername())
        here = parse_socket_addr(sock.family, sock.getsockname())
        if server.proxies and server.proxies.trusts(sock.getpeername()[0]):
            proxy = await self._proxy_header()
            if proxy is None:
                return
            peer, here = proxy.client or peer, proxy.here or here
            if proxy.client is not None:
                self.source = source_of(proxy.client.host)
        if peer is not None:
            peer = plain_host(peer[0]), peer[1]
        async with _Handlers() as tasks:
            self._protocol = Http1(
                server.app,
                server.settings,
                server.context,
                tasks,
                ConnectionState({"connection": self}),
                False,
                peer,
                here,
                self._handle,
            )
            assert isinstance(self._protocol.connection, h11.Connection)
            check_heads(self._protocol.connection)
            self._wait_for_request()
            await self._read()

    async def _proxy_header(self) -> ProxyHeader | None:
        limits = self._server.limits
        try:
            with trio.fail_after(limits.request_timeout_s):
                return await read_header(self._stream.socket.recv, limits.proxy_header_bytes_max)
        except (BadProxyHeader, trio.TooSlowError) as error:
            peer, said = self._stream.socket.getpeername()[0], str(error) or "it took too long"
            log.info("PROXY header of a management connection with %s failed: %s", peer, said)
            return None

    async def _linger(self) -> None:
        """Give the client time to read a refusal: data that it still sends would make the kernel reset the
        connection.
        """
        with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stream.send_eof()
            while await self._stream.receive_some(CHUNK_BYTES):
                pass

    def _wait_for_request(self) -> None:
        self._began = False
        self._set_deadline()

    def _set_deadline(self) -> None:
        self._reading.deadline = trio.current_time() + self._server.limits.request_timeout_s

    async def _read(self) -> None:
        while data := await self._receive():
            if not self._began:
                self._began = True
                self._set_deadline()
                if is_hello(data):
                    self._say_plain()
            await self._server.slices.rest()
            # Returns when the handler has taken the data; if the data begins a request behind another one, it
            # returns when the other one is answered.
            await self._protocol.handle(RawData(data))
        await self._protocol.handle(Closed())

    def _say_plain(self) -> None:
        """Log that the client speaks TLS. It gets a 400, which it takes for a wrong TLS version."""
        peer = self._stream.socket.getpeername()[0]
        if self._server.log_limit.allows("TLS on the management listener", peer):
            log.info(
                "the client at %s uses TLS, but this listener uses plain HTTP: use http:// there, or put a "
                "TLS proxy in front of the listener",
                peer,
            )

    async def _receive(self) -> bytes:
        """Return the data that the client sends; nothing when it is gone or has taken too long."""
        deadline = self._reading.deadline if self._protocol.awaits_request else math.inf
        with trio.CancelScope(deadline=deadline) as self._reading:
            try:
                return bytes(await self._stream.receive_some(CHUNK_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        self.close()
        return b""

    async def _handle(self, event: Event) -> None:
        """Handle an event of the protocol: data for the client, or a change of the connection's state."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self.close()
        elif isinstance(event, Updated):
            self.answering = not event.idle
            if event.idle:
                self._waited_s = 0.0
                self._server.answered(self)
                self._pipelined = self._pipelined + 1 if self._protocol.was_followed else 0
                if self._pipelined > self._server.limits.pipelined_max:
                    # Browsers and usual clients wait for each answer. The client may send the next request
                    # again.
                    self.close()
                    return
                self._wait_for_request()
                # The next request may be buffered already, and thousands behind it.
                await self._server.slices.rest()

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            view = memoryview(data)
            limits = self._server.limits
            for start in range(0, len(data), CHUNK_BYTES):
                began = trio.current_time()
                until = began + min(limits.send_timeout_s, limits.answer_timeout_s - self._waited_s)
                try:
                    with trio.fail_at(until):
                        await self._stream.send_all(view[start : start + CHUNK_BYTES])
                except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                    self.close()
                    return
                self._waited_s += trio.current_time() - began
