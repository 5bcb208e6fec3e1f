"""Errors between a Spark task and a broker. Every text says what to do about it."""

from __future__ import annotations


class AmqpError(Exception):
    """Base of all errors of the broker and of the connection to it. Takes one text, so that it survives
    pickling.
    """


class ConnectFailed(AmqpError):
    """No host of the url took the connection."""


class LoginRefused(ConnectFailed):
    """A broker refused the login: another attempt with the same credentials is useless."""


class ConnectionLost(AmqpError):
    """The connection ended while it was in use."""


class ConnectionClosed(ConnectionLost):
    """The broker closed the connection and gave a reason."""


class ChannelClosed(AmqpError):
    """The broker closed the channel, for example because of a missing queue or permission."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type[ChannelClosed], tuple[str, int]]:
        return type(self), (str(self), self.code)


class NoAnswer(AmqpError):
    """The broker took longer than the timeout."""


class Blocked(AmqpError):
    """The broker takes no publishes: it is short of memory or disk."""


class MessagesRefused(AmqpError):
    """Messages came back, or were nacked."""
