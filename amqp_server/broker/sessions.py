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

    def next_number(self) -> int:
        return next(self._numbers)

    def add(self, session: Session) -> None:
        self._sessions[session.number] = session

    def remove(self, session: Session) -> None:
        self._sessions.pop(session.number, None)

    def get(self, number: int) -> Session | None:
        return self._sessions.get(number)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)
