"""Frees the memory of a deleted queue.

Freeing a million messages, or tens of thousands of consumers, takes as long as any work on each of them. So
they are not freed with the host, but some at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from quorum_queue.boundary import Fatal
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.order.run_list import RunList
from quorum_queue.machine.run import Run
from quorum_queue.ports import Turn

#: Messages, runs, and consumers that are freed before the turn may end.
FREED_MAX: Final = 2_048
FREED_RUNS_MAX: Final = 512
FREED_CONSUMERS_MAX: Final = 128
#: The same in bytes: each MiB takes some 60 µs, because its pages go back to the kernel.
FREED_BYTES_MAX: Final = 16 << 20


class Leftover:
    """See amqp_server.turn.Unit."""

    __slots__ = ("_consumers", "_runs", "_turn")

    def __init__(self, machine: Machine, turn: Turn) -> None:
        """Take everything out of the machine."""
        self._turn = turn
        self._consumers: list[Consumer] = machine.consumers.drop_all()
        self._runs: list[deque[Run] | RunList] = machine.ready.drop_all()
        if machine.delayed.count:
            self._runs.append(machine.delayed.drop_all())

    def free(self) -> None:
        """Free all of it, now or soon."""
        while self._consumers or self._runs:
            self._free_some()
            if self._turn.overdue():
                self._turn.later(self, self.free)
                return

    def _free_some(self) -> None:
        consumers = self._consumers
        if consumers:
            for _ in range(min(len(consumers), FREED_CONSUMERS_MAX)):
                consumer = consumers.pop()
                if consumer.window is not None:
                    # The client still holds what it has got.
                    consumer.window.use(-consumer.checkout.count)
                    consumer.sink.left_behind()
            return
        runs = self._runs[-1]
        messages = count = size = 0
        while runs and messages < FREED_MAX and count < FREED_RUNS_MAX and size < FREED_BYTES_MAX:
            run = runs.popleft()
            messages += len(run.seqs)
            count += 1
            if run.in_memory:
                size += run.size
        if not runs:
            self._runs.pop()

    def failed(self, error: Exception) -> None:
        raise Fatal(f"what a queue held could not be freed: {error!r}") from error


__all__ = ["Leftover"]
