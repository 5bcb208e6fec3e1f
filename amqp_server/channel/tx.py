"""Transactions: publishes and acks of a channel that take effect together.

A commit applies all of them within one turn of the loop, so they reach the disk in one LMDB transaction: after a
crash either all of them are there or none. Commit-ok follows the sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.channel.publish import publish
from amqp_server.channel.unacked import Piece
from amqp_server.wire.intake import Segment

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel


class Transaction:
    """What a channel in tx mode has done since its last commit."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.segments: list[Segment] = []
        #: (settle, return or discard; the deliveries)
        self.settlements: list[tuple[str, list[Piece]]] = []

    def commit(self) -> None:
        """Apply everything."""
        segments, self.segments = self.segments, []
        settlements, self.settlements = self.settlements, []
        for segment in segments:
            publish(segment)
        for verb, pieces in settlements:
            self._channel.settle(verb, pieces)

    def rollback(self) -> None:
        """Forget the publishes; the acked deliveries are unacked again, under their old tags."""
        self.segments = []
        settlements, self.settlements = self.settlements, []
        for _, pieces in settlements:
            for piece in pieces:
                self._channel.unacked.restore(piece)
