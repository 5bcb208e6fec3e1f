"""The sessions of this node, by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Protocol

from amqp_server.broker.topology.limits import CHANNELS_OF, IN_VHOST, OF_USER

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.broker.topology.vhost import VHost


#: Counts by kind and by name of the user or the vhost.
Counts = dict[tuple[int, str], int]


class SessionClient(Protocol):
    name: str
    username: str
    identity: str


class BrokerSession(Protocol):
    """The broker's view of a connection; see amqp_server.connection.session."""

    @property
    def client(self) -> SessionClient: ...

    number: int
    vhost: VHost | None
    exclusive_queues: dict[Queue, None]

    def alarm_changed(self) -> None:
        """An alarm was raised or cleared."""

    def forget_memos(self) -> None:
        """Clear the memo of frames."""

    def force_close(self, reason: str) -> None:
        """Close the connection for an operator, or because the node stops."""

    def failed(self, error: Exception) -> None: ...


class Sessions:
    """The sessions by number. A number is used once in the life of the process."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sessions: dict[int, BrokerSession] = {}
        #: User and vhost of sessions that have opened a vhost.
        self._opened: dict[int, tuple[str, str]] = {}
        self._counts: Counts = {}
        #: The last reported counts of other nodes.
        self._others: dict[str, Mapping[tuple[int, str], int]] = {}
        self._count_changed: Callable[[int, str], None] = _nothing

    def next_number(self) -> int:
        return next(self._numbers)

    def add(self, session: BrokerSession) -> None:
        self._sessions[session.number] = session

    def remove(self, session: BrokerSession) -> None:
        self._sessions.pop(session.number, None)
        opened = self._opened.pop(session.number, None)
        if opened is not None:
            self._count(OF_USER, opened[0], -1)
            self._count(IN_VHOST, opened[1], -1)

    def opened(self, session: BrokerSession) -> None:
        """A client has opened a vhost."""
        user, vhost = session.client.identity, session.vhost
        if vhost is not None:
            self._opened[session.number] = user, vhost.name
            self._count(OF_USER, user, 1)
            self._count(IN_VHOST, vhost.name, 1)

    def channel_opened(self, user: str) -> None:
        self._count(CHANNELS_OF, user, 1)

    def channel_gone(self, user: str) -> None:
        self._count(CHANNELS_OF, user, -1)

    def _count(self, kind: int, name: str, more: int) -> None:
        count = self._counts.get((kind, name), 0) + more
        if count:
            self._counts[kind, name] = count
        else:
            del self._counts[kind, name]
        self._count_changed(kind, name)

    def counted(self, kind: int, name: str) -> int:
        """Return the last reported count over all nodes."""
        count = self._counts.get((kind, name), 0)
        for told in self._others.values():
            count += told.get((kind, name), 0)
        return count

    @property
    def counts(self) -> Counts:
        """This node's counts."""
        return self._counts

    def subscribe(self, changed: Callable[[int, str], None]) -> None:
        """Call `changed` with kind and name of each count that changes."""
        self._count_changed = changed

    def others_have(self, node: str, counts: Mapping[tuple[int, str], int]) -> None:
        """Another node has reported its counts; a node that is down has none."""
        if counts:
            self._others[node] = counts
        else:
            self._others.pop(node, None)

    def get(self, number: int) -> BrokerSession | None:
        return self._sessions.get(number)

    def __iter__(self) -> Iterator[BrokerSession]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)


def _nothing(kind: int, name: str) -> None: ...
