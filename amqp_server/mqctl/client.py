"""Requests to the management API, and the exit codes and texts for its refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 60.0
#: Beginnings of the API's reasons that mqctl words differently or extends.
NOT_VALID, NO_LOGIN = "Validation failed", "Login failed"

# Exit codes of rabbitmqctl, from sysexits.h.
USAGE, DATA_ERROR, NO_USER, UNAVAILABLE, SOFTWARE, NO_PERMISSION = 64, 65, 67, 69, 70, 77

_EXITS = {
    400: DATA_ERROR,
    414: DATA_ERROR,
    401: NO_PERMISSION,
    404: UNAVAILABLE,
    405: USAGE,
    412: DATA_ERROR,
    413: DATA_ERROR,
    503: UNAVAILABLE,
}


class Failure(Exception):
    """Ends the command with one line on stderr."""

    def __init__(self, text: str, exit_code: int, status: int = 0) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.status = status


class Client:
    def __init__(self, url: str, user: str, password: str) -> None:
        # Imported when the first command needs it, not for --help.
        import httpx

        self._url, self._user = url.rstrip("/"), user
        if not self._url.startswith(("http://", "https://")):
            raise Failure(f"--url: {url!r} is not allowed; it must be http://host:port or https://…", USAGE)
        # No proxies, no .netrc: the password goes only to --url.
        self._http = httpx.Client(
            auth=httpx.BasicAuth(user.encode(), password.encode()),
            timeout=TIMEOUT_S,
            trust_env=False,
            # Reading the certificate authorities takes as long as a command, so do it only if needed.
            verify=self._url.startswith("https://"),
        )

    def close(self) -> None:
        self._http.close()

    def get(self, *path: str, **query: str) -> Any:
        return self._ask("GET", path, query)

    def check(self, *path: str) -> Any:
        """Return the answer of a health check, successful or not."""
        return self._ask("GET", path, {}, also=503)

    def put(self, *path: str, body: object = None, **query: str) -> Any:
        return self._ask("PUT", path, query, {} if body is None else body)

    def post(self, *path: str, body: object) -> Any:
        return self._ask("POST", path, {}, body)

    def delete(self, *path: str, **query: str) -> Any:
        return self._ask("DELETE", path, query)

    def ping(self) -> None:
        """Raise Failure if no mqd answers. Needs no login."""
        answer = self._request("GET", f"{self._url}/health")
        if not answer.is_success:
            raise _failure(answer.status_code, _reason(answer))

    def answers(self) -> bool:
        try:
            self.ping()
        except Failure as failure:
            return failure.status != 0
        return True

    def _ask(
        self, method: str, path: tuple[str, ...], query: dict[str, str], body: object = None, also: int = 200
    ) -> Any:
        url = f"{self._url}/api/" + "/".join(map(_quoted, path))
        params = {name.replace("_", "-") if name.startswith("if_") else name: query[name] for name in query}
        content = None if body is None else json.dumps(body).encode()
        headers = {} if content is None else {"content-type": "application/json"}
        answer = self._request(method, url, params=params, content=content, headers=headers)
        if answer.is_success or answer.status_code == also:
            return json.loads(answer.content) if answer.content else None
        reason = _reason(answer)
        if reason.startswith(NOT_VALID):
            # The API escapes HTML, as RabbitMQ's does.
            reason = reason.replace("&lt;", "<").replace("&gt;", ">")
        elif reason == NO_LOGIN:
            reason = (
                f"{reason} for user '{self._user}' at {self._url}: see --user, --password and --password-file"
            )
        status = answer.status_code
        if reason in (NOT_FOUND, NO_VHOST):
            reason = self._missing(path)
        elif reason.startswith(CODES_OF_MISSING):
            # The reason is that of an AMQP error for a publish or a get.
            reason, status = reason.partition(" - ")[2], 404
        elif reason == NOT_YOURS and (vhost := _vhost(path)) is not None:
            reason = f"{reason} '{vhost}'"
        raise _failure(status, reason)

    def _request(self, method: str, url: str, **content: Any) -> httpx.Response:
        import httpx

        try:
            return self._http.request(method, url, **content)
        except httpx.HTTPError as failure:
            raise Failure(
                f"no answer from {self._url}: {failure or type(failure).__name__}", UNAVAILABLE
            ) from None
        except httpx.InvalidURL as failure:
            raise Failure(f"--url: {failure}", USAGE) from None

    def _missing(self, path: tuple[str, ...]) -> str:
        """Return the name of the missing object; the API only answers "Not Found"."""
        vhost = _vhost(path)
        if (
            vhost is not None
            and self._request("GET", f"{self._url}/api/vhosts/{_quoted(vhost)}").status_code == 404
        ):
            return f"Virtual host '{vhost}' does not exist"
        kind, *names = path
        if IN_VHOST.get(kind) and len(names) > 1:
            return f"no {IN_VHOST[kind]} '{names[1]}' in vhost '{vhost}'"
        if kind in NAMED and names:
            return NAMED[kind].format(names[0])
        return f"{NOT_FOUND}: /api/{'/'.join(path)}"


def _quoted(part: str) -> str:
    # HTTP clients take out "." and "..", and would then ask for something else.
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


NOT_FOUND = "Not Found"
NO_VHOST = "vhost_not_found"
CODES_OF_MISSING = ("404 NOT_FOUND - ", "NOT_FOUND - ")
NOT_YOURS = "User not authorised to access virtual host"
#: Objects with a name within a virtual host; bindings have no name.
IN_VHOST = {
    "queues": "queue",
    "failed-queues": "failed queue",
    "exchanges": "exchange",
    "bindings": "",
    "consumers": "consumer",
    "permissions": "permissions of user",
    "policies": "policy",
    "operator-policies": "operator policy",
}
NAMED = {
    "users": 'User "{}" does not exist',
    "vhosts": "Virtual host '{}' does not exist",
    "connections": "there is no connection {}",
    "nodes": "there is no node {}",
}


def _vhost(path: tuple[str, ...]) -> str | None:
    """Return the virtual host that a path names, if it names one."""
    if path[0] == "cluster":
        path = path[1:]
    if len(path) < 2 or (path[0] not in IN_VHOST and path[0] != "vhosts"):
        return None
    return path[1]


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} from something that is no mqd"


def _failure(status: int, reason: str) -> Failure:
    return Failure(reason, _EXITS.get(status, SOFTWARE), status)
