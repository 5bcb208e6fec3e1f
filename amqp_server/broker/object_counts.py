"""How many objects the node has, and how much memory they take: for limits, and for those who ask."""

from __future__ import annotations

from typing import Protocol

from amqp_server.broker.traffic import Counted, Ended, MessageSizes
from amqp_server.errors import ResourceError


class OtherChannels(Protocol):
    """The open channels of the node's other processes."""

    def note_channels(self, count: int) -> None:
        """This process has so many."""

    def channels(self) -> int:
        """Return those of the others."""


class ObjectCounts:
    """Numbers of all objects, for the limits of the configuration; and the counts of ended ones."""

    __slots__ = (
        "_declared_bytes_max",
        "bindings",
        "channels",
        "counted",
        "declared_bytes",
        "ended",
        "exchanges",
        "message_sizes",
        "others",
        "paused_queues",
        "queues",
    )

    def __init__(self, declared_bytes_max: int) -> None:
        self._declared_bytes_max = declared_bytes_max
        self.bindings = self.channels = self.exchanges = self.queues = self.paused_queues = 0
        #: Memory of queues, exchanges, bindings and consumers; see amqp_server.broker.declared_memory.
        self.declared_bytes = 0
        self.ended = Ended()
        self.counted = Counted()
        #: Of messages that clients have published.
        self.message_sizes = MessageSizes()
        #: None if the node is one process.
        self.others: OtherChannels | None = None

    def resume(self, words: memoryview) -> None:
        """Go on where an earlier process has ended: these words have its counts, and get ours."""
        self.ended.resume(words)
        self.counted = Counted(words)

    def count_channels(self, more: int) -> None:
        """A channel was opened (1) or is gone (-1)."""
        self.channels += more
        if self.others is not None:
            self.others.note_channels(self.channels)

    def channels_of_node(self) -> int:
        """Return the open channels of all processes of the node."""
        return self.channels + (0 if self.others is None else self.others.channels())

    def check_declared(self, weight: int) -> None:
        """Check that something of this weight may be declared. Raises ResourceError."""
        most = self._declared_bytes_max
        if self.declared_bytes + weight > most:
            raise ResourceError(
                f"queues, exchanges, bindings and consumers use {self.declared_bytes} bytes of memory; "
                f"{weight} more exceed declared_bytes_max ({most})"
            )
