"""The common parts of the generated histories of both kinds of data, over both stores."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine

from persistence.commits.wal import BLOCK_BYTES
from persistence.environment import Environment
from tests.stores.memory import MemoryEnvironment

COMMON = settings(stateful_step_count=40)
IN_MEMORY = settings(COMMON, max_examples=150)
IN_LMDB = settings(COMMON, max_examples=80)


class Histories(RuleBasedStateMachine):
    """Rules submit to the store and to a model; commit makes the model's present its past."""

    environment: Any

    def begin_on(self, environment: Any) -> None:
        """Start the checks anew on the store, which was just opened."""
        raise NotImplementedError

    def open(self) -> None:
        raise NotImplementedError

    def crash_store(self) -> None:
        raise NotImplementedError

    def log_all(self) -> bool:
        """Make everything submitted durable in the write-ahead log; false if some of it has no room there."""
        pending = self.environment.pending
        while pending.unsynced:
            layer = pending.take()
            write = self.environment.log_record(layer)
            if write is None:
                return False
            write()
            pending.note_logged(layer)
        return True


class InMemory(Histories):
    def open(self) -> None:
        self.environment = MemoryEnvironment()
        self.begin_on(self.environment)

    def crash_store(self) -> None:
        self.environment.crash()
        self.begin_on(self.environment)


class InLmdb(Histories):
    #: Small bounds, so that short histories have chunks, several layers and carried-over erasures.
    bounds: tuple[tuple[ModuleType, str, int], ...]

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.usual = [getattr(module, name) for module, name, _ in self.bounds]
        for module, name, value in self.bounds:
            setattr(module, name, value)

    def teardown(self) -> None:
        for (module, name, _), value in zip(self.bounds, self.usual, strict=True):
            setattr(module, name, value)
        if hasattr(self, "environment"):
            self.environment.close()
        self.directory.cleanup()

    def open(self) -> None:
        # Few blocks, so that they are used again, and that at times there is no room left.
        self.environment = Environment.open(
            Path(self.directory.name) / "data", map_bytes=1 << 30, log_bytes=6 * BLOCK_BYTES
        )
        self.begin_on(self.environment)

    def crash_store(self) -> None:
        self.environment.close()
        self.open()
