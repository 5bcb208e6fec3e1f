"""What the node does when its memory runs out."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config
from amqp_server.resources import ResourceWatch


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def old_garbage() -> weakref.ref[Cycle]:
    """An object that only a look at all objects frees."""
    cycle = Cycle()
    gc.collect()
    return weakref.ref(cycle)


def test_garbage_is_looked_for_before_memory_runs_out(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        watch = ResourceWatch(Config(memory_limit="1 GB", disk_free_min_bytes=0), Alarms(), tmp_path)
        first = old_garbage()
        gc.collect(1)
        watch.look()
        assert first() is not None
        watch.set_memory_limit(1)
        assert first() is None
        # Not each time, while there is no more memory: it takes long.
        second = old_garbage()
        watch.look()
        assert second() is not None
    finally:
        gc.enable()
