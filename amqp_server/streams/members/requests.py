"""Questions between nodes about streams: for messages by their offsets, to fill a member, to repair damage,
and for consumers on nodes that are no members.

A question names an offset, not a position in a file or a state of the asked node. So a node that gets no
answer can ask another member the same. A member answers only with committed messages, and only if it has them
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from quorum_queue.boundary import Unit
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.cluster.ports import Links

Done = Callable[[StreamWord], None]

ABSENT = StreamWord(frames.TOLD_ABSENT)
NOTHING = StreamWord(frames.TOLD_NOTHING)


class Answering(Unit, Protocol):
    """A member of a stream."""

    def answer(self, peer: str, what: int, value: int, reply: Done, data: bytes = b"") -> None:
        """Answer a question exactly once, immediately or later."""


class Containing(Protocol):
    """The node's turn; see amqp_server.turn."""

    def contain(self, unit: Unit, call: Callable[..., object], *arguments: object) -> None: ...


class Asks:
    """The open questions of this node, and those of other nodes. There is no timeout: questions end when the
    link breaks.
    """

    def __init__(self, links: Links, turn: Containing) -> None:
        self._links = links
        self._turn = turn
        self._number = 0
        self._waiting: dict[tuple[str, int], tuple[Unit, Done]] = {}
        #: Members of streams on this node.
        self.members: dict[int, Answering] = {}

    def linked(self, peer: str) -> bool:
        return peer in self._links.connected()

    def ask(
        self, peer: str, queue_id: int, what: int, value: int, unit: Unit, done: Done, data: bytes = b""
    ) -> None:
        """Ask a member; if `done` raises, `unit` counts as failed."""
        self._number += 1
        self._waiting[peer, self._number] = unit, done
        if not self._links.send(peer, frames.query(queue_id, self._number, what, value, data)):
            self._answered(peer, self._number, NOTHING)

    def _answered(self, peer: str, number: int, word: StreamWord) -> None:
        found = self._waiting.pop((peer, number), None)
        if found is not None:
            self._turn.contain(found[0], found[1], word)

    def link_down(self, peer: str) -> None:
        for place in [place for place in self._waiting if place[0] == peer]:
            self._answered(*place, NOTHING)

    # -- frames ----------------------------------------------------------------------------------------------

    def asked(self, peer: str, frame: memoryview) -> None:
        """Raises frames.FrameError."""
        queue_id, number, what, value, data = frames.parse_query(frame)
        member = self.members.get(queue_id)
        reply = partial(self._reply, peer, queue_id, number)
        if member is None:
            reply(ABSENT)
        else:
            self._turn.contain(member, member.answer, peer, what, value, reply, data)

    def _reply(self, peer: str, queue_id: int, number: int, word: StreamWord) -> None:
        self._links.send(peer, frames.told(queue_id, number, word))

    def told(self, peer: str, frame: memoryview) -> None:
        """Raises frames.FrameError."""
        _, number, word = frames.parse_told(frame)
        self._answered(peer, number, word)


__all__ = ["ABSENT", "NOTHING", "Asks", "Done"]
