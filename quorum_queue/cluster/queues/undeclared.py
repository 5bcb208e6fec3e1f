"""Commands of other nodes for queues that this node does not know yet: it lags behind in the topology."""

from __future__ import annotations

from collections.abc import Callable


class UndeclaredQueues:
    """Keeps frames with commands until the queue is declared here."""

    __slots__ = ("_bytes", "_frames", "_may_come", "bytes_max")

    def __init__(self, may_come: Callable[[int], bool], bytes_max: int) -> None:
        """`may_come` returns whether a queue with this id may still be declared here."""
        self._may_come = may_come
        self.bytes_max = bytes_max
        self._bytes = 0
        #: Peers and their frames, in the order of arrival, by queue.
        self._frames: dict[int, list[tuple[str, bytes]]] = {}

    def keep(self, queue_id: int, peer: str, frame: memoryview) -> bool:
        """Keep a frame for an unknown queue; False if that is useless, or too much is kept already."""
        if self._bytes >= self.bytes_max or not self._may_come(queue_id):
            return False
        self._frames.setdefault(queue_id, []).append((peer, bytes(frame)))
        self._bytes += len(frame)
        return True

    def take(self, is_known: Callable[[int], bool]) -> list[tuple[str, bytes]]:
        """Take the frames for queues that are known by now, or never will be."""
        taken: list[tuple[str, bytes]] = []
        for queue_id in list(self._frames):
            if is_known(queue_id) or not self._may_come(queue_id):
                taken += self._frames.pop(queue_id)
        self._bytes -= sum(len(frame) for _, frame in taken)
        return taken

    def has(self, queue_id: int) -> bool:
        return queue_id in self._frames

    def link_down(self, peer: str) -> None:
        """Forget all frames of a peer: it treats their commands as lost."""
        for queue_id in list(self._frames):
            self.forget(queue_id, peer)

    def forget(self, queue_id: int, peer: str) -> None:
        """Forget the frames of a peer for one queue."""
        kept = self._frames.pop(queue_id, [])
        others = [(sender, frame) for sender, frame in kept if sender != peer]
        self._bytes -= sum(len(frame) for sender, frame in kept if sender == peer)
        if others:
            self._frames[queue_id] = others
