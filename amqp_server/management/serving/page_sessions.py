"""Logins of the page: a random id stands for a user who has given a password once.

Sessions are in the memory of this node only, and end with it. Only the digest of an id is stored.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from amqp_server.broker.access.users import Users
from amqp_server.management.serving.login import Caller

#: Length of an id in characters; a longer text is no id.
ID_CHARACTERS = 43
ID_BYTES = 32
#: Memory of a session without its scopes, and of a scope without its characters, bytes.
SESSION_BYTES = 2_048
SCOPE_BYTES = 64


class SessionLimits(NamedTuple):
    sessions_max: int = 1_000
    per_user_max: int = 20
    bytes_max: int = 16 << 20
    #: Maximum time between two requests, and maximum time since the login.
    idle_s: float = 3_600.0
    age_s: float = 43_200.0


class PageSession:
    __slots__ = (
        "bytes",
        "csrf",
        "ends",
        "expires_at_s",
        "identity",
        "password_hash",
        "scopes",
        "used",
        "user",
    )

    def __init__(self, caller: Caller, ends: float, now: float) -> None:
        self.user = caller.user.name
        self.identity = caller.identity
        self.scopes = caller.scopes
        #: A new password ends the sessions that began with the old one.
        self.password_hash = caller.user.password_hash
        #: When the token expires, in seconds since 1970.
        self.expires_at_s = caller.expires_at_s
        #: The secret that a request has to show if it changes something; other pages cannot read it.
        self.csrf = secrets.token_urlsafe(ID_BYTES)
        #: Only the scopes of a session may be large.
        self.bytes = SESSION_BYTES + sum(SCOPE_BYTES + 4 * len(scope) for scope in caller.scopes or ())
        self.ends = ends
        self.used = now


class PageSessions:
    def __init__(
        self,
        users: Users,
        limits: SessionLimits,
        *,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._users = users
        self._limits = limits
        self._now = now
        self._wall_clock = wall_clock
        #: Sessions by the digests of their ids. The session that was used last is at the end.
        self._sessions: OrderedDict[bytes, PageSession] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, caller: Caller) -> tuple[str, PageSession]:
        """Return the id of a new session, and the session. If there are too many sessions, the least recently
        used one ends.
        """
        self._forget_ended()
        limits, identity = self._limits, caller.identity
        own = [key for key, session in self._sessions.items() if session.identity == identity]
        for key in own[: max(0, len(own) - limits.per_user_max + 1)]:
            self._drop(key)
        now = self._now()
        session = PageSession(caller, now + limits.age_s, now)
        while self._sessions and (
            len(self._sessions) >= limits.sessions_max or self._bytes + session.bytes > limits.bytes_max
        ):
            self._drop(next(iter(self._sessions)))
        id_ = secrets.token_urlsafe(ID_BYTES)
        self._sessions[_digest(id_)] = session
        self._bytes += session.bytes
        return id_, session

    def find(self, id_: str) -> PageSession | None:
        """Return the session of an id, and mark it as used now."""
        if len(id_) != ID_CHARACTERS:
            return None
        key = _digest(id_)
        session = self._sessions.get(key)
        if session is None:
            return None
        if self._has_ended(session):
            self._drop(key)
            return None
        session.used = self._now()
        self._sessions.move_to_end(key)
        return session

    def end(self, id_: str) -> None:
        key = _digest(id_)
        if key in self._sessions:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._bytes -= self._sessions.pop(key).bytes

    def _forget_ended(self) -> None:
        for key in [key for key, session in self._sessions.items() if self._has_ended(session)]:
            self._drop(key)

    def _has_ended(self, session: PageSession) -> bool:
        now = self._now()
        if now >= session.ends or now - session.used >= self._limits.idle_s:
            return True
        if session.scopes is not None:
            return self._wall_clock() >= session.expires_at_s
        return not self._users.has_password_hash(session.user, session.password_hash)


def _digest(id_: str) -> bytes:
    return hashlib.sha256(id_.encode()).digest()
