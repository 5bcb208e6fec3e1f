"""How entries get to the followers."""

from __future__ import annotations

import pytest

from quorum_queue.raft.messages import APPEND, Message
from quorum_queue.raft.options import Options
from quorum_queue.raft.progress import PROBE, REPLICATE
from quorum_queue.raft.roles import FOLLOWER, LEADER
from tests.quorum_queue.raft.group import Group


def test_appends_are_bounded_in_bytes_and_number() -> None:
    options = Options(append_bytes_max=100, inflight_appends_max=3, inflight_bytes_max=250)
    group = Group(options=options)
    group.elect("a")
    group.sent.clear()
    for _ in range(20):
        group["a"].propose(bytes(40))
    group.pump()
    sizes = [[len(entry.data) for entry in message.entries] for message in group.sent if message.to == "b"]
    assert sizes == [[40, 40]] * 3
    for _ in range(100):
        group.pump()
        for name in "abc":
            group.nodes[name].sync_all()
        for peer in group["a"].leadership.peers.values():  # type: ignore[union-attr]
            assert len(peer.inflight) <= 3
            assert peer.inflight_bytes <= 250 + 80
        if not group.deliver():
            break
    assert [len(group.applied(name)) for name in "abc"] == [20] * 3


def test_a_turn_of_proposals_is_one_append() -> None:
    group = Group()
    group.elect("a")
    group.sent.clear()
    for _ in range(50):
        group["a"].propose(bytes(10))
    group.pump()
    assert [len(message.entries) for message in group.sent if message.to == "b"] == [50]


def test_appends_go_ahead_of_the_answers() -> None:
    group = Group()
    group.elect("a")
    group.sent.clear()
    for number in range(3):
        group["a"].propose(b"%d" % number)
        group.pump()
    assert [message.index for message in group.sent if message.to == "c"] == [1, 2, 3]


def test_a_follower_far_behind_in_terms_is_found_in_few_steps() -> None:
    """b has a hundred entries of a term that no other member has."""
    group = Group()
    group.elect("b")
    group.isolate("b")
    for _ in range(100):
        group["b"].propose(b"lost")
    group.nodes["b"].pump()
    group.nodes["b"].sync_all()
    group.tick_all(30)
    (leader,) = [name for name in group.leaders() if name != "b"]
    for _ in range(100):
        group.propose(leader, b"kept")
    group.sent.clear()
    group.heal()
    group.settle()
    assert group.applied("b") == [b"kept"] * 100
    assert sum(message.reject and message.sender == "b" for message in group.sent) <= 3


def test_an_append_that_was_lost_is_sent_again() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.pump()
    group.lose(lambda message: message.to == "b")
    group.settle()
    assert group.applied("b") == []
    assert not group["a"].quiet
    group.tick_all(12)
    assert group.applied("b") == [b"x"]
    assert group["a"].quiet


def test_a_gap_in_the_stream_is_noticed() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.pump()
    group.lose(lambda message: message.to == "b")
    group["a"].propose(b"y")
    group.settle()
    assert group.applied("b") == [b"x", b"y"]


def test_doubled_and_late_answers_change_nothing() -> None:
    group = Group()
    group.elect("a")
    for number in range(3):
        group.propose("a", b"%d" % number)
    old = [message for message in group.sent if message.to == "a"]
    before = {name: (peer.match, peer.next, peer.state) for name, peer in group["a"].leadership.peers.items()}  # type: ignore[union-attr]
    for message in old:
        group["a"].step(message)
        group["a"].step(Message(**message.fields() | {"reject": True, "hint": 0}))
    group.settle()
    after = {name: (peer.match, peer.next, peer.state) for name, peer in group["a"].leadership.peers.items()}  # type: ignore[union-attr]
    assert after == before


def test_old_appends_take_nothing_back() -> None:
    group = Group()
    group.elect("a")
    for number in range(5):
        group.propose("a", b"%d" % number)
    for message in [message for message in group.sent if message.to == "b" and message.kind == APPEND]:
        group["b"].step(message)
    group.settle()
    assert group["b"].last_index == group["a"].last_index
    assert group["b"].commit == 6


def test_a_dead_follower_costs_a_quiet_leader_nothing() -> None:
    group = Group()
    group.elect("a")
    group.crash("c")
    group.propose("a", b"x")
    assert group["a"].quiet
    assert group["b"].quiet
    group.restart("c")
    group.settle()
    assert group.applied("c") == [b"x"]


def test_a_restarted_follower_gets_back_the_tail_it_lost() -> None:
    group = Group()
    group.elect("a")
    group["a"].propose(b"x")
    group.settle(synced="ac")
    group.crash("b")
    group.restart("b")
    group.settle()
    assert group.applied("b") == [b"x"]


def test_a_follower_that_lost_durable_entries_gets_them_again() -> None:
    """That must not happen, and nothing is promised if it does; but the group must not hang."""
    group = Group()
    group.elect("a")
    for number in range(4):
        group.propose("a", b"%d" % number)
    group.crash("b")
    del group.nodes["b"].disk.log[5], group.nodes["b"].disk.log[4]
    group.restart("b")
    group.settle()
    assert group["a"].leadership.peers["b"].state == REPLICATE  # type: ignore[union-attr]
    assert group.applied("b") == [b"0", b"1", b"2", b"3"]


def test_an_entry_that_cannot_be_read_is_reported_and_the_rest_goes_on() -> None:
    group = Group()
    group.elect("a")
    group.crash("c")
    for number in range(5):
        group.propose("a", b"%d" % number)
    node = group.nodes["a"]
    node.disk.broken = [4]
    group.restart("c")
    group.settle()
    assert node.lost == [4]
    assert group.applied("c") == [b"0", b"1"]
    group.propose("a", b"5")
    assert group.applied("b")[-1] == b"5"
    node.disk.broken = []
    group["a"].found(node.disk.entries(4, 4, 1)[0])
    group.settle()
    assert group.applied("c") == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_an_entry_that_cannot_be_applied_is_waited_for() -> None:
    group = Group("a")
    group.elect("a")
    for number in range(3):
        group.propose("a", b"%d" % number)
    group.crash("a")
    group.nodes["a"].disk.broken = [3]
    group.restart("a")
    group["a"].campaign()
    group.settle()
    node = group.nodes["a"]
    assert node.lost == [3]
    assert group.applied("a") == [b"0"]
    node.disk.broken = []
    group["a"].found(node.disk.entries(3, 3, 1)[0])
    group.settle()
    assert group.applied("a") == [b"0", b"1", b"2"]


def test_a_restart_applies_again_what_is_not_in_the_snapshot_in_bounded_steps() -> None:
    group = Group("a", options=Options(apply_bytes_max=100))
    group.elect("a")
    for _ in range(20):
        group.propose("a", bytes(40))
    group.crash("a")
    group.restart("a")
    group["a"].campaign()
    node = group.nodes["a"]
    sizes: list[int] = []
    for _ in range(5):
        while group["a"].has_ready:
            ready = group["a"].ready()
            sizes.append(sum(len(entry.data) for entry in ready.committed))
            node.handle(ready)
        node.sync_all()
    assert max(sizes) <= 100
    assert group.applied("a") == [bytes(40)] * 20


def test_an_idle_group_keeps_no_entries_in_memory() -> None:
    group = Group()
    group.elect("a")
    for _ in range(50):
        group.propose("a", bytes(1000))
    assert [len(group[name].log._cache) for name in "abc"] == [0, 0, 0]


@pytest.mark.pure
def test_an_idle_group_keeps_no_empty_containers() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", bytes(1000))
    group.tick_all(2)
    for name in "abc":
        core = group[name]
        held = [getattr(core, field) for field in core.__slots__]
        held += [getattr(core.log, field) for field in core.log.__slots__]
        assert [value for value in held if isinstance(value, list | dict | set) and not value] == []
        assert core.hard is core.durable_hard


def test_a_cache_for_one_who_is_behind_is_bounded() -> None:
    group = Group(options=Options(cache_bytes_max=5000, inflight_appends_max=1))
    group.elect("a")
    for _ in range(50):
        group["a"].propose(bytes(1000))
        group.settle(synced="ab")
    assert group["a"].log._cache_bytes <= 5000
    group.settle()
    assert group.applied("c") == [bytes(1000)] * 50


def test_a_new_leader_probes_first() -> None:
    group = Group()
    group["a"].campaign()
    for _ in range(10):
        group.pump()
        for name in "abc":
            group.nodes[name].sync_all()
        if group["a"].role == LEADER:
            break
        group.deliver()
    assert [peer.state for peer in group["a"].leadership.peers.values()] == [PROBE, PROBE]  # type: ignore[union-attr]
    group.settle()
    assert [peer.state for peer in group["a"].leadership.peers.values()] == [REPLICATE] * 2  # type: ignore[union-attr]
    assert group["b"].role == FOLLOWER
