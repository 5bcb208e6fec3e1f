"""Users, with their tags and their password hashes."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from amqp_server.broker.access import password as passwords
from amqp_server.broker.access.password_cache import Logins
from amqp_server.broker.metadata import Metadata, decode, encode

TABLE = "users"
NAME_BYTES_MAX = 255
TAGS_MAX = 64

#: Tags with a meaning here; others are stored without effect.
ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT = (
    "administrator",
    "monitoring",
    "policymaker",
    "management",
)
#: A user with this tag may publish messages with any `user_id`, as in RabbitMQ.
IMPERSONATOR = "impersonator"


class User(msgspec.Struct, frozen=True):
    name: str
    #: Empty if no password login is possible.
    password_hash: str
    tags: tuple[str, ...] = ()

    @property
    def administers(self) -> bool:
        """True if this user can log in and change users."""
        return ADMINISTRATOR in self.tags and bool(self.password_hash)

    def __repr__(self) -> str:
        return f"User({self.name!r}, tags={self.tags!r})"


class UserRefused(ValueError):
    """A user cannot be made or changed in this way; the text has the reason."""


class NoSuchUser(LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f'User "{name}" does not exist')


class Users:
    """The users. `verify` and `set_password` are slow on purpose: run them in a thread, everything else on
    the loop's thread.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        loopback_users: Collection[str] = ("guest",),
        users_max: int = 100_000,
        login_memory_s: float = 30.0,
        login_memory_entries_max: int = 10_000,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata
        self._loopback_users = frozenset(loopback_users)
        self._users_max = users_max
        self._logins = Logins(login_memory_s, login_memory_entries_max, now)
        #: For users who have logged in with a hash from RabbitMQ, by name: that hash, and mqd's own.
        self._better: dict[str, tuple[str, str]] = {}
        #: The last replacement of each user: RabbitMQ's hash, and mqd's hash of the same password.
        self._replaced: dict[str, tuple[str, str]] = {}
        self._users = {
            user.name: user
            for key, value in metadata.items(TABLE)
            for user in [decode(TABLE, key, value, User)]
        }

    def __len__(self) -> int:
        return len(self._users)

    def __iter__(self) -> Iterator[User]:
        return iter(sorted(self._users.values(), key=lambda user: user.name))

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def is_last_administrator(self, name: str) -> bool:
        """True if this user can log in as an administrator, and no other user can."""
        user = self._users.get(name)
        if user is None or not user.administers:
            return False
        return not any(other.administers and other.name != name for other in self._users.values())

    def require(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise NoSuchUser(name)
        return user

    def recall(self, name: str, password: str) -> bool | None:
        """Return the cached result of a recent check; None: call `verify`."""
        if not password or len(password.encode()) > passwords.PASSWORD_BYTES_MAX:
            return False
        return self._logins.recall(name, self._password_hash(name), password)

    def verify(self, name: str, password: str) -> bool:
        """Check a user's password; a blank one is always wrong."""
        if not password or len(password.encode()) > passwords.PASSWORD_BYTES_MAX:
            return False
        encoded = self._password_hash(name)
        remembered = self._logins.recall(name, encoded, password)
        if remembered is not None:
            return remembered
        outcome, own = passwords.checked(encoded, password)
        self._logins.remember(name, encoded, password, outcome)
        if own:
            # Takes effect with the change of the hash.
            self._logins.remember(name, own, password, outcome)
            self._better[name] = encoded, own
        return outcome

    def better_hash(self, name: str) -> tuple[str, str] | None:
        """Return the user's current hash from RabbitMQ, and mqd's own hash to replace it; only once after a
        check.
        """
        return self._better.pop(name, None)

    def replace_hash(self, name: str, before: str, after: str) -> bool:
        """Replace a hash by another one of the same password; return whether it was still the current one."""
        user = self._users.get(name)
        if user is None or user.password_hash != before:
            return False
        self.store(msgspec.structs.replace(user, password_hash=after))
        self._replaced[name] = before, after
        return True

    def has_password_hash(self, name: str, encoded: str) -> bool:
        """True if this is the user's current hash, or the hash of the same password that it has replaced."""
        user = self._users.get(name)
        if user is None:
            return False
        return encoded == user.password_hash or self._replaced.get(name) == (encoded, user.password_hash)

    def _password_hash(self, name: str) -> str:
        """Return a user's hash. A user that does not exist counts as one without a password, so that refusals
        take the same time.
        """
        user = self._users.get(name)
        return user.password_hash if user else ""

    def may_connect_from(self, name: str, peer: str) -> bool:
        """True if the user may log in from this address: the address of the real peer, not the one that it
        connected to.
        """
        return name not in self._loopback_users or is_loopback(peer)

    def prepare(self, name: str, password_hash: str, tags: Iterable[str] = ()) -> User:
        """Check a new or changed user. Raises UserRefused."""
        user = User(checked_name(name), password_hash, checked_tags(tags))
        if name not in self._users and len(self._users) >= self._users_max:
            raise UserRefused(f"there are {len(self._users)} users already, the maximum (users_max)")
        return user

    def has_room_after(self, count: int) -> bool:
        """True if there is room for one more user after so many new ones."""
        return len(self._users) + count < self._users_max

    def store(self, user: User) -> None:
        """Add or replace a user."""
        self._users[user.name] = user
        self._metadata.put(TABLE, user.name, encode(user))

    def put(self, name: str, password_hash: str, tags: Iterable[str] = ()) -> User:
        """Check and store a user."""
        user = self.prepare(name, password_hash, tags)
        self.store(user)
        return user

    def add(self, name: str, password: str, tags: Iterable[str] = ()) -> User:
        """Make a new user. Slow, because it hashes the password."""
        if name in self._users:
            raise UserRefused(f'User "{name}" already exists')
        return self.put(name, hashed(password), tags)

    def delete(self, name: str) -> None:
        self.require(name)
        del self._users[name]
        self._better.pop(name, None)
        self._replaced.pop(name, None)
        self._metadata.delete(TABLE, name)


def hashed(password: str) -> str:
    """Return the hash of a new password. Slow on purpose: run it in a thread."""
    if not password:
        raise UserRefused("a blank password is not allowed")
    if len(password.encode()) > passwords.PASSWORD_BYTES_MAX:
        raise UserRefused(f"a password may have at most {passwords.PASSWORD_BYTES_MAX} bytes")
    return passwords.hash_password(password)


def last_administrator(name: str) -> str:
    """Return the refusal of a change that would leave no administrator."""
    return f"user '{name}' is the last administrator: without it, nobody could create another one; "


"force=true does it anyway"


"force=true does it anyway"


def checked_name(name: str) -> str:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
        raise UserRefused(
            f"the name of a user must have 1 to {NAME_BYTES_MAX} bytes, all of them printable characters"
        )
    return name


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(tags))
    if len(unique) > TAGS_MAX or not all(
        0 < len(tag) <= NAME_BYTES_MAX and tag.isprintable() for tag in unique
    ):
        raise UserRefused(
            f"a user may have at most {TAGS_MAX} tags, each of 1 to {NAME_BYTES_MAX} printable characters"
        )
    return unique


def is_loopback(peer: str) -> bool:
    """True for loopback addresses; `::ffff:127.0.0.1` is 127.0.0.1, seen by a listener on both families."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback
