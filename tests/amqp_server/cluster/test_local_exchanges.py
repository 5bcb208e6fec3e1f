"""An exchange of type x-local-random knows on each node what is there."""

from __future__ import annotations

import pika
import pytest

from tests.amqp_server.cluster.ring import NAMES, Ring, take


def test_a_message_goes_to_a_queue_of_its_node(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.exchange_declare("near", "x-local-random", durable=True)
    for home in NAMES[:2]:
        with ring.channel(home) as channel:
            channel.queue_declare(f"of {home}", durable=True)
            channel.queue_bind(f"of {home}", "near", "")
    for restarted in (False, True):
        if restarted:
            for node in ring.nodes.values():
                node.kill()
            ring.start(*NAMES)
        for home in NAMES[:2]:
            with ring.channel(home) as channel:
                for number in range(5):
                    channel.basic_publish("near", "any", b"%d" % number, mandatory=True)
                assert take(channel, f"of {home}", 5) == [b"%d" % number for number in range(5)]
        with ring.channel("n3") as channel, pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("near", "any", b"nobody", mandatory=True)
    with ring.channel("n3") as channel:
        channel.queue_delete("of n1")
    with ring.channel("n1") as channel, pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("near", "any", b"nobody", mandatory=True)
