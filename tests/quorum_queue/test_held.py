"""Messages of a transaction that is not complete: nobody gets them, and they hold up nothing else."""

from __future__ import annotations

from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.peeking import Look, peek
from quorum_queue.machine.ready import HEAD
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings


def run(count: int, priority: int) -> Run:
    attributes = Attributes(False, priority, None, 1, 4096)
    return Run(range(count), [b"x"] * count, b"head", attributes)


def handed(machine: Machine, *commands: tuple[object, ...]) -> list[int]:
    effects = Effects()
    machine.apply(Meta(0), commands, effects)
    return [seq for _, given, _ in effects.deliveries for seq in given.seqs]


def test_held_messages_of_a_higher_priority_do_not_hold_up_others() -> None:
    machine = Machine(Settings(priority_max=9))
    assert handed(machine, ("enqueue", run(3, 1), None, 0)) == []
    machine.hold()
    assert handed(machine, ("enqueue", run(2, 5), None, 0)) == []
    consumer = Consumer("c", prefetch=2)
    first = handed(machine, ("attach", consumer))
    assert len(first) == 2 and set(first) <= {1, 2, 3}
    # Who looks at messages sees none of it either.
    assert [seq for seen in peek(machine, Look(HEAD, 9, 999)) for seq in seen.run.seqs] == [3]
    # What comes meanwhile waits, too: it may not overtake the transaction.
    assert handed(machine, ("enqueue", run(1, 9), None, 0), ("settle", "c", 0, 1)) == [3]
    assert handed(machine, ("unhold",), ("settle", "c", 2, 2)) == [6, 4]
