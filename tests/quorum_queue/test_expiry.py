"""Messages expire at their time, wherever they stand in the queue."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from quorum_queue.machine import ready, versions
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import NO_LIMIT, Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.order import deadlines
from quorum_queue.machine.order.deadlines import NO_DEADLINES
from quorum_queue.machine.order.run_list import CHUNK, RunList
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.command_log import Reader, random_log, random_settings

STRICT = Settings(strict=True)
GROUPED = Settings(group_header="g")


def apply(machine: Machine, *commands: Command, now_ms: int = 0, expires_max: int = NO_LIMIT) -> Effects:
    effects = Effects(expires_max=expires_max)
    machine.apply(Meta(now_ms), commands, effects)
    return effects


def publish(machine: Machine, *ttls: int | None, now_ms: int = 0, priority: int = 0) -> Effects:
    runs = [Run(range(1), [b"x"], b"\x01e\x01kg", Attributes(priority=priority, ttl_ms=ttl)) for ttl in ttls]
    return apply(machine, *(("enqueue", run, None, 0) for run in runs), now_ms=now_ms)


def positions(machine: Machine) -> list[int]:
    return [seq for run in machine.ready.runs() for seq in run.seqs]


def expired(effects: Effects) -> list[int]:
    return [seq for run in effects.settled for seq in run.seqs]


@pytest.mark.parametrize("settings", [Settings(), STRICT, GROUPED, Settings(priority_max=5)])
def test_a_message_expires_behind_others(settings: Settings) -> None:
    machine = Machine(settings)
    assert publish(machine, None, 10, 30, None, 20).wake_at == 10
    assert apply(machine, now_ms=9).wake_at == 10
    effects = apply(machine, now_ms=10)
    assert (expired(effects), positions(machine), effects.wake_at) == ([2], [1, 3, 4, 5], 20)
    assert machine.ready.bytes == 4
    assert expired(apply(machine, now_ms=30)) == [3, 5]
    assert machine.due_ms is None


@pytest.mark.parametrize("settings", [Settings(), STRICT])
def test_up_to_version_8_it_waits_until_it_is_the_first(settings: Settings) -> None:
    machine = Machine(settings, version=versions.EXACT_EXPIRY - 1)
    publish(machine, None, 10)
    assert expired(apply(machine, now_ms=10)) == []
    assert positions(machine) == [1, 2]


@pytest.mark.parametrize("settings", [Settings(), STRICT, GROUPED])
def test_what_comes_back_expires_at_its_time(settings: Settings) -> None:
    machine = Machine(settings)
    publish(machine, None, 10, 20, None)
    apply(machine, ("attach", Consumer("c")))
    apply(machine, ("pause", "c", True), *(("return", "c", at, at) for at in (3, 2, 0, 1)), now_ms=5)
    assert expired(apply(machine, now_ms=10)) == [2]
    assert expired(apply(machine, now_ms=20)) == [3]
    assert sorted(positions(machine)) == [1, 4]


def test_it_expires_while_it_waits_for_a_retry() -> None:
    machine = Machine(Settings(retry_type="all", retry_min_ms=100, retry_max_ms=100))
    publish(machine, 10, None, 30)
    apply(machine, ("attach", Consumer("c")))
    apply(machine, ("pause", "c", True), ("return", "c", 0, 2), now_ms=5)
    assert (machine.delayed.count, machine.due_ms) == (3, 10)
    assert expired(apply(machine, now_ms=10)) == [1]
    assert expired(apply(machine, now_ms=29)) == []
    assert expired(apply(machine, now_ms=30)) == [3]
    assert apply(machine, now_ms=31).wake_at == 105
    assert (machine.delayed.count, machine.ready.count) == (1, 0)


def test_what_has_expired_takes_no_room() -> None:
    machine = Machine(Settings(max_length=2, overflow="reject-publish"))
    publish(machine, None, 10)
    effects = publish(machine, None, now_ms=10)
    assert (effects.refused, expired(effects), positions(machine)) == ([], [2], [1, 3])


def test_what_a_transaction_holds_expires_when_it_is_complete() -> None:
    machine = Machine(Settings())
    publish(machine, None, 10)
    machine.hold()
    publish(machine, 10, 10)
    assert expired(apply(machine, now_ms=10)) == [2]
    assert expired(apply(machine, now_ms=12)) == []
    assert expired(apply(machine, ("unhold",), now_ms=13)) == [3, 4]


def test_very_many_expire_in_several_batches_in_order() -> None:
    machine = Machine(Settings())
    publish(machine, None)
    for number in range(50):
        run = Run(range(100), [b"x"] * 100, b"h", Attributes(ttl_ms=10 + number % 2))
        apply(machine, ("enqueue", run, None, 0))
    gone: list[int] = []
    while True:
        effects = apply(machine, now_ms=11, expires_max=700)
        assert len(expired(effects)) <= 700
        gone += expired(effects)
        if not effects.more:
            break
    assert gone == list(range(2, 5002))
    assert positions(machine) == [1]


@pytest.mark.pure
@pytest.mark.parametrize("bits", [0, 1, 9])
@pytest.mark.parametrize("expires_max", [1, 3, NO_LIMIT])
def test_replicas_drop_the_same_messages(
    monkeypatch: pytest.MonkeyPatch, bits: int, expires_max: int
) -> None:
    """Also those that were restored, and know less of what has left."""
    for module in (ready, deadlines):
        monkeypatch.setattr(module, "BLOCK_BITS", bits)
    monkeypatch.setattr(deadlines, "SPARE_BLOCKS", 2)
    settled = 0
    for seed in range(40):
        random = Random(seed)
        original = Reader(Machine(replace(random_settings(random), max_length=None)))
        copies: list[Reader] = []
        for number, batch in enumerate(random_log(random, 25)):
            effects = original.apply(batch, expires_max)
            settled += len(effects["settled"])
            for copy in copies:
                assert copy.apply(batch, expires_max) == effects, f"seed {seed}, batch {number}"
                assert snapshot.digest(copy.machine) == snapshot.digest(original.machine)
            if random.random() < 0.3:
                restored = snapshot.decode(snapshot.encode(original.machine))
                copies.append(Reader(restored, original.number, original.getter_id))
    assert settled > 500


def test_a_run_that_is_cut_in_its_middle_stays_packed() -> None:
    machine = Machine(Settings())
    # The first run is unpacked whenever somebody asks for the next message.
    publish(machine, *[None] * 2048)
    content, ttls = b"same" + bytes(50), [20 if number % 100 == 50 else None for number in range(2048)]
    for ttl in ttls:
        apply(machine, ("enqueue", Run(range(1), [content], b"h", Attributes(ttl_ms=ttl)), None, 0))
    packed = list(machine.ready.runs())[1]
    packed.pack()
    assert len(packed.seqs) == 2048 and packed.packed is not None
    effects = apply(machine, now_ms=20)
    assert expired(effects) == [seq for seq, ttl in enumerate(ttls, 2049) if ttl]
    assert all(run.contents == [content] for run in effects.settled)
    left = list(machine.ready.runs())[1:]
    assert sum(len(run.seqs) for run in left) == 2048 - len(expired(effects))
    for run in left:
        assert run.packed is not None
        run.unpack()
        assert run.contents == [content] * len(run.seqs) and run.size == len(content) * len(run.seqs)


def test_bodies_of_what_has_expired_do_not_stay() -> None:
    machine = Machine(Settings())
    publish(machine, None)
    for number in range(2000):
        publish(machine, 5, None if number % 100 == 0 else 5, now_ms=10 * number)
        apply(machine, now_ms=10 * number + 5)
    (level,) = machine.ready.levels
    assert machine.ready.count == 21
    assert len(level.resident) < 200
    assert len(machine.ready.deadlines._due) < 200


def test_a_list_of_runs_is_one_whatever_leaves_it() -> None:
    for seed in range(30):
        random = Random(seed)
        runs, plain = RunList(), list[Run]()
        start = 0
        for _ in range(1500):
            match random.randrange(8):
                case 0 | 1 | 2 | 3:
                    run = Run(range(start, start + random.randint(1, 4)), None, b"", size=0)
                    start = run.seqs.stop + random.randint(0, 2)
                    runs.append(run)
                    plain.append(run)
                case 4 if plain:
                    assert runs.popleft() is plain.pop(0)
                case 5 | 6 if plain:
                    position = random.randint(0, start)
                    spot = runs.find(position)
                    found = next((each for each in plain if each.seqs[-1] >= position), None)
                    assert runs.at(spot) is found
                    place = len(plain) if found is None else plain.index(found)
                    assert runs.before(spot) is (plain[place - 1] if place else None)
                    assert list(runs.behind(position - 1)) == plain[place:]
                    high = position + random.randint(0, 900)
                    between = [
                        each for each in plain if position <= each.seqs[-1] and each.seqs.start <= high
                    ]
                    assert runs.between(position, high) == between
                    if found is None:
                        continue
                    pieces = [
                        found,
                        *(Run(found.seqs, None, b"", size=0) for _ in range(random.choice([0, 0, 1, 40]))),
                    ]
                    pieces = random.choice([[], pieces])
                    runs.replace(spot, pieces)
                    plain[place : place + 1] = pieces
                    assert list(runs) == plain
                case 7 if plain:
                    assert [runs.at(spot) for spot, _ in runs.spots()] == plain
            assert (len(runs), bool(runs)) == (len(plain), bool(plain))
            if plain:
                assert runs.first is plain[0] and runs.last is plain[-1]
        assert list(runs) == plain and list(reversed(runs)) == plain[::-1]
        assert max(map(len, runs.chunks), default=0) <= 2 * CHUNK


def test_what_never_expires_is_in_no_index() -> None:
    """The others of its run have left. What all idle queues share must stay empty."""
    machine = Machine(Settings())
    publish(machine, 10, None, None)
    apply(machine, ("attach", Consumer("c", prefetch=3)))
    apply(machine, ("settle", "c", 0, 0), ("detach", "c", True))
    assert positions(machine) == [2, 3]
    restored = snapshot.decode(snapshot.encode(machine))
    for each in (machine, restored):
        assert apply(each, now_ms=10).wake_at is None and each.due_ms is None
    assert not NO_DEADLINES._due and not NO_DEADLINES._heap
