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
