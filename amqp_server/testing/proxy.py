"""The network between nodes, in a separate process: it passes, holds back, cuts, delays and throttles data.

A node dials its peers through this process, one port for each directed pair. Conditions apply to a direction
of the data, whichever side dialled. Holding back acts like a network that drops all packets: nothing arrives,
no side gets an error, and the data arrives after the heal, like TCP's retransmissions. Cutting resets
connections and refuses new ones.

Commands come as JSON, one a line: `{"open": [dialler, dialled, port]}` is answered with a port of the proxy,
`{"set": [sender, receiver, conditions]}` with null.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
READ_BYTES = 256 * 1024
#: Bytes in transit in one direction; a sender waits when this buffer is full.
BUFFER_BYTES = 1 << 20
CONNECT_MAX_S = 1.0
#: Interval of checks of a throttled direction; a direction may catch up on this much time at once.
THROTTLE_TICK_S = 0.01
_RESET = struct.pack("ii", 1, 0)

Pair = tuple[str, str]


@dataclass(frozen=True)
class Conditions:
    """Network conditions from one node to another."""

    hold: bool = False
    cut: bool = False
    delay_ms: int = 0
    #: 0: no limit.
    bytes_per_s: int = 0


@dataclass(eq=False)
class Flow:
    """One direction of one connection."""

    pair: Pair
    source: socket.socket
    target: socket.socket
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    waiting_bytes: int = 0
    ended: bool = False
    shut: bool = False
    sent_at: float = 0.0

    def take(self, delay_s: float, now: float) -> bool:
        """Read available data; return False if the connection broke."""
        try:
            data = self.source.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self.waiting.append((now + delay_s, data))
            self.waiting_bytes += len(data)
        else:
            self.ended = True
        return True

    def give(self, now: float, bytes_per_s: int) -> bool:
        """Send data that is due; return False if the connection broke."""
        room = BUFFER_BYTES
        if bytes_per_s:
            room = int(min(now - self.sent_at, 4 * THROTTLE_TICK_S) * bytes_per_s)
        while self.waiting and self.waiting[0][0] <= now and room > 0:
            due, data = self.waiting[0]
            try:
                sent = self.target.send(data[:room])
            except BlockingIOError:
                break
            except OSError:
                return False
            room -= sent
            self.sent_at = now
            self.waiting_bytes -= sent
            if sent == len(data):
                self.waiting.popleft()
            else:
                self.waiting[0] = (due, data[sent:])
        if self.ended and not self.waiting and not self.shut:
            self.shut = True
            with suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)
        return True


class Proxy:
    def __init__(self) -> None:
        self._conditions: dict[Pair, Conditions] = {}
        self._listeners: dict[socket.socket, tuple[Pair, int]] = {}
        #: Connections that the kernel has accepted, although their handshake would not have got through.
        self._knocking: list[tuple[Pair, int, socket.socket]] = []
        self._connections: list[tuple[Flow, Flow]] = []

    def on(self, pair: Pair) -> Conditions:
        return self._conditions.get(pair, Conditions())

    def open(self, dialler: str, dialled: str, port: int) -> int:
        listener = socket.create_server((HOST, 0))
        listener.setblocking(False)
        self._listeners[listener] = ((dialler, dialled), port)
        return int(listener.getsockname()[1])

    def change(self, sender: str, receiver: str, conditions: dict[str, Any]) -> None:
        self._conditions[sender, receiver] = Conditions(**conditions)
        for there, back in list(self._connections):
            if self._cut(there.pair):
                self._reset(there, back)
        knocking, self._knocking = self._knocking, []
        for pair, port, dialling in knocking:
            self._connect(pair, port, dialling)

    def _cut(self, pair: Pair) -> bool:
        return self.on(pair).cut or self.on(pair[::-1]).cut

    def _reset(self, there: Flow, back: Flow) -> None:
        for flow in (there, back):
            with suppress(OSError):
                flow.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            flow.source.close()
        self._connections.remove((there, back))

    def _connect(self, pair: Pair, port: int, dialling: socket.socket) -> None:
        if not self._cut(pair):
            if self.on(pair).hold or self.on(pair[::-1]).hold:
                self._knocking.append((pair, port, dialling))
                return
            with suppress(OSError):
                dialled = socket.create_connection((HOST, port), CONNECT_MAX_S)
                for sock in (dialling, dialled):
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append((Flow(pair, dialling, dialled), Flow(pair[::-1], dialled, dialling)))
                return
        dialling.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        dialling.close()

    def step(self, commands: int) -> bool:
        """Wait for work and do it; return True if a command waits."""
        now = time.monotonic()
        reading, writing, pause = self._wanted(now)
        asked: list[int | socket.socket] = [commands, *self._listeners, *reading]
        readable, writable, _ = select.select(asked, writing, [], pause)
        now = time.monotonic()
        for sock in readable:
            if isinstance(sock, socket.socket) and sock in self._listeners:
                with suppress(BlockingIOError):
                    self._connect(*self._listeners[sock], sock.accept()[0])
        come, free = set(readable), set(writable)
        for there, back in list(self._connections):
            if not all(self._moved(flow, come, free, now) for flow in (there, back)):
                self._reset(there, back)
            elif there.shut and back.shut:
                there.source.close()
                back.source.close()
                self._connections.remove((there, back))
        return commands in come

    def _wanted(self, now: float) -> tuple[list[socket.socket], list[socket.socket], float | None]:
        reading: list[socket.socket] = []
        writing: list[socket.socket] = []
        pause: float | None = None
        for flow in (flow for connection in self._connections for flow in connection):
            conditions = self.on(flow.pair)
            if conditions.hold:
                continue
            if not flow.ended and flow.waiting_bytes < BUFFER_BYTES:
                reading.append(flow.source)
            if not flow.waiting:
                continue
            wait = flow.waiting[0][0] - now
            if conditions.bytes_per_s:
                wait = max(wait, THROTTLE_TICK_S - (now - flow.sent_at))
            if wait <= 0:
                writing.append(flow.target)
            else:
                pause = wait if pause is None else min(pause, wait)
        return reading, writing, pause

    def _moved(self, flow: Flow, come: set[Any], free: set[Any], now: float) -> bool:
        conditions = self.on(flow.pair)
        if conditions.hold:
            return True
        if flow.source in come and not flow.ended:
            if not flow.take(conditions.delay_ms / 1000, now):
                return False
            return flow.give(now, conditions.bytes_per_s)
        if flow.target in free or flow.ended:
            return flow.give(now, conditions.bytes_per_s)
        return True


def main() -> None:
    proxy = Proxy()
    unread = b""
    while True:
        if not proxy.step(0):
            continue
        data = os.read(0, READ_BYTES)
        if not data:
            return
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            ((name, arguments),) = json.loads(line).items()
            answer: int | None = None
            if name == "open":
                answer = proxy.open(*arguments)
            else:
                proxy.change(*arguments)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
