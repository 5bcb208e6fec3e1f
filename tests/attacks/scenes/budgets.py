"""Attacks that use up what a node has: descriptors, places for requests, and the memory of answers and
shovels.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import threading
import time
from typing import Any

from pamqp import base, commands, exceptions, frame

from ..scene import ELSEWHERE, MIB, Scene, Target
from . import frames
from .web import call

#: Seconds for which places and memory are held.
HELD_S = 8.0
FILES = 1_024


def _user(target: Target, name: str, tags: str, pattern: str) -> str:
    """Make a user; return what it logs in with."""
    assert call(target, "PUT", f"/api/users/{name}", {"password": name, "tags": tags}) < 300
    permissions = dict.fromkeys(("configure", "write", "read"), pattern)
    assert call(target, "PUT", f"/api/permissions/%2F/{name}", permissions) < 300
    return base64.b64encode(f"{name}:{name}".encode()).decode()


def _request(target: Target, login: str, path: str, body: bytes, length: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.bind((ELSEWHERE, 0))
    sock.connect(("127.0.0.1", target.node.http))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\nContent-Length: {length}\r\n\r\n"
    )
    sock.sendall(head.encode() + body)
    return sock


def _fill(target: Target, queue: str, **arguments: Any) -> None:
    with target.client() as client:
        client.declare(queue, **arguments)
        one = frames.message("", queue, b"x" * MIB)
        for _ in range(34):
            client.send(one)
        client.count(queue)


def unread_answers(target: Target) -> None:
    """50 requests of one user for 32 MiB of a stream, whose answers nobody takes."""
    kind: Any = {"x-queue-type": "stream"}
    _fill(target, "read", **kind)
    login = _user(target, "reader", "management", "^read$")
    body = b'{"count": 1000, "encoding": "base64"}'
    with contextlib.ExitStack() as stack:
        for _ in range(target.many(50)):
            stack.enter_context(_request(target, login, "/api/queues/%2F/read/read", body, len(body)))
        time.sleep(HELD_S)


def large_gets(target: Target) -> None:
    """Requests that get 32 MiB of a queue, one after the other."""
    _fill(target, "got")
    for encoding in ("base64", "auto"):
        asked = {"count": 1_000, "encoding": encoding, "ackmode": "ack_requeue_true"}
        for _ in range(target.many(10)):
            assert call(target, "POST", "/api/queues/%2F/got/get", asked) == 200


def bodies_of_others(target: Target) -> None:
    """Four users without permissions begin 64 requests each, again and again, and send no body."""
    logins = [_user(target, f"m{number}", "management", "^$") for number in range(4)]
    over = threading.Event()

    def hold(login: str) -> None:
        held: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                while len(held) < 64:
                    held.append(_request(target, login, "/api/queues/%2F/x/get", b"{", 10))
            ended, _, _ = select.select(held, (), (), 0.1)
            for sock in ended:
                held.remove(sock)
                sock.close()
        for sock in held:
            sock.close()

    threads = [threading.Thread(target=hold, args=(login,)) for login in logins]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + HELD_S
        while time.monotonic() < until:
            assert call(target, "GET", "/api/overview") == 200
            time.sleep(0.2)
    finally:
        over.set()
        for thread in threads:
            thread.join()


class Sink:
    """A server of AMQP that lets clients begin, and then reads nothing more."""

    ANSWERS: dict[type[base.Frame], tuple[int, base.Frame]] = {
        commands.Connection.StartOk: (0, commands.Connection.Tune(2_047, 131_072, 0)),
        commands.Connection.Open: (0, commands.Connection.OpenOk()),
        commands.Channel.Open: (1, commands.Channel.OpenOk()),
        commands.Queue.Declare: (1, commands.Queue.DeclareOk("x", 0, 0)),
        commands.Confirm.Select: (1, commands.Confirm.SelectOk()),
    }

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.port = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self._sockets.append(sock)
                threading.Thread(target=self._begin, args=(sock,), daemon=True).start()

    def _begin(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.recv(8, socket.MSG_WAITALL)
            sock.sendall(frame.marshal(commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"), 0))
            data = b""
            while more := sock.recv(4_096):
                data += more
                while data:
                    try:
                        size, _, method = frame.unmarshal(data)
                    except exceptions.UnmarshalingException:
                        break
                    data = data[size:]
                    found = self.ANSWERS.get(type(method)) if isinstance(method, base.Frame) else None
                    if found is not None:
                        sock.sendall(frame.marshal(found[1], found[0]))
                    if isinstance(method, commands.Confirm.Select):
                        return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for sock in (self._listening, *self._sockets):
            sock.close()


def stuck_shovels(target: Target) -> None:
    """60 shovels with 16 MiB each, to a server that takes nothing."""
    names = [f"stuck{number}" for number in range(target.many(60))]
    sink = Sink()
    try:
        with target.client() as client:
            client.call(
                commands.Exchange.Declare(exchange="all", exchange_type="fanout"), commands.Exchange.DeclareOk
            )
            for name in names:
                client.declare(name)
                client.call(
                    commands.Queue.Bind(queue=name, exchange="all", routing_key=""), commands.Queue.BindOk
                )
            for _ in range(17):
                client.send(frames.message("all", "", b"x" * MIB))
            client.count(names[0])
        for name in names:
            value = {"src-uri": "amqp://", "src-queue": name, "dest-queue": "x", "src-prefetch-count": 1_000}
            value["dest-uri"] = f"amqp://a:b@127.0.0.1:{sink.port}"
            assert call(target, "PUT", f"/api/parameters/shovel/%2F/{name}", {"value": value}) < 300
        time.sleep(2 * HELD_S)
        for name in names:
            assert call(target, "DELETE", f"/api/parameters/shovel/%2F/{name}") < 300
            assert call(target, "DELETE", f"/api/queues/%2F/{name}") < 300
    finally:
        sink.close()


def tiny_segments(target: Target) -> None:
    """A stream declared with segments of one byte: each message would be two files."""
    arguments: Any = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1}
    with target.client() as client:
        client.declare("tiny", **arguments)
        client.confirms()
        until = time.monotonic() + HELD_S * max(target.size, 0.5)
        while time.monotonic() < until:
            client.send(frames.message("", "tiny", b"x" * 100) * 10)
            client.receive(1.0)
        client.count("tiny")
    files = len(list(target.node.data.glob("streams/*/*")))
    # A segment for each 16 KiB, with its index, and a few files besides.
    written = sum(path.stat().st_size for path in target.node.data.glob("streams/*/*.segment"))
    assert files <= 2 * (written // (16 * 1024) + 1) + 8, f"{files} files for {written} bytes"


def descriptors(target: Target) -> None:
    """3,000 connections, half of them to management, to a node that may open 1,024 files."""
    with contextlib.ExitStack() as stack:
        for number in range(target.many(3_000)):
            port = target.node.http if number % 2 else target.node.port
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 5, (ELSEWHERE, 0)))
        until = time.monotonic() + HELD_S * max(target.size, 0.25)
        while time.monotonic() < until:
            assert call(target, "GET", "/api/overview") == 200
            time.sleep(0.2)


SCENES = (
    Scene("unread-answers", "50 answers of 32 MiB of one user, which nobody takes", unread_answers),
    Scene("large-gets", "20 requests that each get 32 MiB of a queue", large_gets),
    Scene("bodies-of-others", "4 users with 64 requests each whose bodies do not come", bodies_of_others),
    Scene("stuck-shovels", "60 shovels of 16 MiB to a server that takes nothing", stuck_shovels),
    Scene("tiny-segments", "a stream with segments of one byte", tiny_segments),
    Scene("descriptors", "3,000 connections to a node with 1,024 descriptors", descriptors, files=FILES),
)
