"""Offsets that streams keep by name, on three real nodes: nodes are killed, and consumers go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from conformance_tests.patience import PATIENCE_S
from tests.amqp_server.cluster.conftest import OPTIONS
from tests.amqp_server.cluster.ring import NAMES, Ring
from tests.amqp_server.cluster.test_streams import SMALL, append, declare
from tests.reliability.node import wait_until


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with Ring(tmp_path_factory.mktemp("names"), *OPTIONS, *SMALL, "--stream-names-max", "4") as ring:
        yield ring
        for name, node in ring.nodes.items():
            assert "Traceback" not in node.log(), (name, node.log()[-6000:])


@pytest.fixture
def ring(started: Ring) -> Ring:
    started.heal()
    return started


def read(
    ring: Ring, at: str, stream: str, name: str, count: int, *, acked: int | None = None, nacked: int = -1
) -> list[int]:
    """Return the offsets of this many messages. The first ones, or all of them, are acked, and one is given
    back.
    """
    arguments = {"x-stream-offset": "committed", "x-group": name, "x-stream-offset-default": "first"}
    found: list[int] = []
    with ring.channel(at, confirm=False) as channel:
        channel.basic_qos(prefetch_count=50)
        for method, properties, _ in channel.consume(
            stream, arguments=arguments, inactivity_timeout=PATIENCE_S
        ):
            assert method is not None, f"{at} has given {found}"
            offset = properties.headers["x-stream-offset"]
            found.append(offset)
            if offset == nacked:
                channel.basic_nack(method.delivery_tag)
            elif acked is None or len(found) <= acked:
                channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        channel.connection.process_data_events(0.2)
    return found


def goes_on(ring: Ring, at: str, stream: str, name: str, offset: int) -> None:
    """Wait until the name has come this far: acks have no answer."""

    def there() -> bool:
        found = read(ring, at, stream, name, 1, acked=0)
        assert found[0] <= offset, f"{name} goes on at {found[0]}, and has acked up to {offset}"
        return found[0] == offset

    wait_until(f"{name} goes on at {offset} on {at}", there)


def test_a_name_goes_on_at_any_node(ring: Ring) -> None:
    declare(ring, "named", x_initial_cluster_size=2)
    append(ring, "n1", "named", 0, 100)
    at = 0
    for name in (*NAMES, *NAMES):
        assert read(ring, name, "named", "r", 10) == [*range(at, at + 10)]
        at += 10
        for other in NAMES:
            goes_on(ring, other, "named", "r", at)
    # A gap stays.
    assert read(ring, "n3", "named", "r", 10, nacked=at + 4) == [*range(at, at + 10)]
    for other in NAMES:
        goes_on(ring, other, "named", "r", at + 4)
    # Each name is a reader of its own.
    assert read(ring, "n2", "named", "other", 3) == [0, 1, 2]


def test_names_survive_kills_of_leaders_and_new_members(ring: Ring) -> None:
    declare(ring, "killed")
    append(ring, "n1", "killed", 0, 200)
    at = 0
    for turn in range(3):
        reader = NAMES[turn]
        assert read(ring, reader, "killed", "r", 20) == [*range(at, at + 20)]
        at += 20
        goes_on(ring, reader, "killed", "r", at)
        leader = ring.leader("killed")
        ring.nodes[leader].kill()
        for other in NAMES:
            if other != leader:
                goes_on(ring, other, "killed", "r", at)
        ring.start(leader)
        goes_on(ring, leader, "killed", "r", at)
    for name in NAMES:
        ring.nodes[name].kill()
    ring.heal()
    for name in NAMES:
        goes_on(ring, name, "killed", "r", at)


def test_a_new_consumer_takes_the_name_over_on_whichever_node_it_is(ring: Ring) -> None:
    declare(ring, "taken", x_initial_cluster_size=2)
    append(ring, "n1", "taken", 0, 10)
    arguments = {"x-stream-offset": "committed", "x-group": "one", "x-stream-offset-default": "first"}
    cancelled: list[str] = []
    connections: list[pika.BlockingConnection] = []
    got: dict[str, list[int]] = {}
    try:
        for name in (*NAMES, "n1"):
            connection = ring.connect(name)
            connections.append(connection)
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            tag = f"{name}-{len(connections)}"
            channel.add_on_cancel_callback(lambda frame, tag=tag: cancelled.append(tag))
            offsets = got[tag] = []

            def deliver(channel, method, properties, body, offsets=offsets) -> None:  # type: ignore[no-untyped-def]
                offsets.append(properties.headers["x-stream-offset"])

            channel.basic_consume("taken", deliver, arguments=arguments, consumer_tag=tag)

            def taken(tag: str = tag, offsets: list[int] = offsets) -> bool:
                for each in connections:
                    each.process_data_events(0)
                return len(offsets) == 10 and sorted(cancelled) == sorted(each for each in got if each != tag)

            wait_until(f"{tag} has the name", taken, state=lambda: f"{got}, {cancelled}")
    finally:
        for each in connections:
            each.close()


def test_so_many_names_are_kept(ring: Ring) -> None:
    declare(ring, "many")
    append(ring, "n1", "many", 0, 20)
    for number in range(6):
        name = f"r{number}"
        assert read(ring, NAMES[number % 3], "many", name, 2) == [0, 1]
        goes_on(ring, NAMES[number % 3], "many", name, 2)
    # Four are kept, and each use counts.
    for number in (5, 4, 3, 2):
        goes_on(ring, "n1", "many", f"r{number}", 2)
    assert read(ring, "n2", "many", "r0", 1, acked=0) == [0]
