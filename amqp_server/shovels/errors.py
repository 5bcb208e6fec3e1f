"""What ends a run of a shovel; the text is its reason, for the status and the log."""

from __future__ import annotations


class ShovelError(Exception):
    """It is tried again after the reconnect delay."""


class PeerError(ShovelError):
    """The other side has sent what no AMQP 0-9-1 broker sends, or nothing for too long."""


class PeerLost(ShovelError):
    """The connection is gone."""


class ClosedByPeer(ShovelError):
    """The other side has closed the connection, and said why."""


class ChannelClosed(ShovelError):
    """The other side has closed the channel, and said why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
