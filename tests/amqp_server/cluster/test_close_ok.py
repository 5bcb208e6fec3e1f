"""A client whose channel is closed finds its consumers gone at other nodes, too."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from pamqp import commands

from tests.amqp_server.cluster.ring import Ring
from tests.reliability.client import Client

#: How long the queue's node stands still.
STANDS_STILL_S = 0.15
ROUNDS = 3


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_while_the_node_of_the_queue_stands_still(ring: Ring, kind: str) -> None:
    arguments = {"x-queue-type": kind}
    with ring.connection("n1") as first, ring.connection("n3") as third:
        name = first.channel().queue_declare(f"closed {kind}", durable=True, arguments=arguments).method.queue
        pid, other = ring.nodes["n1"].pid, third.channel()
        for _ in range(ROUNDS):
            client = Client(ring.nodes["n2"].port)
            client.call(commands.Basic.Qos(0, 10), commands.Basic.QosOk)
            client.call(commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
            os.kill(pid, signal.SIGSTOP)
            goes_on = threading.Timer(STANDS_STILL_S, os.kill, (pid, signal.SIGCONT))
            goes_on.start()
            client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
            assert other.queue_declare(name, passive=True).method.consumer_count == 0
            goes_on.join()
            client.close()
        other.queue_delete(name)
