"""Logs with holes: entries that one disk, or all of them, have lost."""

from __future__ import annotations

import logging
from itertools import permutations
from typing import Any

import pytest

from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.snapshots import compaction
from tests.quorum_queue.cluster.clients import Publisher
from tests.quorum_queue.cluster.node import TICK_MS
from tests.quorum_queue.cluster.scene import Scene

pytestmark = pytest.mark.usefixtures("quiet")

OPTIONS = ReplicationOptions()
ROUND_TICKS = OPTIONS.lost_entry_retry_ms // TICK_MS + 1


def begin(messages: int = 3, *, elections: int = 1) -> tuple[Scene, Publisher]:
    """Return a queue with messages of each of some terms, all in the log."""
    scene = Scene()
    for node in scene.nodes.values():
        node.maintenance._cut_logs = lambda: iter(())  # type: ignore[method-assign]
    scene.raise_version()
    publisher = scene.publisher("a")
    for at in range(elections):
        if at:
            scene.elect("b")
            scene.elect("a")
        for _ in range(messages):
            scene.publish("a", publisher)
            scene.work()
    scene.work(1)
    return scene, publisher


def restart(scene: Scene, damaged: dict[str, list[int]], names: str = "abc") -> None:
    """Stop all nodes, damage entries on their disks, and start some nodes again."""
    for name in scene.names:
        scene.crash(scene.nodes[name])
    flip(scene, damaged)
    for name in names:
        scene.start(scene.nodes[name])


def flip(scene: Scene, damaged: dict[str, list[int]]) -> None:
    for name, indexes in damaged.items():
        for index in indexes:
            scene.nodes[name].environment.groups.flip(scene.group_id, index)


def log_of(scene: Scene) -> range:
    """Return the entries that the logs of all nodes have."""
    cores = [scene.host(name).group.core for name in "abc"]
    return range(
        1 + max(core.log.snapshot_index for core in cores), 1 + min(core.last_index for core in cores)
    )


def bodies(scene: Scene, node: str = "a") -> list[bytes]:
    """Return the bodies that a consumer gets."""
    holder = scene.consume(node)
    scene.work(2)
    found = [body.split(b".")[1] for body in holder.unacked.values()]
    scene.settle_all(holder)
    scene.work(2)
    return found


def test_what_different_disks_have_lost_is_whole_again() -> None:
    """Any two entries on two nodes, including those at the ends of the log and of terms."""
    pairs = list(permutations(range(len(log_of(begin(2, elections=2)[0]))), 2))
    for one, two in pairs:
        scene, _ = begin(2, elections=2)
        log = log_of(scene)
        last = scene.host("a").group.core.last_index
        restart(scene, {"a": [log[one]], "b": [log[two]]})
        for name in "abc":
            assert scene.host(name).group.core.last_index == last
            assert not scene.host(name).group.core.amnesiac
        scene.heal()
        scene.settle()
        for name in "abc":
            assert not scene.host(name).group.core.amnesiac
            assert not scene.nodes[name].environment.groups.groups[scene.group_id].damaged
        assert bodies(scene) == [b"1", b"2", b"3", b"4"]
        scene.finish()


def test_two_disks_may_have_lost_the_same_entry() -> None:
    for at in range(len(log_of(begin(2, elections=2)[0]))):
        scene, _ = begin(2, elections=2)
        index = log_of(scene)[at]
        restart(scene, {"a": [index], "b": [index]})
        scene.heal()
        scene.settle()
        assert bodies(scene) == [b"1", b"2", b"3", b"4"]
        scene.finish()


def test_two_members_heal_each_other_while_the_third_is_away() -> None:
    scene, _ = begin(3, elections=2)
    log = log_of(scene)
    restart(scene, {"a": [log[2], log[4]], "b": [log[3], log[5]]}, names="ab")
    scene.heal()
    scene.work(4 * ROUND_TICKS)
    assert scene.leaders()
    assert bodies(scene) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    scene.finish()


def test_a_hole_outlasts_restarts_and_heals_when_the_entry_is_reached() -> None:
    """Only a node that is away has the entry."""
    scene, _ = begin()
    index = log_of(scene)[-2]
    restart(scene, {"a": [index], "b": [index]}, names="ab")
    scene.heal()
    scene.work(4 * ROUND_TICKS)
    assert not scene.leaders()
    assert not scene.nodes["a"].replicas.lost_entries.lost_on_all(scene.group_id)
    for name in "ab":
        scene.crash(scene.nodes[name])
        scene.start(scene.nodes[name])
    scene.heal()
    scene.work(4 * ROUND_TICKS)
    assert not scene.leaders()
    scene.start(scene.nodes["c"])
    scene.heal()
    scene.settle()
    assert bodies(scene) == [b"1", b"2", b"3"]
    scene.finish()


def test_damage_in_many_places_heals() -> None:
    scene, _ = begin(6, elections=2)
    log = list(log_of(scene))
    restart(scene, {"a": log[0::3], "b": log[1::3], "c": log[2::3]})
    scene.heal()
    scene.settle()
    assert bodies(scene) == [b"%d" % number for number in range(1, 11)]
    scene.finish()


def test_damage_while_a_node_is_away_and_the_others_go_on() -> None:
    scene, publisher = begin()
    scene.crash(scene.nodes["c"])
    for _ in range(3):
        scene.publish("a", publisher)
        scene.work()
    log = log_of(scene)
    for name in "ab":
        scene.crash(scene.nodes[name])
    flip(scene, {"a": [log[1], log[-1]], "b": [log[-2]], "c": [log[2]]})
    for name in "abc":
        scene.start(scene.nodes[name])
    scene.heal()
    scene.settle()
    assert bodies(scene) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    scene.finish()


def test_an_end_of_a_log_that_the_leader_never_had_is_cut_off() -> None:
    scene, _ = begin()
    scene.isolate("b")
    scene.isolate("c")
    publisher = scene.publisher("a")
    for _ in range(2):
        scene.publish("a", publisher)
        while scene.nodes["a"].disk.running or scene.nodes["a"].disk.waits():
            scene.nodes["a"].step_disk()
    last = scene.host("a").group.core.last_index
    for which in ([last], [last - 1], [last - 1, last]):
        scene.doubt_all()
        restart(scene, {"a": which})
        assert scene.host("a").group.core.last_index == last
    scene.heal()
    scene.network.blocked.clear()
    scene.settle()
    assert not scene.host("a").group.core.amnesiac
    scene.finish()


def close_books(scene: Scene) -> None:
    """From now on the ledger knows messages that no node knows any more."""
    scene.ledger.closed = True
    nothing: Any = lambda *arguments: None  # noqa: E731
    for name in ("applied", "same", "received", "confirmed"):
        setattr(scene.ledger, name, nothing)


def is_said(scene: Scene, names: str = "abc") -> list[int]:
    """Return the entries that all these nodes report as lost everywhere."""
    (lost,) = {tuple(scene.nodes[name].replicas.lost_entries.lost_on_all(scene.group_id)) for name in names}
    return list(lost)


def accept(scene: Scene, node: str) -> int:
    given_up = scene.nodes[node].replicas.lost_entries.accept(scene.group_id)
    scene.nodes[node].end_turn()
    return given_up.entries


def check_alike(scene: Scene) -> None:
    assert len({scene.host(name).replica.digest() for name in "abc"}) == 1


@pytest.mark.parametrize("at", range(-6, 0))
def test_an_entry_that_all_have_lost_is_passed_over_when_an_operator_says_so(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    logging.disable(logging.NOTSET)
    scene, _ = begin(5)
    index = log_of(scene)[at]
    restart(scene, dict.fromkeys("abc", [index]))
    close_books(scene)
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert not scene.leaders()
    assert is_said(scene) == [index]
    # Neither time nor a restart repairs that.
    scene.crash(scene.nodes["b"])
    scene.work(ROUND_TICKS)
    assert not scene.nodes["a"].replicas.lost_entries.lost_on_all(scene.group_id)
    assert accept(scene, "a") == 0
    scene.start(scene.nodes["b"])
    scene.heal()
    scene.work(2 * OPTIONS.lost_entry_report_ms // TICK_MS)
    assert not scene.leaders()
    said = [record for record in caplog.records if "by none of its members" in record.getMessage()]
    assert 6 <= len(said) <= 12
    assert "queue 'plain' in vhost '/'" in said[0].getMessage()
    assert accept(scene, "b") == 1
    scene.settle()
    check_alike(scene)
    publisher = scene.publisher("c")
    scene.publish("c", publisher)
    scene.work(2)
    assert not publisher.waiting
    left = [number for number in range(1, 6) if number != 6 + at] + [1]
    assert bodies(scene, "c") == [b"%d" % number for number in left]
    restart(scene, {})
    scene.heal()
    scene.settle()
    check_alike(scene)
    for name in "abc":
        assert not scene.host(name).replica.machine.ready.count


def test_a_publisher_whose_messages_are_lost_is_told_so() -> None:
    """Its node lives, and had sent more batches before the entry was lost everywhere."""
    scene, publisher = begin(2)
    # The entry is on all disks, and no node has applied it.
    scene.publish("b", scene.publisher("b"))
    scene.work()
    index = log_of(scene)[-1]
    restart(scene, dict.fromkeys("abc", [index]))
    close_books(scene)
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    again = scene.publisher("b")
    scene.publish("b", again, 2)
    scene.work(ROUND_TICKS)
    assert again.waiting
    assert accept(scene, "c") == 1
    scene.settle()
    assert not again.waiting
    check_alike(scene)
    assert len(bodies(scene)) == 4


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_body_that_all_have_lost_leaves_the_queue_when_an_operator_says_so(snapshot: bool) -> None:
    scene, _ = begin(4)
    index = log_of(scene)[-3]
    if snapshot:
        for name in "abc":
            compaction.take_snapshot(scene.host(name).group)
            scene.nodes[name].end_turn()
        scene.work(1)
        restart(scene, dict.fromkeys("abc", [index]))
    else:
        flip(scene, dict.fromkeys("abc", [index]))
        for name in "abc":
            scene.nodes[name].replicas.bodies.drop_group(scene.group_id)
    close_books(scene)
    scene.heal()
    holder = scene.consume("b")
    scene.work(6 * ROUND_TICKS)
    assert is_said(scene) == [index]
    # The messages were handed out together.
    assert not holder.unacked
    assert accept(scene, "c") == 1
    scene.work(6 * ROUND_TICKS)
    assert [body.split(b".")[1] for body in holder.unacked.values()] == [b"1", b"3", b"4"]
    check_alike(scene)
    for name in "abc":
        assert not scene.nodes[name].replicas.lost_entries.entries()
        assert scene.host(name).replica.machine.unacked_count == 3


def test_what_another_member_can_read_is_not_lost_though_it_cannot_say_that_it_is_the_same() -> None:
    """The last entry of two logs is damaged; the third member does not lead, and can't become leader."""
    scene, _ = begin()
    index = log_of(scene)[-1]
    restart(scene, {"a": [index], "b": [index]})
    # As if elections had failed earlier: these logs may end with a later term.
    for name in "ab":
        scene.host(name).group.core.log.term_bound += 10
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert not scene.leaders()
    for name in "abc":
        assert not scene.nodes[name].replicas.lost_entries.lost_on_all(scene.group_id)


def test_a_passed_over_entry_takes_no_other_with_it() -> None:
    """The batches after the hole come from a node that has started again since: nobody sends those again."""
    scene, _ = begin(5)
    restart(scene, dict.fromkeys("abc", [log_of(scene)[-4]]))
    close_books(scene)
    scene.heal()
    scene.work(5 * ROUND_TICKS)
    assert accept(scene, "a") == 1
    scene.settle()
    assert bodies(scene) == [b"1", b"3", b"4", b"5"]
    check_alike(scene)
