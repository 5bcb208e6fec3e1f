"""A method that gets its result later: its connection waits for a majority of nodes, for another node, or for
a backend's answer about permissions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp_server.channel.channel import Channel
    from amqp_server.turn import Turn, TurnSession


class Suspension:
    """One suspended method. Meanwhile the session handles no later frame."""

    __slots__ = ("_answer", "_session", "_then", "_turn", "channel", "raw", "waiting", "where")

    def __init__(
        self,
        turn: Turn,
        session: TurnSession,
        channel: Channel | None,
        where: tuple[int, int],
        then: Callable[..., None],
    ) -> None:
        """`channel` is None for a method of the connection."""
        self._turn = turn
        self._session = session
        self._then = then
        self._answer: tuple[Any, ...] | None = None
        self.channel = channel
        #: Class and method id of the method.
        self.where = where
        self.raw = b"" if channel is None else channel.raw
        #: True if its handler has returned: the session continues when the answer arrives.
        self.waiting = False

    @property
    def answered(self) -> bool:
        return self._answer is not None

    def answer(self, *answer: Any) -> None:
        """Take the answer.

        The rest of the method runs later, in the context of the session and not of the caller.
        """
        if self._answer is None:
            self._answer = answer
            if self.waiting:
                self._turn.answered(self._session)

    def finish(self) -> None:
        """Run the rest of the method. Raises AMQPError."""
        assert self._answer is not None
        self._then(*self._answer)
