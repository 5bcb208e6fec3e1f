"""Permissions of a user in a vhost: three patterns, for configuring, writing and reading objects with
matching names.

A user without permissions in a vhost may not open it. Patterns may match anywhere in a name: `q` permits
`my-queue` as well. Patterns have a length limit, matching takes linear time or has a time limit (after which
the answer is no), and answers are cached, so that a name costs one match for each generation of the
permissions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from amqp_server.broker.access.http_permissions import ASKED, BackendAnswers, RemoteGrant
from amqp_server.broker.access.token_permissions import KEY_MARK, Grant
from amqp_server.broker.metadata import Metadata, decode, encode
from amqp_server.broker.pattern import InvalidPattern, Matches, compile_permission
from amqp_server.errors import AccessRefused, NotAllowed

TABLE = "permissions"
TOPIC_TABLE = "topic_permissions"
#: Name of the broker itself, which may do everything. No user can have this name, so no login can use it.
ITSELF = "\0mqd"
#: Name of the default exchange in patterns and refusals; its own name is empty.
DEFAULT_EXCHANGE = "amq.default"
#: The pattern that permits everything.
ANYTHING = ".*"

Access = Literal["configure", "write", "read"]
Kind = Literal["queue", "exchange"]


class Permission(msgspec.Struct, frozen=True):
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermission(msgspec.Struct, frozen=True):
    """The routing keys with which a user may publish to a topic exchange, or bind from it."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class InvalidPermission(ValueError):
    def __init__(self, access: str, pattern: str, reason: str) -> None:
        super().__init__(f"{access}: regular expression {pattern[:200]!r} is invalid: {reason}")


class Permissions:
    def __init__(
        self,
        metadata: Metadata,
        *,
        changed: Callable[[], None] = lambda: None,
        answers_max: int = 65_536,
        pattern_bytes_max: int = 4_096,
        match_ms: int = 10,
        match_total_ms: int = 100,
        answers: BackendAnswers | None = None,
    ) -> None:
        """`changed` is called after each change: decisions by the old permissions become invalid. `answers`
        are those of the HTTP backend, if there is one.
        """
        self._metadata = metadata
        self._changed = changed
        #: Called with the vhost in which a user's permissions have changed.
        self.changed_in: Callable[[str], None] = _ignored
        self._answers_max = answers_max
        self._pattern_bytes_max = pattern_bytes_max
        self._match_ms = match_ms
        self._match_total_ms = match_total_ms
        self._permissions: dict[tuple[str, str], Permission] = {}
        self._matchers: dict[tuple[str, str, Access], Matches] = {}
        self._answers: dict[tuple[str, str, str, Access], bool] = {}
        #: Grants of tokens. Each has a key that stands in for a user's name and is never used again.
        self._grants: dict[str, Grant | RemoteGrant] = {}
        self._remote = answers
        self._last_grant = 0
        for key, value in metadata.items(TABLE):
            permission = decode(TABLE, key, value, Permission)
            self._permissions[permission.user, permission.vhost] = permission
        self._topics: dict[tuple[str, str, str], TopicPermission] = {}
        self._topic_matchers: dict[tuple[str, str, str, Access], Matches] = {}
        for key, value in metadata.items(TOPIC_TABLE):
            topic = decode(TOPIC_TABLE, key, value, TopicPermission)
            self._topics[topic.user, topic.vhost, topic.exchange] = topic

    def prepare(self, user: str, vhost: str, configure: str, write: str, read: str) -> Permission:
        """Check new permissions. Raises InvalidPermission."""
        patterns: dict[Access, str] = {"configure": configure, "write": write, "read": read}
        for access, pattern in patterns.items():
            try:
                self._compile(pattern)
            except InvalidPattern as failure:
                raise InvalidPermission(access, pattern, str(failure)) from None
        return Permission(user, vhost, configure, write, read)

    def store(self, permission: Permission) -> None:
        user, vhost = permission.user, permission.vhost
        self._permissions[user, vhost] = permission
        self._metadata.put(TABLE, _key(user, vhost), encode(permission))
        self._forget()
        self.changed_in(vhost)

    def set(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Check and store permissions."""
        self.store(self.prepare(user, vhost, configure, write, read))

    def clear(self, user: str, vhost: str) -> None:
        """Remove permissions, if there are any."""
        if self._permissions.pop((user, vhost), None):
            self._metadata.delete(TABLE, _key(user, vhost))
            self._forget()
            self.changed_in(vhost)

    def clear_user(self, user: str) -> None:
        for permission in self.of_user(user):
            self.clear(user, permission.vhost)
        for topic in [topic for topic in self._topics.values() if topic.user == user]:
            self.clear_topic(user, topic.vhost, topic.exchange)

    def clear_vhost(self, vhost: str) -> None:
        for permission in self.of_vhost(vhost):
            self.clear(permission.user, vhost)
        for topic in [topic for topic in self.topics() if topic.vhost == vhost]:
            self.clear_topic(topic.user, vhost, topic.exchange)

    def get(self, user: str, vhost: str) -> Permission | None:
        return self._permissions.get((user, vhost))

    def all(self) -> list[Permission]:
        return [self._permissions[key] for key in sorted(self._permissions)]

    def of_user(self, user: str) -> list[Permission]:
        # A loop that deletes thousands of users asks for each: sort only what is found.
        return [
            self._permissions[key] for key in sorted([key for key in self._permissions if key[0] == user])
        ]

    def of_vhost(self, vhost: str) -> list[Permission]:
        return [
            self._permissions[key] for key in sorted([key for key in self._permissions if key[1] == vhost])
        ]

    def grant_of(self, user: str, scopes: Sequence[str]) -> Grant | RemoteGrant:
        """Return the grant of a user that a token or the HTTP backend has authenticated."""
        if scopes and scopes[0] == ASKED and self._remote is not None:
            return RemoteGrant(self._remote, user, scopes)
        return Grant(scopes)

    def identity(self, access: str) -> str:
        """Return who has this key of permissions; see `identity_of`."""
        grant = self._grants.get(access)
        return access if grant is None else _identity(_name(access), isinstance(grant, RemoteGrant))

    def add_grant(self, user: str, grant: Grant | RemoteGrant) -> str:
        """Return a key that stands in for the user's name in checks: the grant decides them."""
        self._last_grant += 1
        key = f"{user}{KEY_MARK}{self._last_grant}"
        self._grants[key] = grant
        return key

    def drop_grant(self, key: str) -> None:
        """Forget a grant, if the key is that of one."""
        self._grants.pop(key, None)

    def may_open(self, user: str, vhost: str) -> bool:
        grant = self._grants.get(user)
        if grant is not None:
            return grant.may_open(vhost)
        return user == ITSELF or (user, vhost) in self._permissions

    def check_open(self, user: str, vhost: str) -> None:
        """Raise NotAllowed unless the user may open the vhost, which must exist."""
        if not self.may_open(user, vhost):
            raise NotAllowed(f"access to vhost '{vhost}' refused for user '{_name(user)}'")

    def allows(self, user: str, vhost: str, name: str, access: Access, kind: Kind = "queue") -> bool:
        """Return whether the user may do this. Like all checks, raises AnswerAwaited if the HTTP backend must
        be asked first.
        """
        if user == ITSELF:
            return True
        permission = self._permissions.get((user, vhost))
        if permission is not None and user not in self._grants and getattr(permission, access) == ANYTHING:
            # Not cached: 100,000 names would take 25 MB.
            return True
        question = (user, vhost, name, access)
        answer = self._answers.get(question)
        if answer is None:
            grant = self._grants.get(user)
            if isinstance(grant, RemoteGrant):
                # The grant knows how long an answer is valid.
                return grant.allows(vhost, name, access, kind)
            answer = self._matches(user, vhost, name, access)
            if len(self._answers) >= self._answers_max:
                self._answers.clear()
            self._answers[question] = answer
        return answer

    def check(self, user: str, vhost: str, kind: Kind, name: str, access: Access) -> None:
        """Raise AccessRefused unless the user may do this to the queue or exchange."""
        if kind == "exchange":
            name = name or DEFAULT_EXCHANGE
        if not self.allows(user, vhost, name, access, kind):
            raise AccessRefused(
                f"{access} access to {kind} '{name}' in vhost '{vhost}' refused for user '{_name(user)}'"
            )

    # -- topics ----------------------------------------------------------------------------------------------

    def prepare_topic(self, user: str, vhost: str, exchange: str, write: str, read: str) -> TopicPermission:
        """Check a new topic permission. Raises InvalidPermission."""
        permission = TopicPermission(user, vhost, exchange, write, read)
        patterns: dict[Access, str] = {"write": write, "read": read}
        for access, pattern in patterns.items():
            try:
                self._compile(_expanded(pattern, permission))
            except InvalidPattern as failure:
                raise InvalidPermission(access, pattern, str(failure)) from None
        return permission

    def store_topic(self, permission: TopicPermission) -> bool:
        """Store a topic permission; return whether it is new."""
        key = (permission.user, permission.vhost, permission.exchange)
        new = key not in self._topics
        self._topics[key] = permission
        self._metadata.put(TOPIC_TABLE, _key(*key), encode(permission))
        self._forget()
        return new

    def clear_topic(self, user: str, vhost: str, exchange: str = "") -> bool:
        """Remove the topic permission for an exchange, or for all if none is given; return whether there was
        one.
        """
        gone = [key for key in self._topics if key[:2] == (user, vhost) and exchange in ("", key[2])]
        for key in gone:
            del self._topics[key]
            self._metadata.delete(TOPIC_TABLE, _key(*key))
        if gone:
            self._forget()
        return bool(gone)

    def topics(self) -> list[TopicPermission]:
        return [self._topics[key] for key in sorted(self._topics)]

    def check_topic(self, user: str, vhost: str, exchange: str, routing_key: str, access: Access) -> None:
        """Raise AccessRefused unless the user may use the key of a topic exchange. Without a topic permission
        for the exchange, the user may.
        """
        if not self._allows_key(user, vhost, exchange, routing_key, access):
            raise AccessRefused(
                f"{access} access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}' "
                f"refused for user '{_name(user)}'"
            )

    def _allows_key(self, user: str, vhost: str, exchange: str, routing_key: str, access: Access) -> bool:
        grant = self._grants.get(user)
        if grant is not None:
            return grant.allows_key(vhost, exchange, routing_key, access)
        permission = self._topics.get((user, vhost, exchange))
        if permission is None:
            return True
        question = (user, vhost, exchange, access)
        matches = self._topic_matchers.get(question)
        if matches is None:
            pattern: str = getattr(permission, access)
            try:
                matches = self._compile(_expanded(pattern, permission))
            except InvalidPattern:
                # The permission was set on a node with other limits.
                matches = _nothing
            self._topic_matchers[question] = matches
        return matches(routing_key)

    def _matches(self, user: str, vhost: str, name: str, access: Access) -> bool:
        grant = self._grants.get(user)
        if isinstance(grant, Grant):
            return grant.allows(vhost, name, access)
        permission = self._permissions.get((user, vhost))
        if permission is None:
            return False
        matches = self._matchers.get((user, vhost, access))
        if matches is None:
            pattern: str = getattr(permission, access)
            try:
                matches = self._compile(pattern)
            except InvalidPattern:
                # The permission was set on a node with other limits: a pattern that cannot be matched here
                # permits nothing here.
                matches = _nothing
            self._matchers[user, vhost, access] = matches
        return matches(name)

    def _compile(self, pattern: str) -> Matches:
        return compile_permission(pattern, self._pattern_bytes_max, self._match_ms, self._match_total_ms)

    def _forget(self) -> None:
        self._matchers.clear()
        self._topic_matchers.clear()
        self._answers.clear()
        self._changed()


def identity_of(user: str, scopes: Sequence[str] | None) -> str:
    """Return who a user is: the name, and where the user comes from. A token's user is another one than the
    broker's user of the same name. `scopes` are those of a token or from the HTTP backend; None for a user of
    the broker, whose name is the identity.
    """
    return user if scopes is None else _identity(user, bool(scopes) and scopes[0] == ASKED)


def _identity(user: str, remote: bool) -> str:
    return f"{user}{KEY_MARK}{'http' if remote else 'token'}"


def _name(user: str) -> str:
    """Return the user's name, also for the key of a grant."""
    return user.partition(KEY_MARK)[0]


def _nothing(name: str) -> bool:
    return False


def _ignored(vhost: str) -> None: ...


def _expanded(pattern: str, permission: TopicPermission) -> str:
    """Replace the placeholders of a pattern by the user and the vhost, without escaping."""
    for place, name in (("{username}", permission.user), ("{vhost}", permission.vhost)):
        pattern = pattern.replace(place, re.escape(name))
    return pattern


def _key(user: str, vhost: str, exchange: str = "") -> str:
    """Return a digest as the key, because two names of 255 bytes exceed the length of an LMDB key."""
    told = f"{len(user)}:{user}{vhost}"
    if exchange:
        told = f"{len(user)}:{user}{len(vhost)}:{vhost}{exchange}"
    return hashlib.blake2b(told.encode(), digest_size=20).hexdigest()
