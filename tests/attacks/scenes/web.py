"""Attacks on the management listener."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import h2.config
import h2.connection
import h2.settings
from pamqp import commands

from ..scene import ELSEWHERE, Scene, Target
from . import frames

GUEST = "Basic " + base64.b64encode(b"guest:guest").decode()
HELD_S = 4.0
#: Seconds for which passwords are guessed.
SECONDS = 8.0


def _connect(target: Target, source: str = ELSEWHERE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", target.node.http), 10, (source, 0))


def call(target: Target, method: str, path: str, data: Any = None, login: str = GUEST) -> int:
    """Return the status. `data` is the body if it is bytes, and otherwise an object to be sent as JSON."""
    body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{target.node.http}{path}", body, {"Authorization": login}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            while answer.read(1 << 20):
                pass
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _ask(target: Target, path: str, data: Any = None) -> int:
    return call(target, "GET" if data is None else "POST", path, data)


def _queues(target: Target, count: int) -> None:
    with target.client() as client:
        frames.flood(client, [commands.Queue.Declare(queue=f"a-queue-{n}") for n in range(count)])


def http2_windows(target: Target) -> None:
    """300 streams whose client never reads its answers."""
    sockets = []
    try:
        for _ in range(3):
            sock = _connect(target)
            sockets.append(sock)
            peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
            peer.initiate_connection()
            for number in range(100):
                peer.send_headers(
                    2 * number + 1,
                    [(":method", "GET"), (":path", "/health"), (":scheme", "http"), (":authority", "x")],
                    end_stream=True,
                )
            sock.sendall(peer.data_to_send())
        time.sleep(HELD_S)
    finally:
        for sock in sockets:
            sock.close()


def pipelined_requests(target: Target) -> None:
    """270 connections send requests and read nothing."""
    sockets = []
    try:
        for _ in range(270):
            sock = _connect(target)
            sockets.append(sock)
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        time.sleep(HELD_S)
    finally:
        for sock in sockets:
            sock.close()


def slow_bodies(target: Target) -> None:
    """256 requests whose bodies never end."""
    head = f"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\nAuthorization: {GUEST}\r\nContent-Length: 1000\r\n\r\n{{"
    sockets = []
    try:
        for _ in range(256):
            sock = _connect(target)
            sockets.append(sock)
            with contextlib.suppress(OSError):
                sock.sendall(head.encode())
        time.sleep(HELD_S)
    finally:
        for sock in sockets:
            sock.close()


def regex_filters(target: Target) -> None:
    """A pattern for which a backtracking engine takes almost forever."""
    _queues(target, target.many(3_000))
    _ask(target, "/api/queues?page=1&use_regex=true&name=%28%5B%5Ex%5D%2B%29%2B%24%7C%28a%7Ca%7Ca-%29%2Az")


def long_listings(target: Target) -> None:
    """Lists of all 20,000 queues, several times."""
    _queues(target, target.many(20_000))
    for _ in range(5):
        _ask(target, "/api/queues")


def wrong_http_logins(target: Target) -> None:
    """30 threads guess the password of the administrator."""

    until = time.monotonic() + SECONDS * max(target.size, 0.25)

    def guess(number: int) -> None:
        tries = 0
        while time.monotonic() < until:
            tries += 1
            with contextlib.suppress(OSError), _connect(target) as sock:
                login = base64.b64encode(f"guest:{number}-{tries}".encode()).decode()
                sock.sendall(
                    f"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                while sock.recv(65_536):
                    pass

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # The administrator comes from another address.
        assert _ask(target, "/api/whoami") == 200
        time.sleep(0.2)


def nested_headers(target: Target) -> None:
    """Headers nested 900 deep."""
    nested: Any = {}
    for _ in range(900):
        nested = {"n": nested}
    text = {
        "properties": {"headers": nested},
        "routing_key": "q",
        "payload": "",
        "payload_encoding": "string",
    }
    for _ in range(20):
        code = _ask(target, "/api/exchanges/%2F/amq.default/publish", text)
        assert code < 500, f"status {code}"


SCENES = (
    Scene("http2-windows", "300 HTTP/2 streams with a window of 0", http2_windows),
    Scene("pipelined-requests", "270 connections with 200 unread requests each", pipelined_requests),
    Scene("slow-bodies", "256 requests with a body that never ends", slow_bodies),
    Scene("regex-filters", "name filter that backtracks, over 3,000 queues", regex_filters),
    Scene("long-listings", "listing of 20,000 queues", long_listings),
    Scene("wrong-http-logins", "30 threads that guess the administrator's password", wrong_http_logins),
    Scene("nested-headers", "headers nested 900 deep", nested_headers),
)
