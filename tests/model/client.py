"""A client on one connection with any number of channels; what comes is kept in the order of the wire."""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pamqp.base
import pamqp.exceptions
import pamqp.frame
from pamqp import commands
from pamqp.header import ContentHeader

from conformance_tests.wire import BODY, HEADER, HEARTBEAT, METHOD, ClosedByPeer, RawClient, frame_bytes

FRAME_MAX = 131_072
CAPABILITIES: dict[str, Any] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


@dataclass
class Arrived:
    """A method on a channel, with its content if it has one."""

    channel: int
    method: pamqp.base.Frame
    properties: commands.Basic.Properties | None = None
    body: bytes = b""


class Gone(Exception):
    """The connection is lost; the code is that of connection.close, or 0."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Client:
    def __init__(self, url: str, user: str, password: str, vhost: str, patience_s: float) -> None:
        self.raw = RawClient(url, read_s=patience_s)
        try:
            self.raw.handshake(vhost=vhost, user=user, password=password, capabilities=CAPABILITIES)
        except ClosedByPeer as error:
            self.raw.abort()
            raise Gone(0, str(error)) from error
        except AssertionError as error:
            self.raw.abort()
            if isinstance(answer := error.args[0], str) and "reply_code=530" in answer:
                raise Gone(530, answer) from error
            raise
        except (OSError, TimeoutError):
            self.raw.abort()
            raise
        self.events: deque[Arrived] = deque()
        self.blocked = False
        self.gone: Gone | None = None
        self._rest = b""
        self._contents: dict[int, tuple[Arrived, int]] = {}

    def fileno(self) -> int:
        return self.raw.socket.fileno()

    def send(self, channel: int, *methods: pamqp.base.Frame) -> None:
        self.write(b"".join(pamqp.frame.marshal(method, channel) for method in methods))

    def write(self, data: bytes) -> None:
        """Send, and read meanwhile: a broker need not read from a client that does not."""
        if self.gone is not None:
            raise self.gone
        view = memoryview(data)
        self.raw.socket.settimeout(0)
        deadline = time.monotonic() + self.raw.read_s
        while view:
            try:
                view = view[self.raw.socket.send(view) :]
            except BlockingIOError:
                self.read()
                select.select([], [self], [], 0.05)
                if time.monotonic() > deadline:
                    raise TimeoutError("the broker does not read") from None
            except OSError as error:
                self.read()
                self.gone = self.gone or Gone(0, str(error))
                raise self.gone from error

    def read(self) -> None:
        """Take what has come, without a wait."""
        if self.gone is not None:
            return
        self.raw.socket.settimeout(0)
        before = len(self.events)
        try:
            while data := self.raw.socket.recv(1 << 20):
                self._take(data)
                if self.gone is not None:
                    return
            self.gone = Gone(0, "end of stream")
        except BlockingIOError:
            pass
        except OSError as error:
            self.gone = Gone(0, str(error))
        finally:
            self._closes_first(before)

    def _closes_first(self, before: int) -> None:
        """What a channel held that the broker closes, or a consumer that it cancels, may come to another
        channel before that: as if it came after it.
        """
        for at in range(before, len(self.events)):
            if isinstance(self.events[at].method, commands.Channel.Close | commands.Basic.Cancel):
                events, closed = list(self.events), self.events[at].channel
                until = sorted(events[: at + 1], key=lambda arrived: arrived.channel != closed)
                self.events = deque(until + events[at + 1 :])

    def _take(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= 8:
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            end = at + size + 8
            if end > len(data):
                break
            self._frame(
                data[at], int.from_bytes(data[at + 1 : at + 3], "big"), data[at + 7 : end - 1], data[at:end]
            )
            at = end
        self._rest = data[at:]

    def _frame(self, kind: int, channel: int, payload: bytes, whole: bytes) -> None:
        if kind == HEARTBEAT:
            return
        if kind == METHOD:
            method = pamqp.frame.unmarshal(whole)[2]
            assert isinstance(method, pamqp.base.Frame)
            self._method(Arrived(channel, method))
            return
        arrived, left = self._contents[channel]
        if kind == HEADER:
            header = ContentHeader()
            header.unmarshal(payload)
            arrived.properties, left = header.properties, header.body_size
        else:
            assert kind == BODY
            arrived.body += payload
            left -= len(payload)
        self._contents[channel] = arrived, left
        if left == 0:
            self.events.append(arrived)
            del self._contents[channel]

    def _method(self, arrived: Arrived) -> None:
        method = arrived.method
        if isinstance(method, commands.Connection.Close):
            self.gone = Gone(int(method.reply_code or 0), str(method.reply_text))
            with contextlib.suppress(OSError):
                self.raw.send(pamqp.frame.marshal(commands.Connection.CloseOk(), 0))
        elif isinstance(method, commands.Connection.Blocked):
            self.blocked = True
        elif isinstance(method, commands.Connection.Unblocked):
            self.blocked = False
        elif isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return):
            self._contents[arrived.channel] = arrived, -1
        else:
            self.events.append(arrived)

    def close(self) -> None:
        self.raw.close()

    def abort(self) -> None:
        self.raw.abort()


def publish_frames(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    properties: commands.Basic.Properties,
    *,
    mandatory: bool,
) -> bytes:
    method = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    header = ContentHeader(0, len(body), properties)
    frames = [pamqp.frame.marshal(method, channel), pamqp.frame.marshal(header, channel)]
    step = FRAME_MAX - 8
    frames += [frame_bytes(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(frames)


def wait_readable(clients: Iterable[Client], seconds: float) -> None:
    """Wait until one of them has something to read, and read it."""
    open_ones = [client for client in clients if client.gone is None]
    if not open_ones:
        time.sleep(min(seconds, 0.01))
        return
    readable, _, _ = select.select(open_ones, [], [], seconds)
    for client in readable:
        client.read()
