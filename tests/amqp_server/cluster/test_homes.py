"""Queues that live on one node, when that node goes and when it comes back."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

from tests.amqp_server.cluster.ring import PERSISTENT, Ring, publish, take
from tests.reliability.node import wait_until

DOWN = "NOT_FOUND - home node 'n2' of durable queue 'homely' in vhost '/' is down or inaccessible"


def test_durable_classic_queue_of_a_dead_node(ring: Ring) -> None:
    with ring.channel("n2") as home:
        home.queue_declare("homely", durable=True)
        publish(home, "homely", b"1", b"2")
    ring.nodes["n2"].kill()
    with ring.connection("n1") as connection:

        def refused(method: str, *arguments: object, **keywords: object) -> str:
            channel = connection.channel()
            with pytest.raises(ChannelClosedByBroker) as closed:
                getattr(channel, method)(*arguments, **keywords)
            assert closed.value.reply_code == 404
            return str(closed.value.reply_text)

        wait_until(
            "n1 has seen it",
            lambda: not any(node["running"] for node in ring.status("n1")["nodes"] if node["name"] == "n2"),
        )
        assert refused("queue_declare", "homely", durable=True) == DOWN
        assert refused("queue_declare", "homely", passive=True) == DOWN
        assert refused("basic_consume", "homely", lambda *_: None) == DOWN
        assert refused("basic_get", "homely") == DOWN
        assert refused("queue_purge", "homely") == DOWN
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(NackError):
            channel.basic_publish("", "homely", b"lost", PERSISTENT)
        # Exchanges and bindings do not belong to a node.
        channel.queue_bind("homely", "amq.direct", "home")
        ring.start("n2")
        channel.queue_declare("homely", durable=True)
        channel.basic_publish("amq.direct", "home", b"3", PERSISTENT)
        assert take(channel, "homely", 3) == [b"1", b"2", b"3"]
        channel.queue_delete("homely")


def test_a_queue_deleted_while_its_node_was_away_stays_deleted(ring: Ring) -> None:
    with ring.channel("n3") as home:
        home.queue_declare("doomed", durable=True)
        publish(home, "doomed", b"1")
    ring.nodes["n3"].kill()
    with ring.channel("n1") as channel:
        channel.queue_delete("doomed")
        channel.queue_declare("doomed", durable=True)
        ring.start("n3")
        with ring.channel("n3") as back:
            publish(back, "doomed", b"new")
            assert take(back, "doomed", 1) == [b"new"]
            assert back.queue_declare("doomed", passive=True).method.message_count == 0
        channel.queue_delete("doomed")


def test_consumers_of_a_dead_node_s_queue_are_told(ring: Ring) -> None:
    cancelled: list[str] = []
    with ring.channel("n2") as home:
        home.queue_declare("homely", durable=True)
    with ring.channel("n1") as channel:
        channel.add_on_cancel_callback(lambda method: cancelled.append(method.method.consumer_tag))
        tag = channel.basic_consume("homely", lambda *_: None)
        ring.nodes["n2"].kill()

        def told() -> bool:
            channel.connection.process_data_events(0.05)
            return cancelled == [tag]

        wait_until("the consumer is cancelled", told)
        ring.start("n2")
        channel.queue_delete("homely")


def test_transient_and_exclusive_queues_go_with_their_node(ring: Ring) -> None:
    connection = ring.connect("n2")
    channel = connection.channel()
    channel.queue_declare("mine", exclusive=True)
    channel.queue_declare("fleeting")
    channel.exchange_declare("fleeting-exchange", "fanout")
    with ring.channel("n1") as other:
        publish(other, "mine", b"")
        publish(other, "fleeting", b"")
    ring.nodes["n2"].kill()
    ring.start("n2")
    # At once, on every node.
    for name in ring.nodes:
        assert not _present(ring, name)
    with ring.channel("n3") as other:
        # Now any client may use their names.
        other.queue_declare("mine", exclusive=True)
        other.queue_declare("fleeting", durable=True)
        assert other.queue_declare("fleeting", passive=True).method.message_count == 0
        other.queue_delete("fleeting")


def test_their_names_are_free_even_if_the_node_does_not_come_back(ring: Ring) -> None:
    connection = ring.connect("n3")
    channel = connection.channel()
    channel.queue_declare("mine", exclusive=True)
    channel.queue_declare("fleeting")
    ring.nodes["n3"].kill()
    _gone(ring, "n1")
    with ring.channel("n1") as other:
        other.queue_declare("mine", exclusive=True)
        other.queue_declare("fleeting")
        ring.start("n3")
        # When the node is back, it does not take the new queues for its old ones.
        with ring.channel("n3") as back:
            publish(back, "mine", b"1")
            publish(back, "fleeting", b"2")
        assert take(other, "mine", 1) + take(other, "fleeting", 1) == [b"1", b"2"]
        other.queue_delete("fleeting")


def _present(ring: Ring, name: str) -> set[str]:
    """Return the transient objects that this node knows."""
    found = {each["name"] for what in ("queues", "exchanges") for each in ring.get(name, f"/api/{what}/%2F")}
    return found & {"mine", "fleeting", "fleeting-exchange"}


def _gone(ring: Ring, name: str) -> None:
    wait_until("what was transient is gone", lambda: not _present(ring, name))
