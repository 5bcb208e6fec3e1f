"""A method whose answer comes later: its connection waits for a majority of nodes, for another node, or to be told
what its user may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel
    from amqp_server.connection.session import Session


class Suspension:
    """One method that is half done. While it is, the session handles no frame behind it."""

    __slots__ = ("_answer", "_session", "_then", "channel", "raw", "waiting", "where")

    def __init__(
        self, session: Session, channel: Channel | None, where: tuple[int, int], then: Callable[..., None]
    ) -> None:
        """`channel` is None for a method of the connection."""
        self._session = session
        self._then = then
        self._answer: tuple[Any, ...] | None = None
        self.channel = channel
        #: Class and method id of the method.
        self.where = where
        self.raw = b"" if channel is None else channel.raw
        #: Its handler has returned: the session goes on when the answer comes.
        self.waiting = False

    @property
    def answered(self) -> bool:
        return self._answer is not None

    def answer(self, *answer: Any) -> None:
        """Take the answer.

        The rest of the method runs later, as a part of the session and not of who answers.
        """
        if self._answer is None:
            self._answer = answer
            if self.waiting:
                self._session.turn.answered(self._session)

    def finish(self) -> None:
        """Run the rest of the method. Raises AMQPError."""
        assert self._answer is not None
        self._then(*self._answer)
