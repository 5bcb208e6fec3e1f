"""Connections of the management listener: HTTP/1.1, each with time limits, and as many as are allowed.

Hypercorn speaks HTTP, and this is its edge: Hypercorn's own waits for ever for a client that does not read
its answer or that sends its request byte by byte, offers HTTP/2 without TLS, whose streams can be held open
in their hundreds, and leaves reason phrases empty.
"""

from __future__ import annotations

import logging
import math
from collections import deque
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
from amqp_server.connection.handshake_failures import is_hello
from amqp_server.connection.proxy_protocol import BadProxyHeader, Proxies, ProxyHeader, plain_host
from amqp_server.connection.proxy_reader import read_header
from amqp_server.logs import LineLimit
from amqp_server.management.slices import Slices

log = logging.getLogger("mqd.management")
#: Hypercorn's own, which would greet at every start.
server_log = logging.getLogger("mqd.management.server")
server_log.setLevel(logging.WARNING)

#: Read at a time, and written at a time: what one connection may hold without a login.
CHUNK_BYTES = 16_384
#: For a client to read a refusal and to end its connection.
LINGER_S = 1.0
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(frozen=True)
class Limits:
    connections_max: int
    #: For a request to be complete since its first byte, and for the first byte since the last answer.
    request_timeout_s: float
    #: For a client to take CHUNK_BYTES of an answer.
    send_timeout_s: float
    proxy_header_bytes_max: int
    #: Requests that were sent before the one ahead of them was answered, one behind the other.
    pipelined_max: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        return cls(
            config.http_connections_max,
            config.http_request_timeout_s,
            config.http_send_timeout_s,
            config.proxy_header_bytes_max,
            config.http_pipelined_max,
        )


class Http1(H11Protocol):
    """With reason phrases, some clients show nothing else of a refusal; and without a way to HTTP/2."""

    #: Whether the client had sent the next request before it got the answer to the last one. (Once it has the
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
        """No upgrade: the request is answered as HTTP/1.1."""

    @property
    def awaits_request(self) -> bool:
        return self.connection.their_state in (h11.IDLE, h11.SEND_BODY)


class _Body:
    """What a handler has to read. Nobody waits for a handler that has ended without reading it.

    (Hypercorn's own queue does: a refused request with a body leaves its connection behind for ever.)
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

    When there is one too many, the oldest one goes that nobody is logged in on: a probe gets in whatever
    others do.
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
        #: In the order of their last answer.
        self._connections: dict[Connection, None] = {}

    async def serve(
        self, listener: trio.SocketListener, stop: Callable[[], Awaitable[None]], drain_s: float
    ) -> None:
        """Serve until `stop` returns; then requests that are being answered have `drain_s` to end."""
        async with trio.open_nursery() as clients:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self._accept, listener, clients)
                await stop()
                accepting.cancel_scope.cancel()
            clients.cancel_scope.deadline = trio.current_time() + drain_s
            for connection in list(self._connections):
                if not connection.answering:
                    connection.close()

    async def _accept(self, listener: trio.SocketListener, clients: trio.Nursery) -> None:
        await trio.serve_listeners(self._serve, [listener], handler_nursery=clients)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if len(self._connections) >= self.limits.connections_max:
            self._make_room()
        connection = Connection(self, stream)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            self._connections.pop(connection, None)

    def _make_room(self) -> None:
        for connection in self._connections:
            if not connection.protected:
                connection.close()
                # It ends soon; another one that comes meanwhile has to displace another one.
                del self._connections[connection]
                return

    def answered(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None


class Connection:
    def __init__(self, server: Server, stream: trio.SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._scope = trio.CancelScope()
        self._sending = trio.Lock()
        self._reading = trio.CancelScope()
        self._began = False
        #: How many requests have come, one behind the other, before the answer to the one ahead of them.
        self._pipelined = 0
        self._protocol: Http1
        #: True while a request is being answered.
        self.answering = False
        #: True while it answers someone who is logged in: then it is not displaced.
        self.protected = False

    def close(self) -> None:
        self._scope.cancel()

    async def run(self) -> None:
        try:
            with self._scope:
                await self._talk()
            await self._linger()
        except OSError:
            # The client is gone.
            pass
        except Exception:
            log.exception("a connection of the management listener failed")
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _talk(self) -> None:
        server, socket = self._server, self._stream.socket
        # Many may come at a time, and each one costs as much as a request.
        await server.slices.rest()
        peer = parse_socket_addr(socket.family, socket.getpeername())
        here = parse_socket_addr(socket.family, socket.getsockname())
        if server.proxies and server.proxies.trusts(socket.getpeername()[0]):
            proxy = await self._proxy_header()
            if proxy is None:
                return
            peer, here = proxy.client or peer, proxy.here or here
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
        """Have the client read a refusal before its socket is reset because of what it goes on sending."""
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
            # Returns when the handler has taken what was read; and if that begins a request behind another
            # one, when the other one is answered.
            await self._protocol.handle(RawData(data))
        await self._protocol.handle(Closed())

    def _say_plain(self) -> None:
        """The client speaks TLS: it is told 400, which it takes for a wrong version."""
        peer = self._stream.socket.getpeername()[0]
        if self._server.log_limit.allows("TLS on the management listener", peer):
            log.info(
                "a client at %s speaks TLS, and this listener speaks plain HTTP: have it use http, or put a TLS proxy before "
                "the listener",
                peer,
            )

    async def _receive(self) -> bytes:
        """Return what the client sends; nothing when it is gone, or has taken too long."""
        deadline = self._reading.deadline if self._protocol.awaits_request else math.inf
        with trio.CancelScope(deadline=deadline) as self._reading:
            try:
                return bytes(await self._stream.receive_some(CHUNK_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        self.close()
        return b""

    async def _handle(self, event: Event) -> None:
        """What the protocol has to say to the client, or about it."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self.close()
        elif isinstance(event, Updated):
            self.answering = not event.idle
            if event.idle:
                self._server.answered(self)
                self._pipelined = self._pipelined + 1 if self._protocol.was_followed else 0
                if self._pipelined > self._server.limits.pipelined_max:
                    # Browsers and clients wait for their answers. The next request may be sent again.
                    self.close()
                    return
                self._wait_for_request()
                # The next request may be there already, and thousands behind it.
                await self._server.slices.rest()

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            view = memoryview(data)
            for start in range(0, len(data), CHUNK_BYTES):
                try:
                    with trio.fail_after(self._server.limits.send_timeout_s):
                        await self._stream.send_all(view[start : start + CHUNK_BYTES])
                except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                    self.close()
                    return
