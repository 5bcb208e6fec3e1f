"""Messages between nodes: replies, dead letters, alternate exchanges, transactions."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import permutations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.amqp_server.cluster.ring import NAMES, PERSISTENT, QUORUM, Ring, publish, take
from tests.reliability.node import wait_until

REPLY_TO = "amq.rabbitmq.reply-to"


class Caller:
    """A client that sends requests, and waits for direct replies."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel
        self.answers: list[bytes] = []
        channel.basic_consume(REPLY_TO, self._answered, auto_ack=True)

    def _answered(self, channel: object, method: object, properties: object, body: bytes) -> None:
        self.answers.append(body)

    def ask(self, queue: str, body: bytes) -> None:
        self.channel.basic_publish("", queue, body, pika.BasicProperties(reply_to=REPLY_TO))

    def until(self, count: int) -> list[bytes]:
        def here() -> bool:
            self.channel.connection.process_data_events(0.01)
            return len(self.answers) >= count

        wait_until(f"{count} answers", here, state=lambda: str(len(self.answers)))
        answers, self.answers = self.answers, []
        return answers


def serve(channel: BlockingChannel, queue: str, count: int) -> str:
    """Answer this many requests; return where the last answer went."""
    done: list[str] = []

    def asked(channel: BlockingChannel, method: object, properties: object, body: bytes) -> None:
        assert isinstance(properties, pika.BasicProperties) and properties.reply_to
        channel.basic_publish("", properties.reply_to, body[::-1])
        done.append(properties.reply_to)

    tag = channel.basic_consume(queue, asked, auto_ack=True)

    def answered() -> bool:
        channel.connection.process_data_events(0.01)
        return len(done) >= count

    wait_until(f"{count} questions", answered)
    channel.basic_cancel(tag)
    return done[-1]


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_remote_procedure_calls_between_all_nodes(ring: Ring, arguments: dict[str, str]) -> None:
    queue = f"rpc-{len(arguments)}"
    with ExitStack() as stack:
        channels = {name: stack.enter_context(ring.channel(name)) for name in NAMES}
        channels["n1"].queue_declare(queue, durable=True, arguments=arguments)
        callers = {name: Caller(stack.enter_context(ring.channel(name, confirm=False))) for name in NAMES}
        for client, server in permutations(NAMES, 2):
            for number in range(5):
                callers[client].ask(queue, b"%d question" % number)
            callers[client].ask(queue, b"x" * 3_000_000 + b"y")
            to = serve(channels[server], queue, 6)
            answers = callers[client].until(6)
            assert answers[:5] == [(b"%d question" % number)[::-1] for number in range(5)]
            assert answers[5] == b"y" + b"x" * 3_000_000
            # The reply address belongs to this channel, not to the node.
            assert to != REPLY_TO and to.endswith("." + client)
        channels["n1"].queue_delete(queue)


def test_replies_to_nobody_are_no_error(ring: Ring) -> None:
    with ring.channel("n1", confirm=False) as channel, ring.channel("n2") as server:
        caller = Caller(channel)
        channel.queue_declare("calls")
        caller.ask("calls", b"")
        to = serve(server, "calls", 1)
        caller.until(1)
        # A server may ask whether its client can be answered.
        assert server.queue_declare(to, passive=True).method.consumer_count == 1
        with ring.channel("n3") as other, pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            other.queue_declare(f"{REPLY_TO}.g1h00.n9", passive=True)
        channel.connection.close()
        # A reply is confirmed, and dropped where no client waits any more.
        server.basic_publish("", to, b"late")
        with pytest.raises(UnroutableError):
            server.basic_publish("", f"{REPLY_TO}.g1h00.n9", b"no such node", mandatory=True)
        server.queue_delete("calls")


def test_dead_letters_go_to_queues_led_elsewhere(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.exchange_declare("graves", "fanout")
        for turn, (first, second, _) in enumerate(permutations(NAMES)):
            for strategy in ("at-most-once", "at-least-once"):
                source, target = f"source{turn}{strategy}", f"target{turn}{strategy}"
                channel.queue_declare(target, durable=True, arguments=QUORUM)
                arguments = QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
                arguments |= {"x-dead-letter-strategy": strategy, "x-overflow": "reject-publish"}
                channel.queue_declare(source, durable=True, arguments=arguments)
                ring.mqctl("n1", "cluster", "transfer-leader", source, first)
                ring.mqctl("n2", "cluster", "transfer-leader", target, second)
                wait_until(
                    "both are led where they are to be",
                    lambda pair=((source, first), (target, second)): all(
                        ring.leader(queue) == name for queue, name in pair
                    ),
                )
                publish(channel, source, b"1", b"2")
                for _ in range(2):
                    method, _, _ = channel.basic_get(source)
                    assert method is not None
                    channel.basic_reject(method.delivery_tag, requeue=False)
                with ring.channel(second) as there:
                    wait_until(
                        "dead letters arrived",
                        lambda target=target, there=there: (
                            there.queue_declare(target, passive=True).method.message_count == 2
                        ),
                    )
                    assert take(there, target, 2) == [b"1", b"2"]
                channel.queue_delete(source)
                channel.queue_delete(target)
        channel.exchange_delete("graves")


def test_alternate_exchange_with_a_queue_elsewhere(ring: Ring) -> None:
    with ring.channel("n1") as first, ring.channel("n2") as second, ring.channel("n3") as third:
        first.exchange_declare("stray", "fanout")
        second.queue_declare("strays", durable=True)
        first.queue_bind("strays", "stray")
        third.exchange_declare("narrow", "direct", arguments={"alternate-exchange": "stray"})
        first.basic_publish("narrow", "nobody", b"found", mandatory=True)
        assert take(third, "strays", 1) == [b"found"]
        third.queue_delete("strays")
        third.exchange_delete("narrow")
        third.exchange_delete("stray")


def test_a_transaction_over_queues_of_all_nodes(ring: Ring) -> None:
    names = [f"tx-{name}" for name in NAMES]
    with ExitStack() as stack:
        for name, queue in zip(NAMES, names, strict=True):
            stack.enter_context(ring.channel(name)).queue_declare(queue, durable=True)
        channel = stack.enter_context(ring.channel("n1", confirm=False))
        channel.queue_declare("tx-quorum", durable=True, arguments=QUORUM)
        names.append("tx-quorum")
        reader = stack.enter_context(ring.channel("n3"))
        channel.tx_select()
        for queue in names:
            channel.basic_publish("", queue, b"one", PERSISTENT)
        counts = [reader.queue_declare(queue, passive=True).method.message_count for queue in names]
        assert counts == [0, 0, 0, 0]
        channel.tx_rollback()
        for queue in names:
            channel.basic_publish("", queue, b"two", PERSISTENT)
        channel.tx_commit()

        def all_have_it() -> bool:
            counts = [reader.queue_declare(queue, passive=True).method.message_count for queue in names]
            return counts == [1, 1, 1, 1]

        # The client that has committed sees it at once, others soon.
        wait_until("all queues have it", all_have_it)
        assert [take(reader, queue, 1) for queue in names] == [[b"two"]] * 4
        for queue in names:
            reader.queue_delete(queue)
