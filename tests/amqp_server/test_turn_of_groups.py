"""A turn with more Raft groups than it has time for: the next turns serve the remaining groups, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from amqp_server.turn import Turn
from quorum_queue.boundary import Unit


class Group:
    def failed(self, error: Exception) -> None:
        raise error


class Groups:
    """See amqp_server.turn.Peers. Each group takes a second."""

    def __init__(self, count: int) -> None:
        self.groups: list[Unit] = [Group() for _ in range(count)]
        self.dirty: dict[Unit, None] = dict.fromkeys(self.groups)
        self.carried: list[Unit] = []
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    def turn_begins(self) -> None: ...

    def take_dirty(self) -> list[Unit]:
        found = list(self.dirty)
        self.dirty.clear()
        return found

    def carry_out(self, group: Unit, turn: Turn) -> None:
        self.time_s += 1
        self.carried.append(group)

    def touch_again(self, groups: Iterable[Unit]) -> None:
        self.dirty.update(dict.fromkeys(groups))

    def write(self) -> None: ...

    def flush(self) -> None: ...


class NoCommits:
    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None: ...


def made(groups: Groups, wake: Callable[[], None] = lambda: None) -> Turn:
    return Turn(NoCommits(), groups, wake, now=groups.now, lasts_s=3.0)


def test_groups_without_end_are_shared_among_turns() -> None:
    groups = Groups(10)
    woken: list[bool] = []
    turn = made(groups, lambda: woken.append(True))
    turn.end()
    counts = [len(groups.carried)]
    assert turn.behind and woken
    # Meanwhile one of the remaining groups, and another one, get more work.
    groups.touch_again([groups.groups[-1]])
    turn.end()
    assert groups.carried[-1] is groups.groups[-1]
    while turn.behind:
        before = len(groups.carried)
        turn.run(turn.catch_up)
        counts.append(len(groups.carried) - before)
    assert max(counts) <= 4
    assert groups.carried[:4] + groups.carried[5:] == groups.groups


def test_what_comes_before_in_a_turn_takes_no_time_from_the_groups() -> None:
    groups = Groups(3)
    turn = made(groups)

    def long() -> None:
        groups.time_s += 100

    turn.run(long)
    assert groups.carried == groups.groups and not turn.behind
