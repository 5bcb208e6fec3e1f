"""Errors that end a run of a shovel; the text is the reason for the status and the log."""

from __future__ import annotations


class ShovelError(Exception):
    """The shovel is started again after the reconnect delay."""


class PeerError(ShovelError):
    """The other side has sent invalid AMQP 0-9-1, or nothing for too long."""


class PeerLost(ShovelError):
    """The connection is gone."""


class ClosedByPeer(ShovelError):
    """The other side has closed the connection with a reason."""


class ChannelClosed(ShovelError):
    """The other side has closed the channel with a reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
