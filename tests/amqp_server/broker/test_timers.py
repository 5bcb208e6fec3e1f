"""Wake-up calls: each host has one, and the heap does not grow with their number."""

from __future__ import annotations

import weakref
from random import Random

import pytest

from amqp_server.broker.timers import SPARE_MAX, Timers
from quorum_queue.boundary import DISK_ERRORS, Fatal
from tests.turns import Planted


class Host:
    def __init__(self) -> None:
        self.woken = 0
        self.failures: list[Exception] = []

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def wake(self) -> None:
        self.woken += 1


def test_the_earliest_call_counts() -> None:
    changes: list[int | None] = []
    timers = Timers(changed=lambda: changes.append(timers.next_ms))
    host, other = Host(), Host()
    timers.wake(host, 50)
    timers.wake(other, 40)
    timers.wake(host, 60)
    timers.wake(host, 30)
    assert changes == [50, 40, 30]
    timers.run(29)
    assert (host.woken, other.woken) == (0, 0)
    timers.run(35)
    assert (host.woken, other.woken) == (1, 0)
    timers.run(100)
    assert (host.woken, other.woken) == (1, 1)
    assert timers.next_ms is None


def test_a_host_may_ask_again_while_it_is_woken() -> None:
    timers = Timers(changed=lambda: None)

    class Again(Host):
        def wake(self) -> None:
            super().wake()
            if self.woken < 3:
                timers.wake(self, 10 * self.woken)

    host = Again()
    timers.wake(host, 0)
    timers.run(100)
    assert host.woken == 3
    assert not len(timers)


class Broken(Host):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def wake(self) -> None:
        raise self.error


def test_one_that_raises_has_failed_and_the_others_are_woken() -> None:
    timers = Timers(changed=lambda: None)
    before, broken, after = Host(), Broken(Planted()), Host()
    for at, host in enumerate((before, broken, after)):
        timers.wake(host, at)
    timers.run(10)
    assert (before.woken, after.woken) == (1, 1)
    assert broken.failures == [broken.error]


def test_a_failing_disk_is_everybodys() -> None:
    timers = Timers(changed=lambda: None)
    timers.wake(Broken(DISK_ERRORS[0]("full")), 0)
    with pytest.raises(Fatal):
        timers.run(10)


def test_the_heap_is_as_long_as_there_are_hosts() -> None:
    random = Random(1)
    timers = Timers(changed=lambda: None)
    hosts = [Host() for _ in range(10)]
    for number in range(100_000):
        timers.wake(random.choice(hosts), 1_000_000 - number // 2)
    assert len(timers) <= 2 * len(hosts) + SPARE_MAX
    # Many hosts come and go.
    for _ in range(100_000):
        host = Host()
        timers.wake(host, 10**12)
        timers.forget(host)
    assert len(timers) <= 2 * len(hosts) + SPARE_MAX
    timers.run(2_000_000)
    assert [host.woken for host in hosts] == [1] * len(hosts)
    assert timers.next_ms is None


def test_a_forgotten_host_is_not_kept() -> None:
    timers = Timers(changed=lambda: None)
    kept, gone = Host(), Host()
    timers.wake(kept, 10)
    timers.wake(gone, 10**12)
    known = weakref.ref(gone)
    timers.forget(gone)
    del gone
    assert known() is None
    timers.run(20)
    assert kept.woken == 1


def test_timers_that_are_due_at_once_wait_for_the_next_turn() -> None:
    woken: list[int] = []

    class Host:
        def __init__(self, number: int) -> None:
            self.number = number

        def wake(self) -> None:
            woken.append(self.number)

        def failed(self, error: Exception) -> None:
            raise error

    own = Timers(changed=lambda: None)
    hosts = [Host(number) for number in range(10)]
    for host in hosts:
        own.wake(host, 5)
    looks = iter([False, False, True, True])
    own.run(5, lambda: next(looks))
    assert woken == [0, 1, 2] and own.next_ms == 5
    # At least one, in a turn that is overdue already.
    own.run(5, lambda: next(looks))
    assert woken == [0, 1, 2, 3]
    own.run(5)
    assert woken == list(range(10)) and own.next_ms is None
