"""A server that brokers ask who may log in and what they may do (rabbitmq_auth_backend_http)."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

PATHS = ("user", "vhost", "resource", "topic")


class Asked(NamedTuple):
    method: str
    path: str
    parameters: dict[str, str]


class Backend:
    """`anna` with the password `tea` may do anything, unless a test changes that."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.passwords = {"anna": "tea"}
        self.tags = ""
        #: Decides whether a vhost, a resource or a topic is permitted.
        self.permits: Callable[[Asked], bool] = lambda asked: True
        #: Replaces the answer: writes any bytes.
        self.misbehaves: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None
        #: While it is clear, no request gets an answer.
        self.awake = threading.Event()
        self.awake.set()
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            # Connections are kept open.
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(urlsplit(self.path).query)

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _answer(self, query: str) -> None:
                path = urlsplit(self.path).path.strip("/")
                asked = Asked(self.command, path, dict(parse_qsl(query, keep_blank_values=True)))
                backend.asked.append(asked)
                backend.awake.wait()
                if backend.misbehaves is not None:
                    self.close_connection = True
                    backend.misbehaves(self)
                    return
                body = backend.say(asked).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A client that gave up its connection is no failure.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def say(self, asked: Asked) -> str:
        if asked.path == "user":
            name, password = asked.parameters["username"], asked.parameters.get("password")
            return f"allow {self.tags}" if self.passwords.get(name) == password else "deny"
        return "allow" if self.permits(asked) else "deny"

    def questions(self, *paths: str) -> list[dict[str, str]]:
        """The questions for this path, in order."""
        return [each.parameters for each in self.asked if each.path in paths]

    def close(self) -> None:
        self.awake.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
