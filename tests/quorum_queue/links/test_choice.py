"""Which connection becomes the session, and what counts as silence."""

from __future__ import annotations

from dataclasses import replace

from quorum_queue.links.handshake import Hello, Standing
from quorum_queue.links.session_choice import decides, follows, takes
from quorum_queue.links.steady_clock import SteadyClock

OLD = Hello("n2", 5, "disk")


def test_one_of_two_decides() -> None:
    assert decides("n1", "n2")
    assert not decides("n2", "n1")


def test_of_two_sessions_of_one_start_the_one_that_both_know_stays() -> None:
    # The peer said this before it adopted its present session: both had dialled.
    assert not takes(OLD, Standing(2, False), OLD, 3)
    # The peer had adopted that session, and lost it.
    assert takes(OLD, Standing(3, False), OLD, 3)
    # The peer has adopted others since.
    assert takes(OLD, Standing(9, False), OLD, 3)
    # The peer still holds the session.
    assert not takes(OLD, Standing(3, True), OLD, 3)
    # The peer has not said yet that it adopted the session.
    assert not takes(OLD, Standing(3, False), OLD, None)


def test_other_incarnations_and_identities() -> None:
    assert takes(replace(OLD, incarnation=6), Standing(0, False), OLD, 3)
    assert takes(replace(OLD, incarnation=6), Standing(0, False), OLD, None)
    assert not takes(replace(OLD, incarnation=4), Standing(9, False), OLD, 3)
    assert not takes(replace(OLD, incarnation=6, identity="another disk"), Standing(0, False), OLD, 3)
    assert follows(OLD, OLD)
    assert not follows(replace(OLD, incarnation=4), OLD)


def test_time_stands_still_while_the_loop_does() -> None:
    clock = SteadyClock(100.0, 0.2)
    assert clock.at(100.1) - clock.at(100.0) == 0.1 or abs(clock.at(100.1) - 0.1) < 1e-9
    clock.tick(100.1)
    before = clock.at(100.1)
    assert abs(clock.at(100.15) - before - 0.05) < 1e-9
    # The process was stopped for an hour.
    assert abs(clock.at(3700.0) - before - 0.2) < 1e-9
    clock.tick(3700.0)
    assert abs(clock.at(3700.1) - before - 0.3) < 1e-9
