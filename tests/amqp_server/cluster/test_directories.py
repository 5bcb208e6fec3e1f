"""A node whose disk was lost, and one whose disk was restored from an earlier copy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring, publish, take
from tests.reliability.node import wait_until

COUNT = 40
BODY = b"x" * 20_000


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d " % number + BODY for number in range(first, first + count)]


def copy(source: Path, target: Path) -> None:
    """Copy sparsely: a store's file is as long as its map, and mostly holes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True, timeout=60)


def test_a_lost_disk_is_filled_by_the_others(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare("filled", durable=True, arguments=QUORUM)
        publish(channel, "filled", *bodies(0, COUNT))
        assert take(channel, "filled", 10) == bodies(0, 10)
        ring.nodes["n2"].kill()
        shutil.rmtree(ring.nodes["n2"].data)
        publish(channel, "filled", *bodies(COUNT, COUNT))
    ring.start("n2")
    assert "this node's data directory is new to the cluster" in ring.nodes["n2"].log()
    ring.equal("filled", *NAMES)
    # The node is a voter again, and has the bodies: another one may go.
    ring.nodes["n1"].kill()
    with ring.channel("n2") as channel:
        publish(channel, "filled", b"last")
        assert take(channel, "filled", 2 * COUNT - 9) == [*bodies(10, 2 * COUNT - 10), b"last"]
    ring.start("n1")
    ring.equal("filled", *NAMES)
    with ring.channel("n1") as channel:
        channel.queue_delete("filled")


def test_an_old_copy_is_refused(ring: Ring) -> None:
    """A restored copy has forgotten votes and entries that the node vouched for. With it, one other node
    would be enough to elect a leader that lacks confirmed messages.
    """
    with ring.channel("n1") as channel:
        channel.queue_declare("precious", durable=True, arguments=QUORUM)
        publish(channel, "precious", *bodies(0, 5))
    node = ring.nodes["n3"]

    def refused() -> None:
        said = len(node.log())
        node.launch()
        wait_until("it refuses", lambda: not node.running, state=node.log)
        assert node.stop() == 1
        assert "the data directory is older than what this node has told the other nodes" in node.log()[said:]

    for stopped in (True, False):
        # First a backup of a stopped node, which has been started since; then the snapshot of a running
        # machine.
        if stopped:
            assert node.stop() == 0
        copy(node.data, ring.directory / "copy")
        if stopped:
            ring.start("n3")
        with ring.channel("n1") as channel:
            publish(channel, "precious", *bodies(5, 5))
        ring.equal("precious", *NAMES)
        node.kill()
        copy(ring.directory / "copy", node.data)
        refused()
        if stopped:
            # The node is refused again, though it has written something by now.
            refused()
        with ring.channel("n1") as channel:
            assert take(channel, "precious", 5) == bodies(0 if stopped else 5, 5)
        # As the log line says: with an empty directory the node is filled.
        shutil.rmtree(node.data)
        ring.start("n3")
        ring.equal("precious", *NAMES)
    ring.nodes["n1"].kill()
    with ring.channel("n3") as channel:
        assert take(channel, "precious", 5) == bodies(5, 5)
        channel.queue_delete("precious")
