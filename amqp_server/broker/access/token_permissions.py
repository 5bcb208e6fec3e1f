"""Permissions in a token: scopes, read as RabbitMQ's rabbitmq_auth_backend_oauth2 does.

`read:VHOST/NAME`, and likewise `write:` and `configure:`, permit the same as a user's patterns;
`read:VHOST/EXCHANGE/KEY` permits routing keys of a topic exchange, too. In all three parts `*` stands for any
characters, and %2F for a slash. `tag:administrator` gives a tag.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

#: Maximum number of scopes: more are an attack.
SCOPES_MAX: Final = 2_048
_ACCESSES: Final = ("configure", "write", "read")
#: Separates the user's name and a number in the key of a grant; no user's name contains it.
KEY_MARK: Final = "\0"


class Token(NamedTuple):
    """The content of a checked token, or the HTTP backend's answer about a user."""

    user: str
    scopes: tuple[str, ...]
    #: 0 if the token does not expire.
    expires_at_s: float


class Wildcard:
    """A pattern in which `*` is any number of characters. Matches in linear time."""

    __slots__ = ("_first", "_last", "_middle", "_whole")

    def __init__(self, pattern: str) -> None:
        """Parse a pattern. Raises ValueError."""
        parts = [unquote_to_bytes(part).decode() for part in pattern.split("*")]
        self._first, self._last = parts[0], parts[-1]
        self._middle = [part for part in parts[1:-1] if part]
        self._whole = len(parts) == 1

    def matches(self, text: str) -> bool:
        if self._whole:
            return text == self._first
        end = len(text) - len(self._last)
        if not text.startswith(self._first) or not text.endswith(self._last) or end < len(self._first):
            return False
        position = len(self._first)
        for part in self._middle:
            found = text.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return True


class Scope:
    """One scope that permits something."""

    __slots__ = ("access", "key", "name", "vhost")

    def __init__(self, access: str, parts: list[str]) -> None:
        """Parse the parts of a scope. Raises ValueError."""
        self.access = access
        self.vhost, self.name = Wildcard(parts[0]), Wildcard(parts[1])
        self.key = Wildcard(parts[2]) if len(parts) == 3 else None


class Grant:
    """All scopes of a token."""

    __slots__ = ("_scopes", "tags")

    def __init__(self, scopes: Iterable[str]) -> None:
        self._scopes: list[Scope] = []
        tags: list[str] = []
        for scope in scopes:
            access, colon, pattern = scope.partition(":")
            if access == "tag" and colon:
                tags.append(pattern)
            parts = pattern.split("/")
            if access in _ACCESSES and len(parts) in (2, 3):
                try:
                    self._scopes.append(Scope(access, parts))
                except ValueError:
                    # Ignored, like any scope that does not concern this broker.
                    continue
        self.tags = tuple(dict.fromkeys(tags))

    def may_open(self, vhost: str) -> bool:
        return any(scope.vhost.matches(vhost) for scope in self._scopes)

    def allows(self, vhost: str, name: str, access: str) -> bool:
        return any(
            scope.access == access and scope.vhost.matches(vhost) and scope.name.matches(name)
            for scope in self._scopes
        )

    def allows_key(self, vhost: str, exchange: str, key: str, access: str) -> bool:
        """True if this routing key of a topic exchange is permitted."""
        return any(
            scope.key is not None
            and scope.access == access
            and scope.vhost.matches(vhost)
            and scope.name.matches(exchange)
            and scope.key.matches(key)
            for scope in self._scopes
        )
