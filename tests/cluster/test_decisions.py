"""Deletes on a condition and counts at nodes that are behind; see decisions."""

from __future__ import annotations

import contextlib
import random

import pytest
from pamqp import commands

from tests.cluster.decisions import TYPES, one_round
from tests.cluster.nodes import Cluster
from tests.reliability.client import Address, ChannelClosed, Client

pytestmark = pytest.mark.usefixtures("cluster")


def test_conditional_deletes_lose_no_confirmed_message(cluster: Cluster) -> None:
    chance = random.Random(1)
    number = 0
    for kind in TYPES:
        for how in ("at once", "at once", "at once", "under load", "under load", "frozen"):
            number += 1
            deleted = one_round(cluster, f"q{number}", kind, how, chance)
            assert not (deleted and how in ("at once", "frozen"))


def test_a_node_that_decides_may_be_killed(cluster: Cluster) -> None:
    chance = random.Random(2)
    for number, kind in enumerate(TYPES):
        one_round(cluster, f"k{number}", kind, "killed", chance)


def test_a_delete_if_unused_sees_consumers_of_other_nodes(cluster: Cluster) -> None:
    one, two, three = cluster.names
    for number, kind in enumerate(("quorum", "classic")):
        queue = f"u{number}"
        with contextlib.closing(Client(cluster.port(three))) as decider:
            decider.declare(queue, **TYPES[kind])
            cluster.freeze(three)
            try:
                consumer = Client(cluster.port(one)) if kind == "quorum" else None
                if consumer is not None:
                    consumer.consume(queue, 10)
                decider.method(commands.Queue.Delete(queue=queue, if_unused=True))
            finally:
                cluster.thaw(three)
            if consumer is None:
                # Its home stood still, so nobody could attach to it.
                decider.expect(commands.Queue.DeleteOk)
                continue
            with pytest.raises(ChannelClosed, match="in use"):
                decider.expect(commands.Queue.DeleteOk)
            consumer.close()


def test_a_count_has_what_was_confirmed_through_any_node(cluster: Cluster) -> None:
    clients = {name: Client(cluster.port(name)) for name in cluster.names}
    for queue, kind in (("cq", "quorum"), ("cc", "classic"), ("cs", "stream")):
        clients[cluster.names[0]].declare(queue, **TYPES[kind])
        message = Address("", queue).message(b"m")
        count = 0
        for _ in range(5):
            for name in cluster.names:
                with contextlib.closing(Client(cluster.port(name))) as publisher:
                    publisher.confirms()
                    publisher.send(message)
                    next(iter(publisher.receive()))
                count += 1
                assert [client.count(queue) for client in clients.values()] == [count] * 3
    for client in clients.values():
        client.close()


def test_a_node_that_stood_still_refuses_nothing_that_others_have_made_right(cluster: Cluster) -> None:
    one, _, three = cluster.names
    decider = Client(cluster.port(three))
    decider.declare("there before")
    with contextlib.closing(Client(cluster.port(one))) as client:
        cluster.freeze(three)
        try:
            client.declare("made meanwhile", **TYPES["quorum"])
            client.call(commands.Queue.Delete(queue="there before"), commands.Queue.DeleteOk)
            client.declare("there before", **TYPES["quorum"])
            decider.method(commands.Queue.Declare(queue="made meanwhile", passive=True))
            arguments = TYPES["quorum"]
            decider.method(commands.Queue.Declare(queue="there before", durable=True, arguments=arguments))
        finally:
            cluster.thaw(three)
        decider.expect(commands.Queue.DeclareOk)
        decider.expect(commands.Queue.DeclareOk)
    decider.close()
