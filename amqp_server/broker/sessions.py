"""The sessions of this node, by number."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqp_server.broker.queue import Queue
    from amqp_server.broker.vhost import VHost


class Client(Protocol):
    name: str
    username: str


class Session(Protocol):
    """The broker's view of a connection; see amqp_server.connection.session."""

    @property
    def client(self) -> Client: ...

    number: int
    vhost: VHost | None
    exclusive_queues: dict[Queue, None]

    def alarm_changed(self) -> None:
        """An alarm was raised or cleared."""

    def forget_memos(self) -> None:
        """Clear what is remembered of frames."""

    def force_close(self, reason: str) -> None:
        """Close the connection because an operator wants it, or because the node stops."""

    def failed(self, error: Exception) -> None:
        """See amqp_server.turn.Unit."""


class Sessions:
    """A number is used once in the life of the process."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sessions: dict[int, Session] = {}
        #: User and vhost of those that clients have opened, and how many each user and each vhost has.
        self._opened: dict[int, tuple[str, str]] = {}
        self._of_users: dict[str, int] = {}
        self._in_vhosts: dict[str, int] = {}
        #: Channels of each user.
        self._channels: dict[str, int] = {}

    def next_number(self) -> int:
        return next(self._numbers)

    def add(self, session: Session) -> None:
        self._sessions[session.number] = session

    def remove(self, session: Session) -> None:
        self._sessions.pop(session.number, None)
        opened = self._opened.pop(session.number, None)
        if opened is not None:
            _count(self._of_users, opened[0], -1)
            _count(self._in_vhosts, opened[1], -1)

    def opened(self, session: Session) -> None:
        """A client has opened a vhost."""
        user, vhost = session.client.username, session.vhost
        if vhost is not None:
            self._opened[session.number] = user, vhost.name
            _count(self._of_users, user, 1)
            _count(self._in_vhosts, vhost.name, 1)

    def channel_opened(self, user: str) -> None:
        _count(self._channels, user, 1)

    def channel_gone(self, user: str) -> None:
        _count(self._channels, user, -1)

    def of_user(self, user: str) -> int:
        return self._of_users.get(user, 0)

    def in_vhost(self, vhost: str) -> int:
        return self._in_vhosts.get(vhost, 0)

    def channels_of(self, user: str) -> int:
        return self._channels.get(user, 0)

    def get(self, number: int) -> Session | None:
        return self._sessions.get(number)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)


def _count(counts: dict[str, int], name: str, more: int) -> None:
    count = counts.get(name, 0) + more
    if count:
        counts[name] = count
    else:
        del counts[name]
