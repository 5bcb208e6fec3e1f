"""A declaration made through one node is there on the others when the answer comes: no test here waits for
anything.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import permutations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring, publish, take
from tests.reliability.node import wait_until

ROUNDS = 4


def test_declared_here_used_there(ring: Ring) -> None:
    with ExitStack() as stack:
        channels = {name: stack.enter_context(ring.channel(name)) for name in NAMES}
        for turn in range(ROUNDS):
            for number, (first, second, third) in enumerate(permutations(NAMES)):
                exchange, queue = f"e{turn}.{number}", f"q{turn}.{number}"
                channels[first].exchange_declare(exchange, "direct")
                channels[second].queue_declare(queue, durable=True, arguments=QUORUM if number % 2 else {})
                channels[third].queue_bind(queue, exchange, "k")
                for name in (first, second, third):
                    channels[name].basic_publish(exchange, "k", name.encode(), mandatory=True)
                assert take(channels[first], queue, 3) == [first.encode(), second.encode(), third.encode()]
                channels[first].queue_unbind(queue, exchange, "k")
                with pytest.raises(pika.exceptions.UnroutableError):
                    channels[second].basic_publish(exchange, "k", b"", mandatory=True)
                channels[third].queue_delete(queue)
                channels[second].exchange_delete(exchange)
                channels[first].queue_declare(queue, durable=True)
                channels[second].queue_delete(queue)


def test_users_permissions_and_vhosts(ring: Ring) -> None:
    for turn, (first, second, third) in enumerate(permutations(NAMES)):
        vhost, user = f"v{turn}", f"u{turn}"
        login = pika.PlainCredentials(user, "secret")

        def connect(
            name: str, login: pika.PlainCredentials = login, vhost: str = vhost
        ) -> pika.BlockingConnection:
            return ring.connect(name, virtual_host=vhost, credentials=login)

        ring.mqctl(first, "add_vhost", vhost)
        ring.mqctl(second, "add_user", user, "secret")
        with pytest.raises(ProbableAccessDeniedError):
            connect(third)
        ring.mqctl(third, "set_permissions", "-p", vhost, user, "mine.*", ".*", ".*")
        connection = connect(first)
        channel = connection.channel()
        channel.queue_declare("mine")
        with pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.queue_declare("yours")
        connection.close()
        ring.mqctl(second, "change_password", user, "other")
        with pytest.raises(ProbableAuthenticationError):
            connect(third)
        ring.mqctl(first, "delete_user", user)
        ring.mqctl(third, "delete_vhost", vhost)
        assert vhost not in ring.mqctl(second, "list_vhosts")


def test_default_queue_type_of_a_vhost(ring: Ring) -> None:
    ring.mqctl("n1", "add_vhost", "modern", "--default-queue-type", "quorum")
    ring.mqctl("n2", "set_permissions", "-p", "modern", "guest", ".*", ".*", ".*")
    with (
        ring.connection("n2", virtual_host="modern") as connection,
        ring.connection("n3", virtual_host="modern") as other,
    ):
        channel = connection.channel()
        channel.queue_declare("plain", durable=True)
        channel.queue_declare("mine", exclusive=True)
        # A second equal declaration succeeds on any node.
        other.channel().queue_declare("plain", durable=True)
        assert set(ring.queue("n1", "plain", "modern")["placed"]) == {*NAMES}
        types = {queue["name"]: queue["type"] for queue in ring.get("n3", "/api/queues/modern")}
        assert types == {"plain": "quorum", "mine": "classic"}
    ring.mqctl("n3", "delete_vhost", "modern")


def test_events_come_once_and_with_their_user(ring: Ring) -> None:
    ring.mqctl("n2", "add_user", "ann", "secret")
    ring.mqctl("n2", "set_permissions", "ann", ".*", ".*", ".*")
    login = pika.PlainCredentials("ann", "secret")
    with ring.channel("n1") as taps:
        taps.queue_declare("tap", durable=True)
        for key in ("queue.*", "binding.*", "user.deleted"):
            taps.queue_bind("tap", "amq.rabbitmq.event", key)
        with closing(ring.connect("n3", credentials=login)) as ann:
            channel = ann.channel()
            channel.queue_declare("anns", durable=True, arguments=QUORUM)
            channel.queue_bind("anns", "amq.topic", "k")
        with ring.channel("n2") as other:
            other.queue_delete("anns")
        ring.mqctl("n3", "delete_user", "ann")
        told: list[tuple[str, str]] = []

        def comes() -> bool:
            method, properties, _ = taps.basic_get("tap", auto_ack=True)
            if method is not None:
                told.append((method.routing_key, properties.headers["user_who_performed_action"]))
            return ("user.deleted", "guest") in told

        wait_until("the events have come", comes)
        by_ann = [key for key, user in told if user == "ann"]
        assert by_ann == ["queue.created", "binding.created"]
        gone = [key for key, user in told if user == "guest" and key.endswith("deleted")]
        assert sorted(gone[:-1]) == ["binding.deleted", "queue.deleted"]
        taps.queue_delete("tap")


def test_exclusive_queues_are_in_reach_of_their_owner_only_and_of_all_publishers(ring: Ring) -> None:
    with ring.channel("n1") as owner, ring.channel("n2") as other:
        name = owner.queue_declare("", exclusive=True).method.queue
        publish(other, name, b"from n2")
        assert take(owner, name, 1) == [b"from n2"]
        with pytest.raises(ChannelClosedByBroker, match="RESOURCE_LOCKED"):
            other.queue_declare(name, passive=True)
    with (
        ring.channel("n2") as other,
        pytest.raises(ChannelClosedByBroker, match=f"NOT_FOUND - no queue '{name}' in vhost '/'"),
    ):
        # The queue went with its connection.
        wait_until("the queue is gone", lambda: other.queue_declare(name, passive=True) is None)


def test_auto_delete_queue_goes_with_its_last_consumer_wherever_that_was(ring: Ring) -> None:
    with ring.channel("n1") as home, ring.channel("n2") as second, ring.channel("n3") as third:
        home.queue_declare("fleeting", auto_delete=True)
        tags = [
            (channel, channel.basic_consume("fleeting", lambda *_: None)) for channel in (home, second, third)
        ]
        for channel, tag in tags[:-1]:
            channel.basic_cancel(tag)
        assert third.queue_declare("fleeting", passive=True).method.consumer_count == 1
        tags[-1][0].basic_cancel(tags[-1][1])

        def gone() -> bool:
            """Return whether the queue is gone at all nodes: a node that has not seen that yet has its
            clients ask again.
            """
            return not any(
                queue["name"] == "fleeting"
                for node in ring.nodes
                for queue in ring.get(node, "/api/queues/%2F")
            )

        wait_until("the queue is gone", gone)
        with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            second.queue_declare("fleeting", passive=True)
