"""The disk of one real node, or of all of them, loses data, and what an operator does then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from amqp_server.mqctl.client import Failure
from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring, publish, take
from tests.cluster import disks
from tests.reliability.node import wait_until

MESSAGES = [
    b"message %d of those that are small, %s" % (number, bytes([97 + number]) * 60) for number in range(6)
]


@pytest.fixture
def own(tmp_path: Path, rest: bool) -> Iterator[Ring]:
    # Nodes cut the logs of idle queues now and then: either all nodes have done that, or none.
    with Ring(tmp_path, *(() if rest else ("--rebalance-ms", "60000"))) as ring:
        yield ring


def fill(ring: Ring, queue: str) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare(queue, durable=True, arguments=QUORUM)
        publish(channel, queue, *MESSAGES)
    ring.equal(queue, *NAMES)


def damage(ring: Ring, where: dict[str, bytes]) -> None:
    """Damage the data files while all nodes are down, once these files have the data: if the log before them
    were damaged, the node would refuse to start.
    """
    for name, message in where.items():
        place = ring.directory / name
        wait_until(
            f"{name} has it in its data file",
            lambda place=place, message=message: disks.in_store(place, message),
        )
    for name in NAMES:
        ring.nodes[name].kill()
    for name, message in where.items():
        flipped = disks.flip(ring.directory / name, message, len(message) // 2, name="data.mdb")
        assert flipped, f"{message!r} is not on {name}"


@pytest.mark.parametrize("rest", [False, True], ids=["in the log", "below the snapshot"])
def test_what_all_nodes_have_lost_is_given_up_by_an_operator(own: Ring, *, rest: bool) -> None:
    ring = own
    fill(ring, "holed")
    if rest:
        wait_until(
            "logs are cut",
            lambda: all(
                (told := ring.queue(name, "holed"))["snapshot_index"] == told["applied"] for name in NAMES
            ),
        )
    with pytest.raises(Failure, match="knows of no log entry"):
        ring.mqctl("n1", "cluster", "accept-loss", "holed")
    damage(ring, dict.fromkeys(NAMES, MESSAGES[2]))
    ring.start(*NAMES)

    def saying() -> list[str]:
        """Return the nodes that report a loss: a node that another one will fill reports none."""
        text = "LOST: no member can read 1 log entries of queue 'holed' in vhost '/'"
        return [name for name in NAMES if text in ring.mqctl(name, "cluster", "status")]

    wait_until("it is said what is lost", saying, state=ring.logs)
    name = saying()[0]
    assert "1 entries lost" in ring.mqctl(name, "cluster", "queues")
    wait_until(
        "the log says so",
        lambda: (
            "queue 'holed' in vhost '/': 1 entries of its log can be read by none" in ring.nodes[name].log()
        ),
    )
    assert "1 entries were given up" in ring.mqctl(name, "cluster", "accept-loss", "holed")
    ring.leader("holed")
    ring.equal("holed", *NAMES)
    wait_until(
        "nothing is lost any more", lambda: not any(ring.status(name)["lost_entries"] for name in NAMES)
    )
    with ring.channel("n2") as channel:
        publish(channel, "holed", b"one more")
        expected = [message for message in MESSAGES if message != MESSAGES[2]]
        assert take(channel, "holed", 6) == [*expected, b"one more"]


def test_a_node_whose_store_was_deleted_comes_back_with_an_empty_directory_only(
    tmp_path: Path,
) -> None:
    with Ring(tmp_path) as ring:
        fill(ring, "kept")
        node = ring.nodes["n3"]
        node.kill()
        (node.data / "main" / "data.mdb").unlink()
        node.launch()
        wait_until("the node has ended", lambda: not node.running, state=node.log)
        assert node.stop() == 1
        said = node.log().splitlines()[-1]
        assert "has no main/data.mdb, but it has main/log, marks" in said, said
        assert "in a cluster the other nodes fill it" in said, said
        node.data.rename(tmp_path / "lost")
        ring.start("n3")
        ring.formed()
        ring.equal("kept", *NAMES)
        with ring.channel("n3") as channel:
            assert take(channel, "kept", len(MESSAGES)) == MESSAGES
