"""A client of the management API that sends path and headers exactly as a test gives them."""

import base64
import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from conformance_tests.patience import PATIENCE_S


class Answer(NamedTuple):
    status: int
    reason: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """`url` is `http://user:password@host:port`. Each request has its own connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 15672
        self._login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        login: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """`path` comes after `/api/`. A body of bytes is sent unchanged, any other body as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        token = base64.b64encode((self._login if login is None else login).encode()).decode()
        told = {"authorization": f"Basic {token}"}
        if body is not None:
            told["content-type"] = "application/json"
        told |= headers or {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, f"/api/{path}", content, told)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, answer.reason, fields, answer.read())
        finally:
            connection.close()
