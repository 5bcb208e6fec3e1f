"""The broker's address and the credentials: made from options on the driver, pickled to the tasks."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, unquote, urlsplit

PORT, TLS_PORT = 5672, 5671
SCHEMES = {"amqp": False, "amqps": True}


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


@dataclass(frozen=True, slots=True)
class Login:
    hosts: tuple[Host, ...] = (Host("localhost", PORT),)
    vhost: str = "/"
    username: str = "guest"
    password: str = field(default="guest", repr=False)
    tls: Tls | None = None
    heartbeat_s: int = 60
    connect_timeout_ms: int = 10_000

    def __str__(self) -> str:
        return ", ".join(map(str, self.hosts))


class BadUrl(ValueError):
    """The text never holds the password."""


def parse_url(url: str) -> Login:
    """Read `amqp://user:password@host1:5672,host2:5672/vhost`, or several whole urls with commas between
    them.
    """
    logins = [_parse_one(part) for part in _whole_urls(url)]
    first = logins[0]
    for other in logins[1:]:
        if (other.vhost, other.username, other.password, other.tls) != (
            first.vhost,
            first.username,
            first.password,
            first.tls,
        ):
            raise BadUrl("all hosts of 'url' must have the same scheme, user, password and vhost")
    return replace(first, hosts=tuple(host for login in logins for host in login.hosts))


def _whole_urls(url: str) -> Iterable[str]:
    """Cut at the commas that are followed by a scheme; the others separate hosts."""
    cut: list[str] = []
    for part in url.split(","):
        if not cut or "://" in part:
            cut.append(part.strip())
        else:
            cut[-1] += "," + part
    return cut


def _parse_one(url: str) -> Login:
    split = urlsplit(url)
    if split.scheme not in SCHEMES:
        raise BadUrl(
            "'url' must begin with amqp:// or amqps://, for example amqp://user:password@host:5672/vhost"
        )
    tls = SCHEMES[split.scheme]
    if split.query or split.fragment:
        raise BadUrl("'url' must not hold '?' or '#'; heartbeat, timeouts and TLS are options of their own")
    userinfo, at, _ = split.netloc.rpartition("@")
    username, colon, password = userinfo.partition(":")
    path = split.path[1:]
    if "/" in path:
        raise BadUrl("the vhost in 'url' holds a '/': write it as %2F")
    return Login(
        hosts=_hosts(split, TLS_PORT if tls else PORT),
        # amqp://host and amqp://host/ both mean the vhost '/', as pika and most clients read them.
        vhost=unquote(path) or "/",
        username=unquote(username) if at else "guest",
        password=unquote(password) if colon else "guest",
        tls=Tls() if tls else None,
    )


def _hosts(split: SplitResult, port: int) -> tuple[Host, ...]:
    hosts = []
    for text in split.netloc.rpartition("@")[2].split(","):
        try:
            one = urlsplit(f"//{text.strip()}")
            name, given = one.hostname, one.port
        except ValueError:
            raise BadUrl(f"'url' names a host that cannot be read: {text!r}") from None
        if not name:
            raise BadUrl("'url' names no host, for example amqp://user:password@host:5672/vhost")
        hosts.append(Host(name, port if given is None else given))
    return tuple(hosts)
