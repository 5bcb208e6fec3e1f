"""Passes the frames of other nodes to their handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from amqp_server.turn import Turn
from quorum_queue.clock import Clock
from quorum_queue.cluster import frames
from quorum_queue.cluster.dispatch import Dispatch
from quorum_queue.links.mesh import Mesh
from quorum_queue.machine.codec import CodecError as BatchError
from quorum_queue.raft.errors import CodecError

logger = logging.getLogger("mqd.cluster")

Handler = Callable[[str, memoryview], None]


class IncomingFrames:
    """Takes the frames of all links, each read in one turn.

    It also notices if this process was paused so long that the others may have continued without it. Then the
    frames in its sockets are outdated: from them, this node might deliver messages that other consumers have
    got and acked meanwhile. So all sessions begin anew, and this node leads no group until the others have
    told it the current state.
    """

    def __init__(
        self,
        turn: Turn,
        clock: Clock,
        mesh: Mesh,
        dispatch: Dispatch,
        handlers: Mapping[int, Handler],
        *,
        asleep_ms_max: int,
        distrust: Callable[[], None],
    ) -> None:
        """`handlers` are for the kinds of frames that `dispatch` does not know. `distrust` is called when
        this process was paused for longer than `asleep_ms_max`.
        """
        self._turn = turn
        self._clock = clock
        self._mesh = mesh
        self._dispatch = dispatch
        self._handlers = dict(handlers)
        self._asleep_ms_max = asleep_ms_max
        self._distrust = distrust
        #: When this process last ran, and peers whose session is older than its pause.
        self._awake_ms = clock.monotonic_ms()
        self._from_before: dict[str, None] = {}

    def link_down(self, peer: str) -> None:
        self._from_before.pop(peer, None)

    def begin(self) -> None:
        """Start watching for pauses of the process."""
        self._awake_ms = self._clock.monotonic_ms()

    def look_at_clock(self) -> None:
        now = self._clock.monotonic_ms()
        asleep_ms, self._awake_ms = now - self._awake_ms, now
        if asleep_ms < self._asleep_ms_max:
            return
        logger.warning(
            "this process was paused for %d ms: asking the other nodes for their current state", asleep_ms
        )
        self._from_before = dict.fromkeys(self._mesh.connected())
        for peer in self._from_before:
            self._mesh.drop(peer)
        self._distrust()

    def received(self, peer: str, found: list[memoryview]) -> None:
        self._turn.run(self._received, peer, found)

    def _received(self, peer: str, found: list[memoryview]) -> None:
        self.look_at_clock()
        if self._from_before and peer in self._from_before:
            return
        handlers = self._handlers
        try:
            for frame in found:
                handler = handlers.get(frame[0])
                if handler is None:
                    self._dispatch.frame(peer, frame)
                else:
                    handler(peer, frame)
        except (frames.FrameError, CodecError, BatchError, msgspec.MsgspecError) as error:
            logger.error("node %s sent an invalid frame: %s", peer, error)
            self._mesh.drop(peer)
