"""The faults. Each of them heals before it returns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from tests.cluster import disks
from tests.cluster.large_faults import kill_during_large_messages, kill_during_large_transactions
from tests.cluster.links import Unsupported, deafen, isolate, mute, sever
from tests.cluster.load import BODY_BYTES
from tests.cluster.log_faults import other_logs
from tests.cluster.logs import Log, LogLoad, changed, watched
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.cluster.scene import Scene
from tests.cluster.table_faults import damage_before_deleted_keys
from tests.reliability.bodies import body

Fault = Callable[[Scene], None]

HOLD_S = 3.0
#: Longer than any broker here waits before it gives a silent node up.
ABSENT_S = 12.0
#: Much longer than nodes need to notice, and than any time-out of a change.
LINK_S = 20.0
LINK_FLAPS = 12
FLAPS = 6
STALLS = 12
#: From and to: some are around `cluster_dead_ms`, at which mqd's links end.
STALLS_S = ((0.8, 1.3), (0.8, 1.3), (0.3, 4.0))
CLOCK_S = 20.0
CLOCK_WRONG_S = 3600.0
FLAP_S = 0.6
SLOW_SYNC_MS = 400
SMALL_DISK_BYTES = 128 << 20
DELAY_MS = 40
THROTTLE_BYTES_PER_S = 200_000
MIXED_ROUNDS = 10
KILLS = 3
STEP_KILLS = 12
#: For kills at any step: the share of them that also lose a disk, and the files whose coming or going starts
#: a kill.
STEP_LOST_DISKS = 0.2
STEP_FILES = (".segment", ".index", ".new", "first", "compacted", "sealed")
#: Damage is placed far from the end, in a segment that is not written any more.
DAMAGED_MIN = 200


def kill_leader(scene: Scene) -> None:
    with scene.killed(scene.leader()):
        scene.hold(HOLD_S)


def kill_follower(scene: Scene) -> None:
    with scene.killed(scene.followers()[0]):
        scene.hold(HOLD_S)


def kill_two(scene: Scene) -> None:
    with scene.killed(scene.leader(), scene.followers()[0]):
        scene.hold(HOLD_S)


def kill_all(scene: Scene) -> None:
    with scene.killed(*scene.cluster.names):
        pass


def freeze_leader(scene: Scene) -> None:
    with scene.frozen(scene.leader()):
        scene.hold(ABSENT_S)


def freeze_follower(scene: Scene) -> None:
    with scene.frozen(scene.followers()[0]):
        scene.hold(ABSENT_S)


def partition_leader(scene: Scene) -> None:
    with scene.cut_off(scene.leader()):
        scene.hold(ABSENT_S)


def partition_follower(scene: Scene) -> None:
    with scene.cut_off(scene.followers()[0]):
        scene.hold(ABSENT_S)


def mute_leader(scene: Scene) -> None:
    """The leader hears the others, and they do not hear it."""
    with scene.cut_off(scene.leader(), mute):
        scene.hold(ABSENT_S)


def deafen_leader(scene: Scene) -> None:
    with scene.cut_off(scene.leader(), deafen):
        scene.hold(ABSENT_S)


def mute_follower(scene: Scene) -> None:
    with scene.cut_off(scene.followers()[0], mute):
        scene.hold(ABSENT_S)


def reset_leader(scene: Scene) -> None:
    """Connections are refused, so that all nodes know at once."""
    with scene.cut_off(scene.leader(), isolate, cut=True):
        scene.hold(HOLD_S)


def split_everybody(scene: Scene) -> None:
    """No two nodes see each other: no node may confirm anything."""
    with ExitStack() as split:
        for name in scene.cluster.names:
            split.enter_context(scene.cut_off(name))
        scene.hold(HOLD_S)


def flap(scene: Scene) -> None:
    leader = scene.leader()
    for _ in range(FLAPS):
        with scene.cut_off(leader):
            scene.hold(FLAP_S)
        scene.hold(FLAP_S)


def cut_link(scene: Scene) -> None:
    """Two nodes that lead do not reach each other; both reach the third node."""
    with scene.link_cut(*scene.ends()):
        scene.hold(LINK_S)


def cut_link_from_leader(scene: Scene) -> None:
    """Nothing from one of them arrives at the other."""
    with scene.link_cut(*scene.ends(), both=False):
        scene.hold(LINK_S)


def cut_link_to_leader(scene: Scene) -> None:
    with scene.link_cut(*reversed(scene.ends()), both=False):
        scene.hold(LINK_S)


def flap_link(scene: Scene) -> None:
    """The link breaks again and again, each time for long enough to be noticed, and then works for a
    while.
    """
    one, two = scene.ends()
    scene.strike()
    with scene.asked():
        for _ in range(LINK_FLAPS):
            sever(scene.cluster.links, one, two, cut=True)
            scene.hold(FLAP_S)
            sever(scene.cluster.links, one, two)
            scene.hold(FLAP_S)
    scene.heal()


def delay(scene: Scene) -> None:
    """No node is cut off, so all clients must go on."""
    leader = scene.leader()
    scene.strike()
    isolate(scene.cluster.links, leader, scene.cluster.names, delay_ms=DELAY_MS)
    scene.hold(HOLD_S)
    scene.heal()
    isolate(scene.cluster.links, leader, scene.cluster.names)


def throttle(scene: Scene) -> None:
    leader = scene.leader()
    scene.strike()
    isolate(scene.cluster.links, leader, scene.cluster.names, bytes_per_s=THROTTLE_BYTES_PER_S)
    scene.hold(HOLD_S)
    scene.heal()
    isolate(scene.cluster.links, leader, scene.cluster.names)


def slow_disk(scene: Scene) -> None:
    if scene.slow_disks is None:
        raise Unsupported("without a C compiler syncs can't be made slow")
    leader = scene.leader()
    scene.strike(leader)
    scene.slow_disks.slow(leader, SLOW_SYNC_MS)
    scene.hold(2 * HOLD_S)
    scene.heal(leader)
    scene.slow_disks.heal(leader)


def full_disk(scene: Scene) -> None:
    cluster, name = scene.cluster, scene.followers()[0]
    with scene.killed(name):
        size = disks.used_bytes(cluster.data(name)) + SMALL_DISK_BYTES
        cluster.confine(name, size)
    scene.caught_up()
    disks.fill(cluster.data(name))
    scene.hold(HOLD_S)
    disks.empty(cluster.data(name))
    scene.heal(name)
    scene.caught_up()
    with scene.killed(name):
        cluster.release(name)


def in_data_files(scene: Scene, stored: dict[str, bytes]) -> None:
    """Wait until the data files of these nodes have these bytes; mqd writes them to another file first."""
    if scene.cluster.broker == "mqd":
        for name, content in stored.items():
            there = partial(disks.in_store, scene.cluster.data(name), content)
            wait_for(f"{name} has it in its data file", there)


def _data_files(scene: Scene) -> str:
    """Return a pattern that leaves out mqd's write-ahead log: with damage in a part that it still needs, a
    node does not start.
    """
    return "data.mdb" if scene.cluster.broker == "mqd" else "*"


def flip_bit(scene: Scene) -> None:
    """Flip a bit in a queued message, on one node; then ask that node to lead."""
    scene.strike()
    scene.load.pause(True)
    wait_for("a backlog", lambda: all(ledger.waiting() > 100 for ledger in scene.ledgers))
    name, ledger = scene.followers()[0], scene.ledgers[0]
    message = ledger.some_waiting()
    scene.damaged = True
    stored = body(message, BODY_BYTES)
    in_data_files(scene, {name: stored})
    with scene.killed(name):
        assert disks.flip(scene.cluster.data(name), stored, BODY_BYTES // 2, name=_data_files(scene)), (
            f"{message} is not on {name}'s disk"
        )
    scene.caught_up()
    if scene.cluster.broker == "mqd":
        scene.cluster.transfer(ledger.queue, name)
    scene.load.pause(False)
    wait_for("the backlog is consumed", lambda: all(ledger.waiting() < 100 for ledger in scene.ledgers))
    scene.heal()


def flip_two(scene: Scene) -> None:
    """Flip bits in different small messages, on the disks of two nodes, while all nodes are down."""
    scene.strike()
    scene.load.pause(True)
    wait_for("a backlog", lambda: all(ledger.waiting() > 100 for ledger in scene.ledgers))
    ledger = scene.ledgers[0]
    damaged = ledger.some_waiting(), ledger.some_waiting(3)
    scene.damaged = True
    cluster = scene.cluster
    places = {name: body(message, BODY_BYTES) for name, message in zip(cluster.names, damaged, strict=False)}
    in_data_files(scene, places)
    with scene.killed(*cluster.names):
        for (name, stored), message in zip(places.items(), damaged, strict=False):
            assert disks.flip(cluster.data(name), stored, BODY_BYTES // 2, name=_data_files(scene)), (
                f"{message} is not on {name}'s disk"
            )
    scene.caught_up()
    scene.load.pause(False)
    wait_for("the backlog is consumed", lambda: all(ledger.waiting() < 100 for ledger in scene.ledgers))
    scene.heal()


def _set_leaders_clock(scene: Scene, wrong_s: float) -> None:
    """No node is cut off, so all clients must go on; also when the clock is right again."""
    name = scene.leader()
    scene.strike()
    scene.cluster.set_clock(name, wrong_s)
    scene.hold(CLOCK_S / 2)
    scene.cluster.set_clock(name, 0)
    scene.hold(CLOCK_S / 2)
    scene.heal()


def set_clock_back(scene: Scene) -> None:
    _set_leaders_clock(scene, -CLOCK_WRONG_S)


def set_clock_forward(scene: Scene) -> None:
    _set_leaders_clock(scene, CLOCK_WRONG_S)


def fail_leader(scene: Scene) -> None:
    """A queue raises on the node that leads it, twice: it is restored from stored data, or from the other
    nodes.
    """
    cluster, queue = scene.cluster, scene.queues[0]
    name = cluster.leader(queue)
    scene.strike(name)
    cluster.plant(name, queue, 2)
    wait_for("another node leads", lambda: cluster.leader(queue) != name)
    scene.hold(HOLD_S)
    scene.heal(name)
    wait_for("the queue is back", lambda: not cluster.failed(name))


def fail_for_good(scene: Scene) -> None:
    """A queue raises on one node whenever it applies anything: it is set aside until an operator has the node
    try it again.
    """
    cluster, queue = scene.cluster, scene.queues[0]
    name = next(member.node for member in cluster.members(queue) if not member.leads)
    scene.strike(name)
    cluster.plant(name, queue, 1_000_000)
    wait_for("the queue is set aside", lambda: cluster.failed(name) == {queue: "set aside"})
    scene.hold(2 * ABSENT_S)
    assert cluster.failed(name) == {queue: "set aside"}
    cluster.plant(name, queue, 0)
    scene.heal(name)
    cluster.retry_failed(name, queue)
    wait_for("the queue is back", lambda: not cluster.failed(name))


def wipe(scene: Scene) -> None:
    if scene.cluster.broker != "mqd":
        raise Unsupported("a wiped node has to be forgotten and joined by hand")
    scene.caught_up()
    name = scene.followers()[0]
    with scene.killed(name):
        scene.cluster.wipe(name)
        scene.hold(HOLD_S / 3)


def wipe_and_set_clock_back(scene: Scene) -> None:
    """The other nodes know of starts of this node that are later than the present time there."""
    name = scene.followers()[0]
    scene.cluster.set_clock(name, -CLOCK_WRONG_S)
    scene.caught_up()
    with scene.killed(name):
        scene.cluster.wipe(name)
    scene.caught_up()
    scene.cluster.set_clock(name, 0)


def grow_and_shrink(scene: Scene) -> None:
    scene.strike()
    name = scene.cluster.grow()
    scene.heal()
    scene.caught_up()
    scene.hold(HOLD_S)
    scene.cluster.shrink(name)
    scene.heal()


def move_queues(scene: Scene) -> None:
    """Each node is taken out of the queues and comes back, while its clients publish, with confirms and in
    transactions.

    Then the same once more for one of them. An alarm blocks its clients before the queues go; they continue
    when the queues are back.
    """
    cluster = scene.cluster
    with scene.load.committing():
        for name, blocked in [*((name, False) for name in cluster.names), (cluster.names[0], True)]:
            scene.strike(name)
            if blocked:
                cluster.set_alarm(name, raised=True)
                scene.hold(HOLD_S / 3)
            cluster.leave_queues(name)
            scene.hold(HOLD_S / 3)
            cluster.join_queues(name)
            scene.heal(name)
            scene.caught_up()
            if blocked:
                cluster.set_alarm(name, raised=False)
            scene.hold(HOLD_S / 3)
    for committer in scene.load.committers:
        if not committer.committed:
            scene.fail(f"{committer.name}: nothing was committed")


def _streams(scene: Scene) -> tuple[MqdCluster, LogLoad]:
    if scene.logs is None:
        raise Unsupported("there are no streams")
    return scene.logs.cluster, scene.logs


def _busy(logs: LogLoad) -> list[Log]:
    """Return a stream, and the partition with the most messages: there are few keys, so it may have all of
    them.
    """
    return [logs.topics.logs[0], max(logs.topics.topics[1].logs, key=lambda log: len(log.messages))]


def _segment_with(cluster: MqdCluster, name: str, log: Log) -> tuple[Path, bytes]:
    """Return a sealed segment of a node, and a message in it."""
    wait_for(f"{log.name} has some segments", lambda: len(log.messages) >= DAMAGED_MIN)
    stored = body(log.messages[DAMAGED_MIN // 2], BODY_BYTES)
    found: list[Path] = []

    def there() -> bool:
        paths = (cluster.data(name) / "streams").glob("*/*.segment")
        found[:] = [path for path in paths if stored in path.read_bytes()]
        return bool(found)

    wait_for("it is in a segment", there)
    return found[0], stored


def flip_segment(scene: Scene) -> None:
    """Flip a bit of a message in a segment of a stream, on each of two nodes, which then lead the stream."""
    cluster, logs = _streams(scene)
    scene.strike()
    scene.damaged = True
    for name, log in zip(cluster.names, _busy(logs), strict=False):
        path, stored = _segment_with(cluster, name, log)
        with scene.killed(name):
            data = bytearray(path.read_bytes())
            data[data.index(stored) + BODY_BYTES // 2] ^= 0x10
            path.write_bytes(data)
        scene.caught_up()
        cluster.transfer(log.name, name)
    scene.heal()


def delete_segment(scene: Scene) -> None:
    """Delete a segment while the node is down: first with its index, then without; of a stream, and of a
    partition.
    """
    cluster, logs = _streams(scene)
    scene.strike()
    scene.damaged = True
    for name, log, index in zip(cluster.names, _busy(logs), (True, False), strict=False):
        path, _ = _segment_with(cluster, name, log)
        with scene.killed(name):
            path.unlink()
            if index:
                path.with_suffix(".index").unlink()
        scene.caught_up()
    scene.heal()


def delete_segment_of_running(scene: Scene) -> None:
    """Delete a segment of a running node. Readers reach it, on this node and, through this node, on
    others.
    """
    cluster, logs = _streams(scene)
    scene.strike()
    scene.damaged = True
    for name, log in zip(cluster.names, _busy(logs), strict=False):
        path, _ = _segment_with(cluster, name, log)
        path.unlink()
    scene.hold(HOLD_S)
    scene.heal()


def _kill_during(scene: Scene, what: Callable[[set[str]], object]) -> None:
    """Kill the leader as soon as `what`, called with the names of files, returns something else."""
    cluster, _ = _streams(scene)
    for _ in range(KILLS):
        name = scene.leader()
        watched(cluster, name, what)
        with scene.killed(name):
            pass
        scene.caught_up()


def kill_during_roll(scene: Scene) -> None:
    _kill_during(scene, lambda names: {name for name in names if name.endswith(".segment")})


def kill_during_retention(scene: Scene) -> None:
    cluster, _ = _streams(scene)

    def trimmed(node: str) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (cluster.data(node) / "streams").glob("*/first")}

    for _ in range(KILLS):
        name = scene.leader()
        before = trimmed(name)
        wait_for("segments are trimmed", lambda before=before, name=name: trimmed(name) != before)  # type: ignore[misc]
        with scene.killed(name):
            pass
        scene.caught_up()


def kill_during_compaction(scene: Scene) -> None:
    _kill_during(scene, lambda names: {name for name in names if name.endswith(".new")})


def kill_during_fill(scene: Scene) -> None:
    """A wiped node is killed again and again while the others fill it."""
    cluster, _ = _streams(scene)
    scene.caught_up()
    name = scene.followers()[0]
    with scene.killed(name):
        cluster.wipe(name)
    for _ in range(KILLS):
        watched(cluster, name, lambda names: {name for name in names if name.endswith(".segment")})
        with scene.killed(name):
            pass


def kill_at_any_step(scene: Scene) -> None:
    """Kill any node, as soon as anything changes among the files of its streams; at times it also loses its
    disk.

    The test does not wait in between until replicas agree, unless a disk was lost.
    """
    cluster, _ = _streams(scene)
    whole = True
    for _ in range(STEP_KILLS):
        name = scene.random.choice(cluster.names)
        if scene.random.random() < STEP_LOST_DISKS:
            scene.caught_up()
            whole = False
        changed(cluster, name, scene.random.choice(STEP_FILES))
        with scene.killed(name):
            if not whole:
                cluster.wipe(name)
            scene.hold(scene.random.uniform(0.0, 1.0))
        if not whole:
            whole = True
            if scene.random.random() < 0.5:
                # Once more, while the node is filled.
                changed(cluster, name, ".segment")
                with scene.killed(name):
                    pass
            scene.caught_up()


def rolling_restart(scene: Scene) -> None:
    for name in scene.cluster.names:
        with scene.stopped(name):
            pass
        scene.caught_up()


def short_stalls(scene: Scene) -> None:
    """Nodes stand still, often for just as long as the others wait for them; see also stalls."""
    for _ in range(STALLS):
        with scene.frozen(scene.random.choice(scene.cluster.names)):
            scene.hold(scene.random.uniform(*scene.random.choice(STALLS_S)))
        scene.hold(scene.random.choice((0.0, 0.1, 1.0)))


def mixed(scene: Scene) -> None:
    """Faults drawn from the seed, one upon the other; the test does not wait in between until replicas
    agree.
    """
    for _ in range(MIXED_ROUNDS):
        with _drawn(scene):
            scene.hold(scene.random.uniform(0.2, 4.0))
            if scene.random.random() < 0.3:
                scene.load.pause(True)
        scene.load.pause(False)
        scene.hold(scene.random.uniform(0.0, 1.5))


def _drawn(scene: Scene) -> AbstractContextManager[None]:
    names = scene.cluster.names
    name, other = scene.random.sample(names, 2)
    match scene.random.randrange(7):
        case 0:
            return scene.killed(name)
        case 1:
            return scene.killed(name, other)
        case 2:
            return scene.killed(*names)
        case 3:
            return scene.stopped(name)
        case 4:
            return scene.frozen(name)
        case 5:
            return scene.cut_off(name, scene.random.choice([isolate, mute, deafen]))
        case _:
            return scene.cut_off(name, isolate, cut=True)


#: Those that a cluster of one node can have.
OF_ONE = (
    *("kill all", "kill during roll", "kill during retention", "kill during compaction"),
    *("kill during large messages", "kill during large transactions", "other write-ahead logs"),
    *("rolling restart",),
)
FAULTS: dict[str, Fault] = {
    "kill leader": kill_leader,
    "kill follower": kill_follower,
    "kill two": kill_two,
    "kill all": kill_all,
    "freeze leader": freeze_leader,
    "freeze follower": freeze_follower,
    "partition leader": partition_leader,
    "partition follower": partition_follower,
    "mute leader": mute_leader,
    "deafen leader": deafen_leader,
    "mute follower": mute_follower,
    "reset leader": reset_leader,
    "split everybody": split_everybody,
    "flapping leader": flap,
    "link cut": cut_link,
    "link cut from leader": cut_link_from_leader,
    "link cut to leader": cut_link_to_leader,
    "flapping link": flap_link,
    "delayed links": delay,
    "throttled links": throttle,
    "slow disk": slow_disk,
    "full disk": full_disk,
    "flipped bit": flip_bit,
    "flipped bits on two nodes": flip_two,
    "wiped data": wipe,
    "exception in apply, leader": fail_leader,
    "exception in apply, each time": fail_for_good,
    "clock back": set_clock_back,
    "clock forward": set_clock_forward,
    "wiped data, clock back": wipe_and_set_clock_back,
    "grow and shrink": grow_and_shrink,
    "moving queues": move_queues,
    "flipped bit in a segment": flip_segment,
    "deleted segment": delete_segment,
    "deleted segment, running": delete_segment_of_running,
    "kill during roll": kill_during_roll,
    "kill during retention": kill_during_retention,
    "kill during compaction": kill_during_compaction,
    "kill during fill": kill_during_fill,
    "kill at any step": kill_at_any_step,
    "kill during large messages": kill_during_large_messages,
    "kill during large transactions": kill_during_large_transactions,
    "damage before deleted keys": damage_before_deleted_keys,
    "other write-ahead logs": other_logs,
    "short stalls": short_stalls,
    "rolling restart": rolling_restart,
    "mixed": mixed,
}
