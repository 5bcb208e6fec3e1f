"""The management API of one broker, over a connection that stays open."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from typing import Any

TIMEOUT_S = 30.0


class ApiError(Exception):
    """An answer with an error status."""

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"{method} {path}: {status} {text}")
        self.status = status


class Api:
    def __init__(self, host: str, port: int, user: str, password: str) -> None:
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        # Tests may use threads.
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of the answer. Raises ApiError, OSError."""
        sent = None if body is None else json.dumps(body).encode()
        with self._lock:
            status, text = self._ask(method, path, sent)
        if status >= 300:
            raise ApiError(method, path, status, text.decode(errors="replace"))
        return json.loads(text) if text else None

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        used = self._connection.sock is not None
        try:
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            # The broker closes connections that were idle for long. In this case it has not handled the
            # request.
            idle = isinstance(error, (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError))
            if used and idle:
                return self._ask(method, path, body)
            if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
                raise OSError(f"{method} {path}: {error!r}") from error
            raise

    def close(self) -> None:
        with self._lock:
            self._connection.close()
