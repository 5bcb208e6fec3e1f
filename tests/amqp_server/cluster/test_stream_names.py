"""Offsets that streams keep by name, on three real nodes: nodes are killed, and consumers go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pika
import pika.exceptions
import pytest

from amqp_server.mqctl.client import Failure
from conformance_tests.patience import PATIENCE_S
from tests.amqp_server.cluster.conftest import OPTIONS, SMALL
from tests.amqp_server.cluster.ring import NAMES, Ring
from tests.amqp_server.cluster.test_streams import append, declare
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


def refused(ring: Ring, at: str, stream: str, name: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        read(ring, at, stream, name, 1)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text.startswith(f"PRECONDITION_FAILED - queue '{stream}' in vhost '/' stores ")


def offsets(ring: Ring, at: str, stream: str) -> dict[str, tuple[str, str]]:
    rows = [line.split("\t") for line in ring.mqctl(at, "-q", "list_stream_offsets", stream).splitlines()]
    return {name: (offset, in_use) for name, offset, _, in_use, _ in rows}


def test_more_names_are_refused_until_an_operator_deletes_some(ring: Ring) -> None:
    declare(ring, "many", x_initial_cluster_size=2)
    append(ring, "n1", "many", 0, 20)
    for number in range(4):
        at = NAMES[number % 3]
        assert read(ring, at, "many", f"r{number}", 2) == [0, 1]
        goes_on(ring, at, "many", f"r{number}", 2)
    for at in NAMES:
        refused(ring, at, "many", f"new {at}")
        assert offsets(ring, at, "many") == {f"r{number}": ("2", "false") for number in range(4)}
    # Those that are there come back, wherever they are.
    for number in range(4):
        goes_on(ring, NAMES[(number + 1) % 3], "many", f"r{number}", 2)
    for number, at in enumerate(NAMES):
        name, holder = f"r{number}", NAMES[(number + 1) % 3]
        with ring.channel(holder, confirm=False) as channel:
            channel.basic_qos(prefetch_count=5)
            arguments = {"x-stream-offset": "committed", "x-group": name}
            channel.basic_consume("many", lambda *told: None, arguments=arguments)
            assert offsets(ring, at, "many")[name] == ("2", "true")
            with pytest.raises(Failure, match="stop it before you delete the offset"):
                ring.mqctl(at, "delete_stream_offset", "many", name)

        def gone(at: str = at, name: str = name) -> bool:
            return offsets(ring, at, "many")[name] == ("2", "false")

        wait_until("its consumer is gone", gone)
        ring.mqctl(at, "delete_stream_offset", "many", name)
        assert read(ring, at, "many", f"new {at}", 1) == [0]
        refused(ring, holder, "many", name)
    assert set(offsets(ring, "n1", "many")) == {"r3", "new n1", "new n2", "new n3"}


def test_two_nodes_that_take_the_last_place_at_once(ring: Ring) -> None:
    declare(ring, "last", x_initial_cluster_size=2)
    append(ring, "n1", "last", 0, 5)
    for number in range(3):
        assert read(ring, "n1", "last", f"r{number}", 1) == [0]
    found: dict[str, int] = {}

    def take(at: str) -> None:
        try:
            found[at] = len(read(ring, at, "last", f"mine {at}", 5))
        except pika.exceptions.ChannelClosedByBroker as error:
            found[at] = error.reply_code

    threads = [Thread(target=take, args=(at,)) for at in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.values()) == [5, 406, 406]
    (winner,) = [at for at, got in found.items() if got != 406]
    for at in NAMES:
        assert set(offsets(ring, at, "last")) == {"r0", "r1", "r2", f"mine {winner}"}
