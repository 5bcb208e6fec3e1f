"""A node that is left alone promises nothing, says why, and continues by itself when the others are back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pika.exceptions import ChannelClosedByBroker

from amqp_server.mqctl.client import UNAVAILABLE, Failure
from tests.amqp_server.cluster.conftest import OPTIONS
from tests.amqp_server.cluster.ring import QUORUM, Ring, take
from tests.reliability.client import Address, Client, Confirm
from tests.reliability.node import wait_until

COUNT = 20
REFUSED = (
    "RESOURCE_ERROR - the change was not applied in time: no majority of the cluster's nodes is reachable"
)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    """With a short timeout for changes: tests wait until a change is refused."""
    with Ring(tmp_path, *OPTIONS, "--change-timeout-ms", "2000") as started:
        yield started


def declared(ring: Ring, queue: str) -> None:
    """A slow machine may need more than one attempt in this time."""

    def done() -> bool:
        with ring.connection("n1") as connection:
            try:
                connection.channel().queue_declare(queue, durable=True, arguments=QUORUM)
            except ChannelClosedByBroker as refused:
                assert str(refused.reply_text).startswith(REFUSED)
                return False
            return True

    wait_until(f"{queue} is declared", done)


LEADERLESS = "/api/health/checks/quorum-queues-without-elected-leaders"


def test_queues_without_a_leader_are_told(ring: Ring) -> None:
    declared(ring, "waits")
    declared(ring, "other")
    alone = QUORUM | {"x-quorum-initial-group-size": 1}
    with ring.connection("n1") as connection:
        connection.channel().queue_declare("alone", durable=True, arguments=alone)
    wait_until(
        "all is well",
        lambda: all(ring.ask("GET", name, f"{LEADERLESS}/all-vhosts/")[0] == 200 for name in ring.names),
    )
    (member,) = ring.ask("GET", "n1", "/api/queues/%2F/alone")[1]["members"]
    # Its only member runs.
    expected = ["other", "waits"] if member == "n1" else ["alone", "other", "waits"]
    for name in ("n2", "n3"):
        ring.nodes[name].kill()

    def told(path: str) -> tuple[int, list[str]]:
        status, body = ring.ask("GET", "n1", f"{LEADERLESS}/{path}")
        return status, sorted(row["name"] for row in body.get("queues", ()))

    wait_until(
        "both are told",
        lambda: told("all-vhosts") == (503, expected),
        state=lambda: str(ring.ask("GET", "n1", f"{LEADERLESS}/all-vhosts")),
    )
    assert told("vhost/%2F") == (503, expected)
    assert told("vhost/%2F/pattern/^wait") == (503, ["waits"])
    assert told("all-vhosts/pattern/nowhere") == (200, [])
    assert told("all-vhosts/pattern/(")[0] == 400 and told("vhost/none")[0] == 404
    with pytest.raises(Failure, match="queue 'waits' in vhost '/'"):
        ring.mqctl("n1", "check_for_quorum_queues_without_an_elected_leader", "waits")
    ring.start("n2")
    lost = ["alone"] if member == "n3" else []
    wait_until("a majority leads again", lambda: told("all-vhosts") == (503 if lost else 200, lost))
    ring.start("n3")
    wait_until("all is well again", lambda: told("all-vhosts") == (200, []))


def test_a_node_alone_takes_publishes_and_confirms_none(ring: Ring) -> None:
    declared(ring, "waits")
    for name in ("n2", "n3"):
        ring.nodes[name].kill()
    wait_until("n1 knows", lambda: ring.ask("GET", "n1", "/health/ready")[0] == 503)
    assert ring.ask("GET", "n1", "/health")[0] == 200
    assert "NO MAJORITY" in ring.mqctl("n1", "cluster", "status")
    client = Client(ring.nodes["n1"].port)
    client.confirms()
    address = Address("", "waits")
    client.send(b"".join(address.message(b"%d" % number) for number in range(COUNT)))
    with ring.connection("n1") as connection:
        for declare in ("queue_declare", "exchange_declare"):
            channel = connection.channel()
            with pytest.raises(ChannelClosedByBroker) as closed:
                getattr(channel, declare)("cannot-be", durable=True)
            assert closed.value.reply_code == 506
            assert str(closed.value.reply_text).startswith(REFUSED)
        assert connection.is_open
        with pytest.raises(Failure, match="no majority") as failed:
            ring.mqctl("n1", "add_user", "nobody", "secret")
        assert failed.value.exit_code == UNAVAILABLE
        # All this time the node confirmed nothing.
        assert list(client.receive(0.0)) == []
        ring.start("n2")
        confirmed = 0
        while confirmed < COUNT:
            for event in client.receive():
                assert isinstance(event, Confirm) and not event.nack
                confirmed = event.tag if event.multiple else confirmed + 1
        client.close()
        declared(ring, "can-be")
        assert take(connection.channel(), "waits", COUNT) == [b"%d" % number for number in range(COUNT)]
        ring.start("n3")


def test_queues_that_cannot_be_deleted_yet_go_on(ring: Ring) -> None:
    """A sealed queue would serve nobody before there is a majority, and its clients would wait for that."""
    with ring.connection("n1") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("auto-delete", auto_delete=True)
        channel.queue_declare("leased", arguments={"x-expires": 6_000})
        consumer = channel.basic_consume("auto-delete", lambda *_: None)
        for name in ("n2", "n3"):
            ring.nodes[name].kill()
        wait_until("n1 knows", lambda: ring.ask("GET", "n1", "/health/ready")[0] == 503)
        channel.basic_cancel(consumer)
        connection.sleep(6.5)
        for queue in ("auto-delete", "leased"):
            channel.basic_publish("", queue, b"taken", mandatory=True)
        assert take(channel, "auto-delete", 1) == [b"taken"]
        # Nobody has used the other one since: it ends when there is a majority, and so does the first.
        ring.start("n2")
        for queue in ("auto-delete", "leased"):
            path = f"/api/queues/%2F/{queue}"
            wait_until(f"{queue} is gone", lambda path=path: ring.ask("GET", "n1", path)[0] == 404)
        ring.start("n3")
