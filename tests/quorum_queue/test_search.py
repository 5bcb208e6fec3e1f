"""A search passes messages over without copies, and misses none, wherever their bodies are."""

from __future__ import annotations

from random import Random

import pytest

from amqp_server.wire import content
from amqp_server.wire.frames import short_string
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.peeking import Look, Search, Seen, peek
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings

WAITING = Place(-1, 0)


def framed(message_id: bytes, body: bytes) -> bytes:
    properties = content.Properties({"message_id": short_string(message_id.decode())})
    return content.build(properties.encode(len(body)), body, 1, 4096)


def filled(random: Random, *, strict: bool) -> tuple[Machine, dict[int, tuple[bytes, bytes]]]:
    """Return a queue in which some messages wait, and the ids and bodies of all by their positions."""
    machine = Machine(Settings(strict=strict))
    told: dict[int, tuple[bytes, bytes]] = {}
    while len(told) < 200:
        count = random.choice((1, 1, 5, 40))
        # The bodies have other ids.
        messages = [(b"id-%d" % random.randrange(30), b"id-%d" % random.randrange(30)) for _ in range(count)]
        run = Run(range(count), [framed(*each) for each in messages], b"q", Attributes(persistent=True))
        run.waits_until = random.choice((0, 50, 50, random.randrange(100, 200)))
        told.update(zip(range(machine.next_seq, machine.next_seq + count), messages, strict=True))
        machine.apply(Meta(0), [("enqueue", run, None, 1)], Effects())
    for run in [*machine.ready.runs(), *machine.delayed.runs()]:
        if random.random() < 0.3:
            run.page_out()
        elif random.random() < 0.3:
            run.pack()
    return machine, told


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_missed(seed: int, strict: bool) -> None:
    random = Random(seed)
    machine, told = filled(random, strict=strict)
    sought = {b"id-3", b"id-17"}
    search, shown, looked_at, steps = Search(sorted(sought)), list[int](), 0, 0
    place, size = random.choice((HEAD, WAITING)), random.choice((300, 1 << 20))
    begun = place
    while True:
        found = peek(machine, Look(place, 7, size, waiting=True, search=search))
        shown += [seq for each in found for seq in each.run.seqs]
        if search.last is None:
            assert not found and not search.looked_at
            break
        assert 1 <= search.looked_at <= 7
        place, looked_at, steps = search.last, looked_at + search.looked_at, steps + 1
    lying = [run for _, run in machine.delayed.items()]
    if begun == HEAD:
        lying += machine.ready.runs()
    there = [seq for run in lying for seq in run.seqs]
    assert looked_at == len(there) and steps > 5
    # Bodies on the disk, and packed ones, are looked at by the asker.
    in_memory = {seq for run in lying if run.contents is not None for seq in run.seqs}
    assert [
        seq for seq in shown if seq in in_memory and told[seq][0] not in sought and not _longer(told[seq][0])
    ] == []
    assert {seq for seq in there if told[seq][0] in sought} <= set(shown)
    assert len(shown) == len(set(shown))


def _longer(message_id: bytes) -> bool:
    """Return whether one of the sought ids is a part of this one."""
    return message_id.startswith(b"id-3")


def test_bodies_do_not_count() -> None:
    """An id in a body is none, and costs nobody a copy."""
    machine = Machine(Settings())
    run = Run(range(2), [framed(b"a", b"sought"), framed(b"sought", b"b")], b"q", Attributes())
    machine.apply(Meta(0), [("enqueue", run, None, 1)], Effects())
    search = Search([b"sought"])
    found = peek(machine, Look(HEAD, 10, 1 << 20, search=search))
    assert [type(each) for each in found] == [Seen] and list(found[0].run.seqs) == [2]
    assert (search.looked_at, search.last) == (2, Place(0, 2))
