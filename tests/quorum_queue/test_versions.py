"""Versions of the machine: the changes of each, and the state that the last release can read until then."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.machine.letters import SOURCES_MAX, STRETCHES_KEPT, STRETCHES_MAX, Letter, Letters
from quorum_queue.machine.machine import DROPS_MAX, Machine, Meta
from quorum_queue.machine.replicated import Applied, QueueReplica
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.cluster.releases import WHEELS

PERSISTENT = Attributes(persistent=True)


def message(body: bytes = b"x") -> Run:
    return Run(range(1), [body], b"\x00\x01q", PERSISTENT)


def letter(machine: Machine, position: int, low: int = 0, source: int = 7) -> int:
    """Send a dead letter; return how many messages are ready then."""
    effects = Effects()
    command = ("enqueue_letter", message(), "origin", 1, Letter(source, position, low))
    machine.apply(Meta(0), [command], effects)
    assert [answer[:3] for answer in (*effects.confirmed, *effects.refused)] == [("origin", 1, 1)]
    return machine.ready.count


def test_dead_letters_are_taken_once_from_their_version_on() -> None:
    machine = Machine(Settings(), version=versions.FIRST)
    assert [letter(machine, 5), letter(machine, 5)] == [1, 2]
    machine.apply(Meta(0), [("version", versions.LETTERS)], Effects())
    assert [letter(machine, 5), letter(machine, 5), letter(machine, 6), letter(machine, 6)] == [3, 3, 4, 4]
    # The same position in another queue is another letter.
    assert letter(machine, 5, source=8) == 5
    # A version is never lowered.
    machine.apply(Meta(0), [("version", versions.FIRST)], Effects())
    assert machine.version == versions.LETTERS


def test_a_letter_that_a_full_queue_refuses_is_taken_later() -> None:
    machine = Machine(Settings(max_length=1, overflow="reject-publish"))
    assert [letter(machine, 1), letter(machine, 2)] == [1, 1]
    machine.apply(Meta(0), [("purge",)], Effects())
    assert [letter(machine, 1), letter(machine, 2), letter(machine, 2)] == [0, 1, 1]


def test_a_message_that_does_not_fit_is_refused_from_a_version_on() -> None:
    """Members of both versions must refuse the same messages of one entry."""

    def answers(machine: Machine, *sizes: int) -> list[tuple[str, int, int]]:
        run = Run(range(len(sizes)), [b"x" * size for size in sizes], b"head")
        effects = Effects()
        machine.apply(Meta(0), [("enqueue", run, "p", 1)], effects)
        confirmed = [("ack", first, last) for _, first, last, _ in effects.confirmed]
        return sorted(
            [*confirmed, *(("nack", first, last) for _, first, last in effects.refused)],
            key=lambda each: each[1],
        )

    settings = Settings(max_length_bytes=100, overflow="reject-publish")
    before = Machine(settings, version=versions.FITTING - 1)
    assert answers(before, 60, 1000, 10) == [("ack", 1, 1), ("ack", 2, 2), ("nack", 3, 3)]
    now = Machine(settings, version=versions.FITTING - 1)
    now.apply(Meta(0), [("version", versions.FITTING)], Effects())
    assert answers(now, 60, 1000, 41, 40) == [("ack", 1, 1), ("nack", 2, 3), ("ack", 4, 4)]
    assert answers(now, 1, 0, 1) == [("nack", 1, 1), ("ack", 2, 2), ("nack", 3, 3)]
    assert now.ready.bytes == 100
    empty = Machine(settings)
    assert answers(empty, 101) == [("nack", 1, 1)]
    assert answers(empty, 100) == [("ack", 1, 1)]


def test_what_is_remembered_of_letters_is_bounded() -> None:
    letters = Letters()
    for position in range(0, 2 * STRETCHES_MAX + 10, 2):
        letters.take(Letter(1, position, 0))
    assert len(letters) == STRETCHES_MAX
    letters.take(Letter(1, 2 * STRETCHES_MAX + 10, 2 * STRETCHES_MAX))
    assert len(letters) == STRETCHES_KEPT
    for source in range(SOURCES_MAX + 5):
        letters.take(Letter(source + 2, 1, 0))
    assert len(letters) == SOURCES_MAX
    assert letters.is_new(Letter(1, 2 * STRETCHES_MAX + 10, 0))


def test_positions_in_a_row_are_one_stretch() -> None:
    letters = Letters()
    for position in (5, 3, 4, 9, 8, 7, 6):
        assert letters.is_new(Letter(1, position, 0))
        letters.take(Letter(1, position, 0))
        assert not letters.is_new(Letter(1, position, 0))
    assert letters.state() == [(1, [3, 10])]


@pytest.mark.parametrize(("version", "tried"), [(versions.FIRST, 2), (versions.RETURNED, 1)])
def test_a_message_with_a_ttl_of_zero_is_handed_out_once(version: int, tried: int) -> None:
    machine = Machine(Settings(message_ttl_ms=0), version=version)
    deliveries = 0
    for commands in (
        [("attach", Consumer("c", prefetch=1)), ("enqueue", Run(range(1), [b"m"], b"head"), None, 1)],
        [("return", "c", 0, 0)],
        [],
    ):
        effects = Effects()
        machine.apply(Meta(7), commands, effects)
        deliveries += len(effects.deliveries)
    assert deliveries == tried


@pytest.mark.parametrize("version", [versions.FIRST, versions.NEWEST])
def test_a_snapshot_has_the_version_and_what_belongs_to_it(version: int) -> None:
    machine = Machine(Settings(), version=version)
    for position in (1, 2, 9):
        letter(machine, position)
    again = snapshot.decode(snapshot.encode(machine))
    assert again.version == version
    assert snapshot.digest(again) == snapshot.digest(machine)
    assert letter(again, 9) == (4 if version == versions.FIRST else 3)


def test_what_is_newer_is_refused_with_a_clear_text() -> None:
    newer = versions.NEWEST + 1
    batch = b"".join(encode_batch("n1", 1, 1, [("version", newer)]))
    with pytest.raises(CodecError, match=f"has version {newer}, this mqd knows {versions.NEWEST}"):
        decode_entry(encode_entry(0, [batch]))
    replica = QueueReplica(Settings())
    replica.machine.version = newer
    with pytest.raises(CodecError, match=f"has version {newer}, this mqd reads versions up to"):
        QueueReplica.restore(replica.snapshot())


@pytest.mark.parametrize(
    ("features", "version"),
    [
        ((), 1),
        (("machine/2",), 2),
        (("machine/4",), 1),
        ((*versions.FEATURES, f"machine/{versions.NEWEST + 1}", "reach"), versions.NEWEST),
    ],
)
def test_what_a_node_knows_is_told_by_its_features(features: tuple[str, ...], version: int) -> None:
    assert versions.newest_of(features) == version


READ = """
import sys
sys.path.insert(0, sys.argv[1])
from quorum_queue.machine.entries import decode_entry
from quorum_queue.machine.replicated import Replica
read = sys.stdin.buffer.read
size = int.from_bytes(read(4), "big")
replica = Replica.restore(read(size))
entry = decode_entry(read())
replica.apply(replica.applied + 1, entry, ("n9", 1))
sys.stdout.buffer.write(replica.snapshot())
"""


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)
def test_the_last_release_reads_the_first_version_and_we_read_what_it_writes(wheel: Any) -> None:
    replica = QueueReplica(Settings(message_ttl_ms=1000, dead_letter=True, dead_letter_at_least_once=True))

    def entry(number: int) -> bytes:
        commands = [("enqueue", message(b"%d" % number), 1, number), ("tick",), ("touch",)]
        return encode_entry(number, [b"".join(encode_batch("n1", 1, number, commands))])

    for number in (1, 2):
        replica.apply(number, decode_entry(entry(number)), ("n9", 1))
    state = replica.snapshot()
    done = subprocess.run(
        [sys.executable, "-c", READ, str(wheel)],
        input=len(state).to_bytes(4, "big") + state + entry(3),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    replica.apply(3, decode_entry(entry(3)), ("n9", 1))
    assert QueueReplica.restore(done.stdout).digest() == replica.digest()


@pytest.mark.parametrize("version", [versions.DROPS - 1, versions.DROPS])
@pytest.mark.parametrize("why", ["expired", "maxlen", "bytes"])
def test_very_many_messages_are_dropped_by_several_entries(version: int, why: str) -> None:
    count = 2 * DROPS_MAX + 10
    declared = Settings(message_ttl_ms=1000) if why == "expired" else Settings()
    lower = {"maxlen": replace(declared, max_length=3), "bytes": replace(declared, max_length_bytes=3)}
    replica = QueueReplica(declared)
    replica.machine.version = version
    index = 0

    def apply(now_ms: int, *commands: Any) -> Applied:
        nonlocal index
        index += 1
        entry = encode_entry(now_ms, [b"".join(encode_batch("n1", 1, index, commands))])
        return replica.apply(index, decode_entry(entry), ("n1", 1))

    for _ in range(count // 10):
        apply(0, ("enqueue", Run(range(10), [b"x"] * 10, b"\x00\x01q", PERSISTENT), None, 0))
    count = replica.machine.ready.count
    kept = 0 if why == "expired" else 3
    applied = apply(2000, ("configure", lower[why]) if why in lower else ("tick",))
    dropped = []
    while applied.more:
        dropped.append(sum(map(len, applied.settled)))
        applied = apply(2000, ("tick",))
    dropped.append(sum(map(len, applied.settled)))
    assert replica.machine.ready.count == kept
    if version < versions.DROPS:
        assert dropped == [count - kept]
    else:
        assert dropped == [DROPS_MAX, DROPS_MAX, count - kept - 2 * DROPS_MAX]
    assert applied.wake_at is None and not len(replica.locations) - bool(kept)


def test_a_full_queue_drops_as_many_as_come_however_many() -> None:
    machine = Machine(Settings(max_length=5))
    for first in range(0, 30_000, 10_000):
        effects = Effects(expires_max=7)
        machine.apply(Meta(0), [("enqueue", Run(range(10_000), [b"x"] * 10_000, b"q"), None, first)], effects)
        assert machine.ready.count == 5 and not effects.more


def test_the_time_to_live_becomes_the_deadline() -> None:
    for version in (versions.COLUMNS - 1, versions.COLUMNS):
        machine = Machine(Settings(keeps_all=True), version=version)
        for ttl_ms in (10, 20):
            run = Run(range(1), [b"x"], b"q", Attributes(ttl_ms=ttl_ms))
            machine.apply(Meta(5), [("enqueue", run, None, 0)], Effects())
        (run,) = machine.ready.runs()
        assert [run.due_of(index) for index in (0, 1)] == [15, 25]
        kept = [run.attributes_of(index).ttl_ms for index in (0, 1)]
        assert kept == ([None, None] if version == versions.COLUMNS else [10, 20])
        assert run.attributes.persistent
