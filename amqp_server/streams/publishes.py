"""Publishes of this node's clients to a stream in a cluster, until they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from quorum_queue.machine.attributes import ALL, LEADER, MAJORITY

if TYPE_CHECKING:
    from amqp_server.streams.members.host import StreamMemberHost


class Publish(NamedTuple):
    """Messages of one publisher in own batches with these numbers."""

    low: int
    high: int
    origin: Any
    first: int
    last: int
    #: When the messages are confirmed; see quorum_queue.machine.attributes.
    level: int = MAJORITY


class Publishes:
    """Publishes to one stream, in order."""

    def __init__(self, host: StreamMemberHost) -> None:
        self._host = host
        self._waiting: list[Publish] = []

    def add(self, low: int, high: int, waiting: list[tuple[Any, int, int, int]]) -> None:
        """Add the publishes in own batches `low` to `high`: origin, first and last number, and when they are
        confirmed.
        """
        self._waiting += [Publish(low, high, *each) for each in waiting]

    def confirm(self, high: int) -> None:
        """Confirm publishes in own batches up to this one, which were applied."""
        left: list[Publish] = []
        host = self._host
        for publish in self._waiting:
            if publish.high > high:
                left.append(publish)
            elif publish.level == ALL:
                host.group.when_all(host.replica.applied, publish.origin, publish.first, publish.last)
            else:
                publish.origin.confirmed(publish.first, publish.last)
        self._waiting = left

    def refuse(self, low: int, high: int) -> None:
        """Refuse publishes in own batches with these numbers, which are lost."""
        left: list[Publish] = []
        for publish in self._waiting:
            if publish.low <= high and publish.high >= low:
                publish.origin.refused(publish.first, publish.last)
            else:
                left.append(publish)
        self._waiting = left

    def has_synced(self, number: int) -> None:
        """Called when the leader has this node's batches up to this one on its disk."""
        left: list[Publish] = []
        for publish in self._waiting:
            if publish.level == LEADER and publish.high <= number:
                publish.origin.confirmed(publish.first, publish.last)
            else:
                left.append(publish)
        self._waiting = left

    def end(self, *, deleted: bool) -> None:
        """Answer all publishes, because the host ends. Publishes to a deleted queue reach no queue."""
        waiting, self._waiting = self._waiting, []
        for publish in waiting:
            answer = publish.origin.gone if deleted else publish.origin.refused
            answer(publish.first, publish.last)


__all__ = ["Publish", "Publishes"]
