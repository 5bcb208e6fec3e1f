"""The channel-wide prefetch of `basic.qos global=true`, shared by all consumers of the channel."""

from __future__ import annotations

from quorum_queue.machine.consumers import UNLIMITED


class ChannelWindow:
    """Room for unacked deliveries; a limit of 0 is none."""

    __slots__ = ("limit", "used")

    def __init__(self) -> None:
        self.limit = 0
        self.used = 0

    def room(self) -> int:
        return self.limit - self.used if self.limit else UNLIMITED

    def use(self, count: int) -> None:
        self.used += count
