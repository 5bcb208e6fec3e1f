"""The end of what clients had over a link that has broken: some queues in each turn.

Consumers of this node at queues of the other one are cancelled, and consumers of the other node at queues
here give back what they held. There may be tens of thousands of both. If the link comes up again before all
have heard of its end, the rest hears of it first.
"""

from __future__ import annotations

from collections.abc import Iterator

from amqp_server.cluster.hosts import ClusterHosts
from quorum_queue.cluster.queues.guests import Guests
from quorum_queue.ports import Turn
from quorum_queue.steps import Steps


class LostLinks:
    def __init__(self, turn: Turn, guests: Guests, hosts: ClusterHosts) -> None:
        self._guests = guests
        self._hosts = hosts
        #: What is left to be done, by peer.
        self._left: dict[str, Iterator[None]] = {}
        self._steps = Steps(turn, self._go_on, "queues could not be told that a link is down")

    def down(self, peer: str) -> None:
        self.up(peer)
        self._left[peer] = self._ends(peer, self._guests.lose(peer))
        self._steps.begin()

    def up(self, peer: str) -> None:
        """Do the rest at once: nothing of the new session may come before it."""
        for _ in self._left.pop(peer, ()):
            pass

    def _go_on(self) -> Iterator[None]:
        while self._left:
            peer = next(iter(self._left))
            for _ in self._left[peer]:
                yield
                if peer not in self._left:
                    break
            self._left.pop(peer, None)

    def _ends(self, peer: str, guests: Iterator[None]) -> Iterator[None]:
        yield from guests
        remote = self._hosts.remote
        for queue_id, host in list(remote.items()):
            if remote.get(queue_id) is host:
                host.link_down(peer)
                yield


__all__ = ["LostLinks"]
