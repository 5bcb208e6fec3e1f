"""A pass of compaction moves no more bytes in a second than it may. Its clock goes on only while it waits."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from persistence.streams import compaction
from persistence.streams.compaction import BATCH_BYTES, WRITE_BYTES, Stopped, Throttle
from persistence.streams.index import SPACING_BYTES
from persistence.streams.log import StreamLog
from tests.persistence.streams.crashing import CrashingFiles
from tests.persistence.streams.test_compaction import Keys, Message, fill, opened, read

BYTES_PER_S = 1 << 20
SEGMENT_BYTES = 1 << 20
#: A pass waits after its work, so it may be ahead by a write or a read, and by pieces of indexes.
AHEAD_BYTES = WRITE_BYTES + BATCH_BYTES + SPACING_BYTES


class Waits(threading.Event):
    """Time passes while a thread waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        #: The time at which the node ends.
        self.ends_s = float("inf")

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        return self.now_s >= self.ends_s


class Metered(CrashingFiles):
    """Counts the bytes that are read and written."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits
        self.begin()

    def begin(self) -> None:
        self._begun_s = self._waits.now_s
        self.bytes = self.ahead_bytes = 0

    def read(self, path: Path, position: int, size: int) -> bytes:
        data = super().read(path, position, size)
        self._note(len(data))
        return data

    def write(self, path: Path, position: int, parts: Sequence[bytes]) -> None:
        super().write(path, position, parts)
        self._note(sum(map(len, parts)))

    def _note(self, size: int) -> None:
        self.bytes += size
        self.ahead_bytes = max(self.ahead_bytes, self.bytes - int(self.seconds * BYTES_PER_S))

    @property
    def seconds(self) -> float:
        return self._waits.now_s - self._begun_s


def full(files: CrashingFiles, size: int, codec: str) -> StreamLog:
    """Return a log of some MB with messages of this size, in batches of about 140 KB."""
    chance = random.Random(size)
    log = opened(files, segment_bytes=SEGMENT_BYTES, codec=codec)
    messages: list[Message] = []
    for _ in range(5_000_000 // size):
        body = chance.randbytes(size) if codec == "none" else chance.randbytes(size // 4) * 4
        messages.append((chance.choice("abcd......"), body))
    fill(log, messages, each=max(140_000 // size, 1))
    assert log.sealed
    return log


def keeps_its_rate(size: int, codec: str = "none") -> None:
    """Do a whole pass, and check the rate at each moment."""
    waits = Waits()
    throttle = Throttle(BYTES_PER_S, waits)
    files = Metered(waits)
    log = full(files, size, codec)
    files.begin()
    plan = compaction.plan(log, Keys(), 1000, 4 * SEGMENT_BYTES, throttle)
    for group in plan.groups:
        new = compaction.rewrite(log, group, plan, Keys(), -1, codec, throttle)
        assert new is not None and log.replace(group, new)
    assert files.ahead_bytes <= AHEAD_BYTES < files.bytes
    # And it is not slower than necessary.
    assert files.seconds * BYTES_PER_S <= 1.01 * files.bytes
    assert read(log).keys() >= set(plan.latest.offsets.values())


@pytest.mark.parametrize(
    ("size", "codec"),
    [
        (300, "none"),
        (10_000, "none"),
        (46_000, "none"),
        (130_000, "none"),
        (300_000, "none"),
        (10_000, "lz4"),
    ],
)
def test_a_pass_keeps_to_its_rate(size: int, codec: str) -> None:
    keeps_its_rate(size, codec)


def for_small_pieces(spent: Callable[[Throttle, int], None]) -> Callable[[Throttle, int], None]:
    """Reads are small, and writes are not."""
    return lambda self, size: spent(self, size) if size < WRITE_BYTES else None


def twice_as_fast(spent: Callable[[Throttle, int], None]) -> Callable[[Throttle, int], None]:
    return lambda self, size: spent(self, size // 2)


def never(spent: Callable[[Throttle, int], None]) -> Callable[[Throttle, int], None]:
    return lambda self, size: None


@pytest.mark.parametrize("mutant", [for_small_pieces, twice_as_fast, never])
def test_a_pass_that_is_faster_is_found(
    mutant: Callable[[Callable[[Throttle, int], None]], Callable[[Throttle, int], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Throttle, "spent", mutant(Throttle.spent))
    with pytest.raises(AssertionError, match="ahead_bytes"):
        keeps_its_rate(10_000)


def test_a_node_that_ends_waits_for_no_pass() -> None:
    waits = Waits()
    files = Metered(waits)
    log = full(files, 10_000, "none")
    there = set(files.now)
    throttle = Throttle(BYTES_PER_S, waits)
    plan = compaction.plan(log, Keys(), 1000, 4 * SEGMENT_BYTES, throttle)
    waits.ends_s = waits.now_s + 2
    with pytest.raises(Stopped):
        compaction.rewrite(log, plan.groups[0], plan, Keys(), -1, "none", throttle)
    assert waits.now_s < waits.ends_s + AHEAD_BYTES / BYTES_PER_S
    assert set(files.now) == there
