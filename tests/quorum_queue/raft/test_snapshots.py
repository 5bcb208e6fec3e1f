"""Followers whose next entry is gone from the log; snapshots."""

from __future__ import annotations

import pytest

from quorum_queue.raft.messages import (
    APPEND,
    Message,
)
from quorum_queue.raft.progress import PROBE, REPLICATE, SNAPSHOT
from tests.quorum_queue.raft.group import OPTIONS, Group, leading, members


def lagging() -> Group:
    """c has missed entries that are gone from the log of a."""
    group = Group()
    group.elect("a")
    group.crash("c")
    for number in range(5):
        group.propose("a", b"%d" % number)
    group.nodes["a"].compact()
    group.settle()
    assert group["a"].log.snapshot_index == 6
    group.propose("a", b"after")
    return group


def test_a_follower_behind_the_log_gets_a_snapshot() -> None:
    group = lagging()
    group.restart("c")
    group.settle()
    assert group.nodes["c"].digest == group.nodes["a"].digest
    assert (group["c"].log.snapshot_index, group["c"].commit) == (6, 7)
    assert group.applied("c") == [b"after"]
    assert leading(group, "a").peers["c"].state == REPLICATE
    assert all(group[name].quiet for name in "abc")


def test_a_snapshot_is_answered_only_when_it_is_durable() -> None:
    group = lagging()
    group.restart("c")
    group.settle(synced="ab")
    assert leading(group, "a").peers["c"].state == SNAPSHOT
    group.crash("c")
    assert group.nodes["c"].disk.snapshot.index == 0
    group.restart("c")
    group.settle()
    assert group.nodes["c"].digest == group.nodes["a"].digest


def test_a_restart_after_a_snapshot_knows_its_members() -> None:
    group = Group("abc", others="d")
    group.elect("a")
    group["a"].propose_members(members("abcd"))
    group.settle()
    group.propose("a")
    group.crash("c")
    group.propose("a")
    for name in "ab":
        group.nodes[name].compact()
    group.settle()
    group.restart("c")
    group.settle()
    for name in "abc":
        group.crash(name)
        group.restart(name)
        assert group[name].members == members("abcd")


def test_a_snapshot_that_could_not_be_sent_is_offered_again() -> None:
    group = lagging()
    group.restart("c")
    leader = group["a"]
    for _ in range(3):
        group.nodes["c"].pump()
        group.nodes["c"].sync_all()
        for message, _ in [packet for packet in group.wire if packet[0].to == "a"]:
            leader.step(message)
        group.lose()
        ready = leader.ready()
        if ready.snapshots:
            break
        for message in ready.messages:
            group.nodes["c"].receive(message, None)
    assert ready.snapshots == ("c",)
    leader.snapshot_done("c", 6, False)
    assert leading(group, "a").peers["c"].state == PROBE
    assert not leader.quiet
    group.tick_all(OPTIONS.election_ticks + 1)
    assert group.nodes["c"].digest == group.nodes["a"].digest


def test_a_log_that_no_longer_agrees_at_its_start_leads_to_a_snapshot() -> None:
    """c ends where a's log begins, but with an entry of another term."""
    group = Group()
    group.elect("c")
    group.isolate("c")
    for _ in range(5):
        group["c"].propose(b"lost")
    group.nodes["c"].pump()
    group.nodes["c"].sync_all()
    group.tick_all(30)
    (leader,) = [name for name in group.leaders() if name != "c"]
    for _ in range(3):
        group.propose(leader, b"kept")
    group.nodes[leader].compact()
    group.settle()
    assert group[leader].log.snapshot_index < 6
    group.heal()
    group.settle()
    assert group.nodes["c"].digest == group.nodes[leader].digest


def test_a_snapshot_does_not_replace_a_log_that_has_caught_up() -> None:
    group = lagging()
    group.restart("c")
    follower = group["c"]
    entries = group.nodes["b"].disk
    follower.step(
        Message(APPEND, "a", "c", 1, 1, 1, entries=tuple(entries.log[index] for index in range(2, 8)))
    )
    assert not follower.installing(6, 1)
    assert follower.last_index == 7
    with pytest.raises(ValueError, match="installed over"):
        group["a"].restore(3, 1, members("abc"))


def test_while_a_snapshot_is_written_the_log_stands_still() -> None:
    group = lagging()
    group.restart("c")
    group.settle(synced="ab")
    before = group["c"].last_index
    group["c"].step(Message(APPEND, "a", "c", 1, 0, 0, entries=()))
    group["c"].step(Message(APPEND, "a", "c", 1, before, 1, 7, (group.nodes["b"].disk.log[before + 1],)))
    assert group["c"].last_index == before
    group.settle()
    assert group.nodes["c"].digest == group.nodes["a"].digest


def test_only_what_is_applied_leaves_the_log() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    for index in (2, 9):
        with pytest.raises(ValueError, match="not applied"):
            group["a"].compact(index)
