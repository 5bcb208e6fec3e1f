"""A broker for tests, and virtual hosts on it."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from amqp_server.testing.api import Api, ApiError
from amqp_server.testing.process import HOST, Process, arguments, held_port, port_of

USER = PASSWORD = "guest"
#: Default options for tests. The disk of a machine that runs tests is often almost full, and one password
#: check costs more than a virtual host.
OPTIONS: Mapping[str, object] = {"disk_free_min_bytes": "16MiB", "login_memory_s": 3600}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
NAME_LENGTH_MAX = 60


@dataclass(frozen=True)
class Vhost:
    """A virtual host and its addresses."""

    broker: Broker
    name: str

    @property
    def amqp_url(self) -> str:
        return self.broker.url(self.name)

    @property
    def http_url(self) -> str:
        return self.broker.http_url

    @property
    def host(self) -> str:
        return self.broker.host

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def user(self) -> str:
        return self.broker.user

    @property
    def password(self) -> str:
        return self.broker.password

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Send a request for this virtual host to the management API: `api("GET", "queues")`, `api("DELETE",
        "queues/orders")`.
        """
        what, slash, rest = path.strip("/").partition("/")
        return self.broker.api(method, f"/api/{what}/{quote(self.name, safe='')}{slash}{rest}", body)


class Broker:
    """One mqd on this machine, alone or as a node of a cluster. A `restart` keeps ports and data."""

    host = HOST
    user, password = USER, PASSWORD

    def __init__(self, home: Path, remove: Path, name: str = "n1", **options: object) -> None:
        """`home` is created; `remove`, a directory that contains it, is deleted with our process if the test
        does not call `stop`.
        """
        home.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._holders = held_port(), held_port()
        amqp, http = (f"{HOST}:{port_of(holder)}" for holder in self._holders)
        given = {
            "data_dir": str(home / "data"),
            "node": name,
            "amqp": amqp,
            "http": http,
            **OPTIONS,
            **options,
        }
        self.process = Process(home, remove, arguments(given))
        self._remove = remove
        self._api: Api | None = None
        self._numbers = count(1)

    # -- where it is -----------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def http_port(self) -> int:
        return self.process.http_port

    def url(self, vhost: str = "/") -> str:
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{quote(vhost, safe='')}"

    @property
    def amqp_url(self) -> str:
        return self.url()

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    def __repr__(self) -> str:
        return f"<mqd {self.name} {self.host}:{self.port}{'' if self.running else ', stopped'}>"

    # -- what runs -------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self.process.running

    def launch(self) -> None:
        """Start without waiting for the broker: see `ready`."""
        self.process.launch()

    def ready(self) -> None:
        """Wait until the broker serves. Raises StartFailed."""
        self.process.ready()

    def start(self) -> None:
        """Start after `kill` or `stop`, with the data on the disk. Raises StartFailed."""
        self.launch()
        self.ready()

    def stop(self) -> None:
        """End as an operator would. Connections are closed with 320."""
        self._forget_api()
        self.process.stop()

    def kill(self) -> None:
        """End with SIGKILL, as in a crash."""
        self._forget_api()
        self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP), like a machine that swaps."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)

    def log(self) -> str:
        """Return its log so far, over all of its starts."""
        return self.process.log()

    def close(self) -> None:
        """Stop for good: delete the data and release the ports."""
        self.stop()
        for holder in self._holders:
            holder.close()
        shutil.rmtree(self._remove, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what is in it ---------------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the management API: `api("GET", "/api/overview")`. Return the answer's JSON.
        Raises ApiError, OSError.
        """
        if self._api is None:
            self._api = Api(self.host, self.http_port, self.user, self.password)
        return self._api.ask(method, path, body)

    def _forget_api(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            api.close()

    def make_vhost(self, name: str = "test") -> Vhost:
        """Make a virtual host, with a number appended to its name. See `delete_vhost`."""
        found = _NOT_IN_NAMES.sub("-", name)[:NAME_LENGTH_MAX]
        vhost = Vhost(self, f"{found}-{next(self._numbers)}")
        quoted = quote(vhost.name, safe="")
        self.api("PUT", f"/api/vhosts/{quoted}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"/api/permissions/{quoted}/{quote(self.user, safe='')}", everything)
        return vhost

    def delete_vhost(self, vhost: Vhost) -> None:
        """Delete a virtual host with everything in it; connections to it are closed."""
        with suppress(ApiError):
            self.api("DELETE", f"/api/vhosts/{quote(vhost.name, safe='')}")

    @contextmanager
    def vhost(self, name: str = "test") -> Iterator[Vhost]:
        """A virtual host for the duration of a `with`."""
        vhost = self.make_vhost(name)
        try:
            yield vhost
        finally:
            if self.running:
                self.delete_vhost(vhost)


def start(**options: Any) -> Broker:
    """Start a broker with its own data directory; `close`, or the end of our process, removes both.

    `options` are those of mqd by the names in its TOML file: `start(heartbeat_s=5)`. Raises StartFailed.
    """
    home = Path(tempfile.mkdtemp(prefix="mqd-testing-"))
    broker = Broker(home, home, "n1", **options)
    try:
        broker.start()
    except BaseException:
        broker.close()
        raise
    return broker
