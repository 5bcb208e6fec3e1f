"""An entry that takes long to send and to write is not sent again meanwhile."""

from __future__ import annotations

from quorum_queue.raft.messages import APPEND
from quorum_queue.raft.options import Options
from quorum_queue.raft.progress import PROBE
from tests.quorum_queue.raft.group import Group

OPTIONS = Options(election_ticks=4, unanswered_bytes=100)


def led_by_a() -> Group:
    group = Group(options=OPTIONS)
    group.elect("a")
    group.tick_all(2)
    group.sent.clear()
    return group


def appends(group: Group) -> int:
    """Return how many appends went to b, with entries or to find out what it has."""
    return sum(message.kind == APPEND and message.to == "b" for message in group.sent)


def wait(group: Group, ticks: int) -> None:
    """b hears the leader, but nothing arrives."""
    for _ in range(ticks):
        group.tick("a")
        group.pump()
        group.deliver(lambda message: message.to != "b")
        group.nodes["a"].sync_all()


def test_the_time_for_an_answer_grows_with_the_entry() -> None:
    group = led_by_a()
    group["a"].propose(bytes(1000))
    wait(group, 11 * OPTIONS.election_ticks - 1)
    assert appends(group) == 1
    wait(group, 2)
    assert appends(group) == 2
    group.settle()
    assert group["b"].commit == group["a"].commit == group["a"].last_index


def test_the_time_for_an_answer_to_a_probe_grows_with_its_entry() -> None:
    group = led_by_a()
    group["a"].propose(bytes(1000))
    leadership = group["a"].leadership
    assert leadership is not None
    leadership.peers["b"].unsent()
    wait(group, OPTIONS.election_ticks + 1)
    assert leadership.peers["b"].state == PROBE
    probes = appends(group)
    wait(group, 11 * OPTIONS.election_ticks - 2)
    assert appends(group) == probes
    wait(group, 2)
    assert appends(group) == probes + 1
    group.settle()
    assert group["b"].commit == group["a"].last_index


def test_a_small_entry_is_sent_again_as_soon_as_before() -> None:
    group = led_by_a()
    group["a"].propose(b"small")
    wait(group, OPTIONS.election_ticks + 1)
    assert appends(group) == 2
    group.settle()
    assert group["b"].commit == group["a"].last_index


def test_an_append_that_did_not_leave_is_sent_later() -> None:
    group = led_by_a()
    group["a"].propose(b"first")
    group.pump()
    group.lose(lambda message: message.to == "b")
    group["a"].unsent("b")
    before = appends(group)
    wait(group, OPTIONS.election_ticks - 1)
    assert appends(group) == before, "not at once: the link has no room yet"
    group.tick_all(1)
    assert appends(group) > before
    assert group["b"].last_index == group["a"].last_index
