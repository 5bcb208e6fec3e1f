"""What a connection waits for when a method's answer does not come at once: a majority of nodes, or another node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amqp_server.errors import AMQPError

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel
    from amqp_server.connection.session import Session


class Suspension:
    """One method that is half done. While it is, the session handles no frame behind it."""

    __slots__ = ("_error", "_late", "_session", "_then", "channel", "finished", "raw", "where")

    def __init__(
        self, session: Session, channel: Channel, where: tuple[int, int], then: Callable[..., None]
    ) -> None:
        self._session = session
        self._then = then
        self.channel = channel
        #: Class and method id of the method.
        self.where = where
        self.raw = channel.raw
        self.finished = False
        #: Its handler has returned: the rest of it is run by whoever brings the answer.
        self._late = False
        self._error: AMQPError | None = None

    def begin(self, begin: Callable[[Callable[..., None]], None]) -> None:
        """Ask; what answers at once is gone on with at once. Raises AMQPError, what the rest of the method raised."""
        begin(self._done)
        if self._error is not None:
            raise self._error
        self._late = True

    def _done(self, *answer: Any) -> None:
        if self.finished:
            return
        self.finished = True
        if self._late:
            self._session.go_on(self, answer)
            return
        try:
            self._then(*answer)
        except AMQPError as error:
            # Not through whoever was asked.
            self._error = error

    def then(self, answer: tuple[Any, ...]) -> None:
        """Run the rest of the method. Raises AMQPError."""
        self._then(*answer)
