"""One end of a shovel: a connection, and the session on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio
from pamqp import base, commands

from amqp_server.shovels.errors import ChannelClosed, PeerError, PeerLost
from amqp_server.shovels.session import Answer, ClientSession, Event, Opened
from amqp_server.wire import methods

READ_BYTES = 64 * 1024
SEND_BYTES = 256 * 1024
#: Events handled before other clients of the node get a turn.
EVENTS_AT_ONCE = 32
NOT_FOUND = 404


class Peer:
    def __init__(self, stream: trio.abc.Stream, session: ClientSession, which: str) -> None:
        """`which` is "source" or "destination", for texts."""
        self._stream = stream
        self.session = session
        self._which = which
        self._more_to_send = trio.Event()
        self.last_received = self.last_sent = trio.current_time()
        #: True while the connection is not read: then its silence means nothing.
        self.unread = False
        #: True if a frame may have been sent only in part.
        self._broken = False

    # -- one after the other, before messages flow -----------------------------------------------------------

    async def opened(self) -> None:
        """Return when the channel is open. Raises ShovelError."""
        event = await self._event()
        if not isinstance(event, Opened):
            raise PeerError(f"the {self._which} has sent something that was not asked for")

    async def ask(self, method: base.Frame) -> base.Frame:
        """Send a method and return its answer. Raises ShovelError."""
        self.session.send(method)
        wanted = method.valid_responses
        while True:
            event = await self._event()
            # Blocked and unblocked events do not matter here.
            if isinstance(event, Answer):
                if event.method.name not in wanted:
                    raise PeerError(f"the {self._which} has answered with {event.method.name}")
                return event.method

    async def _event(self) -> Event:
        while True:
            event = self.session.next_event()
            # Send what the session has answered itself, as in the handshake.
            await self._send_waiting()
            if event is not None:
                return event
            self.session.receive(await self._receive())

    async def ensure_queue(self, name: str, arguments: object, *, predeclared: bool) -> int:
        """Declare a durable queue unless it exists; return how many messages it has. Raises ShovelError."""
        try:
            answer = await self.ask(methods.make(commands.Queue.Declare, queue=name, passive=True))
        except ChannelClosed as closed:
            if predeclared or closed.code != NOT_FOUND:
                raise
            self.session.reopen()
            await self.opened()
            answer = await self.ask(
                methods.make(commands.Queue.Declare, queue=name, durable=True, arguments=arguments)
            )
        return getattr(answer, "message_count", 0) or 0

    # -- messages --------------------------------------------------------------------------------------------

    async def read(
        self, handle: Callable[[Event], None], flush: Callable[[], None], gate: Gate | None
    ) -> NoReturn:
        """Handle events of the other side; while the gate is shut, nothing is read. Raises ShovelError."""
        session = self.session
        while True:
            count = 0
            while True:
                if gate is not None and gate.shut():
                    flush()
                    self.unread = True
                    await gate.opened()
                    self.unread = False
                    self.last_received = trio.current_time()
                event = session.next_event()
                if event is None:
                    break
                handle(event)
                count += 1
                if count % EVENTS_AT_ONCE == 0:
                    flush()
                    await trio.lowlevel.checkpoint()
            flush()
            session.receive(await self._receive())

    def to_send(self) -> None:
        """Called when the outbox may have bytes to send."""
        if self.session.outbox.waiting:
            self._more_to_send.set()

    async def write(self, sent: Callable[[], None]) -> NoReturn:
        """Send the outbox as it fills. Raises PeerLost."""
        while True:
            await self._send_waiting()
            sent()
            if not self.session.outbox.waiting:
                self._more_to_send = trio.Event()
                await self._more_to_send.wait()

    async def _send_waiting(self) -> None:
        outbox = self.session.outbox
        while outbox.waiting:
            data = outbox.take(SEND_BYTES)
            self._broken = True
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise PeerLost(f"the connection to the {self._which} is lost") from None
            self._broken = False
            outbox.sent(len(data))
            self.last_sent = trio.current_time()

    async def _receive(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            raise PeerLost(f"the connection to the {self._which} is lost")
        self.last_received = trio.current_time()
        return data

    def beat(self) -> None:
        """Send a heartbeat if one is due. Raises PeerLost when the other side is silent for too long."""
        now, interval_s = trio.current_time(), self.session.heartbeat_s
        if not interval_s:
            return
        if not self.unread and now - self.last_received > 2 * interval_s:
            raise PeerLost(f"the {self._which} has sent nothing for {2 * interval_s} s")
        if now - self.last_sent > interval_s / 2 and not self.session.outbox.bytes:
            self.session.heartbeat()
            self.to_send()

    async def close(self, seconds: float) -> None:
        """Close the connection in order, if the other side answers in time. Then everything sent before has
        arrived.
        """
        if self._broken:
            return
        with trio.move_on_after(seconds, shield=True):
            try:
                self.session.close()
                while not self.session.closed:
                    await self._send_waiting()
                    while self.session.next_event() is not None:
                        pass
                    if not self.session.closed:
                        self.session.receive(await self._receive())
            except Exception:  # noqa: BLE001 - it is over either way
                return


class Gate:
    """Keeps a reader waiting."""

    def __init__(self, shut: Callable[[], bool]) -> None:
        self.shut = shut
        self._look = trio.Event()

    def look(self) -> None:
        """The gate may be open now: check it."""
        self._look.set()

    async def opened(self) -> None:
        while self.shut():
            self._look = trio.Event()
            await self._look.wait()
