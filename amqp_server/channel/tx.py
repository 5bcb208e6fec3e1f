"""Transactions: publishes and acks of a channel that take effect together.

A commit applies all of them within one turn, so they reach the disk in one LMDB transaction: after a crash either all
of them are there or none. Commit-ok follows the sync; where queues are replicated or live on another node, it follows
their answer, and each queue by itself takes its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.channel.publish import publish
from amqp_server.channel.unacked import Piece
from amqp_server.wire.intake import Segment
from quorum_queue.ports import Recipient

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel


class Transaction:
    """What a channel in tx mode has done since its last commit."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.segments: list[Segment] = []
        #: Of the messages in them, with their frames.
        self.published_bytes = 0
        #: (settle, return or discard; the deliveries)
        self.settlements: list[tuple[str, list[Piece]]] = []
        self._numbered_count = 0
        #: Of the commit that is under way, queues have refused messages (x-overflow=reject-publish), or acks came
        #: too late.
        self.partial = False

    @property
    def published_count(self) -> int:
        """Messages that wait for the commit."""
        return sum(len(segment.contents) for segment in self.segments)

    @property
    def settled_count(self) -> int:
        """Acks that wait for the commit."""
        return sum(piece.high - piece.low + 1 for _, pieces in self.settlements for piece in pieces)

    # A transaction is an origin of publishes, like Confirms. Only refusals matter to it.

    def number(self, count: int) -> int:
        first = self._numbered_count + 1
        self._numbered_count += count
        return first

    def confirmed(self, first: int, last: int) -> None:
        pass

    def refused(self, first: int, last: int) -> None:
        self.partial = True

    def add(self, segment: Segment) -> None:
        """Keep what is published until the commit."""
        self.segments.append(segment)
        self.published_bytes += sum(map(len, segment.contents))

    def commit(self) -> list[Recipient]:
        """Hand everything to the queues; return the hosts that have a part in it."""
        segments, self.segments = self.segments, []
        self.published_bytes = 0
        settlements, self.settlements = self.settlements, []
        hosts: dict[Recipient, None] = {}
        for segment in segments:
            hosts.update(dict.fromkeys(publish(segment, self)))
        for verb, pieces in settlements:
            for piece in pieces:
                host = piece.holder.queue.host
                hosts[host] = None
                if not host.holds(piece.holder.key, piece.low):
                    # What is acked too late is in the queue again: the client must not take it for done.
                    self.partial = True
            self._channel.settle(verb, pieces)
        return list(hosts)

    def rollback(self) -> None:
        """Forget the publishes; the acked deliveries are unacked again, under their old tags."""
        self.segments = []
        self.published_bytes = 0
        settlements, self.settlements = self.settlements, []
        for _, pieces in settlements:
            for piece in pieces:
                self._channel.unacked.restore(piece)
