"""What nobody knows without asking: is a queue there whose lease ends, or whose last consumer left?"""

from __future__ import annotations

import time

from tests.model.judging.faults import Faults
from tests.model.spec.promises import Broken
from tests.model.spec.queues import LATE_S, Queue

#: A lease that ends within this time is outlasted before the next step.
SOON_S = 0.25


class Doubts(Faults):
    def _probe(self) -> None:
        """Ask whether queues still exist of which the model does not know it."""
        if not self.hit:
            self._await_ends()
        for queue in list(self.model.queues.values()):
            if not isinstance(queue, Queue) or (self.hit and not _goes_on(queue)):
                continue
            if queue.lease is not None and time.monotonic() >= queue.lease[0] - SOON_S:
                self._outlast(queue)
            if not queue.certain and queue.owner is None and self.model.queues.get(queue.name) is queue:
                queue.certain = True
                self._still_there(queue)

    def _outlast(self, queue: Queue) -> None:
        """Its lease ends about now: wait for that, so that it does not happen within a step."""
        assert queue.lease is not None
        ends = queue.lease[1]
        # A question just before the end may be answered, and the queue be deleted nevertheless.
        time.sleep(max(0.0, ends + SOON_S - time.monotonic()))
        while self._still_there(queue):
            if queue.lease is None or queue.lease[0] > time.monotonic():
                # The question has renewed it.
                return
            if time.monotonic() > ends + LATE_S:
                raise Broken(f"{queue.name} is there {LATE_S} s after its lease")
            time.sleep(0.02)


def _goes_on(queue: Queue) -> bool:
    """True if a fault of a node does not touch the queue: its lease goes on."""
    return queue.kind == "classic" and queue.reachable
