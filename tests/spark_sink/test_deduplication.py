"""exactly-once with the deduplication of mqd's queues: producers, and sequences that only rise."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance_tests.ports import free_port
from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, MessagesRefused
from spark_sink.option_values import BadOption
from spark_sink.options import sink_options
from spark_sink.sink.ledger import LEDGER
from spark_sink.sink.target import mechanism
from spark_sink.sink.task import Task, write
from tests.reliability.node import Node
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_task import ROWS, TaskDied, batches, bodies, once, plan


@pytest.fixture
def task(name: Name) -> Task:
    return Task(name("query"), 7, 3)


@pytest.fixture
def queue(mqd_peer: Peer, name: Name) -> str:
    return mqd_peer.queue(name(), x_deduplication=True)


def test_no_attempt_but_the_first_is_seen(mqd_url: str, mqd_peer: Peer, queue: str, task: Task) -> None:
    one = plan(mqd_url, "broker", queue)
    with pytest.raises(TaskDied):
        write(one, task, batches(bodies(), die_after=400))
    for _ in range(2):
        assert write(one, task, batches(bodies())).rows == ROWS
    assert [body for _, _, body in mqd_peer.take(queue, ROWS)] == [body.encode() for body in bodies()]
    write(one, task, batches(bodies()))  # consumed messages are remembered, too
    assert mqd_peer.count(queue) == 0


def test_batches_and_partitions_follow_one_another(
    mqd_url: str, mqd_peer: Peer, queue: str, name: Name
) -> None:
    application = name("query")
    one = plan(mqd_url, "broker", queue)
    for batch in (0, 0, 1, 1, 2):
        for partition in (0, 1):
            values = bodies(20, f"{batch}-{partition}-")
            write(one, Task(application, batch, partition), batches(values))
    # An older batch comes from a driver that is not quite dead, or from a checkpoint that was put back.
    with pytest.raises(
        AmqpError, match="is at batch 2, and this is batch 1: was an older checkpoint put back"
    ):
        write(one, Task(application, 1, 0), batches(bodies(20, "1-0-")))
    expected = [body for b in (0, 1, 2) for p in (0, 1) for body in bodies(20, f"{b}-{p}-")]
    assert mqd_peer.bodies(queue, 120) == once(expected)


def test_other_rows_of_a_batch_that_was_written_are_refused(
    mqd_url: str, mqd_peer: Peer, queue: str, task: Task
) -> None:
    """The queue would drop them as duplicates, and nobody would know."""
    one = plan(mqd_url, "broker", queue)
    assert write(one, task, batches(bodies())).rows == ROWS
    for other in (bodies()[:-1], [*bodies(), "more"], list(reversed(bodies()))):
        with pytest.raises(AmqpError, match="gives other rows in .* than were written"):
            write(one, task, batches(other))
    assert write(one, task, batches(bodies())).rows == ROWS
    assert [body for _, _, body in mqd_peer.take(queue, ROWS)] == [body.encode() for body in bodies()]
    assert mqd_peer.count(f"{LEDGER}{task.producer}") == 1


def test_two_attempts_at_the_same_time(mqd_url: str, mqd_peer: Peer, queue: str, task: Task) -> None:
    """Speculation, or a driver that is not quite dead: for each row the first writer is accepted."""
    one = plan(mqd_url, "broker", queue)
    attempts = [threading.Thread(target=write, args=(one, task, batches(bodies()))) for _ in range(3)]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join()
    assert [body for _, _, body in mqd_peer.take(queue, ROWS)] == [body.encode() for body in bodies()]


def test_rows_that_a_full_queue_refused_are_not_taken_for_written(
    mqd_url: str, mqd_peer: Peer, name: Name, task: Task
) -> None:
    """When there is room again, later numbers are taken first; the retry must bring the earlier rows all the
    same.
    """
    full = mqd_peer.queue(name(), x_deduplication=True, x_max_length=300, x_overflow="reject-publish")
    one = plan(mqd_url, "broker", full)
    seen: Counter[bytes] = Counter()
    refusals = 0
    while True:
        try:
            write(one, task, batches(bodies()))
            break
        except MessagesRefused as refused:
            assert "nacked" in str(refused)
            refusals += 1
            assert refusals < 10
        # Room for some rows comes now, and for others while the next attempt sends.
        seen += mqd_peer.bodies(full)
    seen += mqd_peer.bodies(full)
    assert refusals > 1
    assert seen == once(bodies())


def test_a_row_whose_queue_comes_late(
    mqd_url: str, mqd_peer: Peer, queue: str, task: Task, name: Name
) -> None:
    late = name("late")
    keys = [queue, late, queue, late, queue]
    one = plan(mqd_url, "broker", queue)
    with pytest.raises(
        MessagesRefused, match=f"'{task.application}/7/3/1' came back .and 1 more.|312 NO_ROUTE"
    ):
        write(one, task, batches(bodies(5), routing_key=keys))
    assert mqd_peer.count(f"{LEDGER}{task.producer}") == 1
    mqd_peer.queue(late, x_deduplication=True)
    for _ in range(2):
        write(one, task, batches(bodies(5), routing_key=keys))
    assert mqd_peer.bodies(queue, 3) == once(["0", "2", "4"])
    assert mqd_peer.bodies(late, 2) == once(["1", "3"])


def test_a_broker_that_is_killed_remembers(tmp_path: Path) -> None:
    port = free_port()
    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    with Node(tmp_path, "--amqp", f"127.0.0.1:{port}") as node:
        with Peer(url) as peer:
            peer.channel.queue_declare("out", durable=True, arguments={"x-deduplication": True})
        one, task = plan(url, "broker", "out"), Task("query", 1, 0)
        with pytest.raises(TaskDied):
            write(one, task, batches(bodies(), die_after=600))

        def killing() -> None:
            node.kill()
            node.start()

        def events() -> Iterator[Any]:
            for number, batch in enumerate(batches(bodies())):
                if number == 4:
                    threading.Thread(target=killing).start()
                yield batch

        write(one, task, events())
        with Peer(url) as peer:
            assert peer.bodies("out", ROWS) == once(bodies())


def choose(url: str, queue: str, *columns: str, **given: str) -> str:
    key = {"routingKey": queue} if queue else {}
    options = sink_options({"url": url, "delivery": "exactly-once", **key} | given)
    with Connection.open(options.login, "test") as connection:
        return mechanism(connection, options, ["value", *columns])


def test_who_drops_duplicates_is_chosen_by_what_the_queue_was_declared_with(
    mqd_url: str, mqd_peer: Peer, queue: str, name: Name
) -> None:
    plain = mqd_peer.queue(name())
    assert choose(mqd_url, queue) == "broker"
    assert choose(mqd_url, plain) == "ledger"
    assert choose(mqd_url, queue, deduplication="ledger") == "ledger"
    with pytest.raises(BadOption, match=f"the queue '{plain}' was declared without x-deduplication"):
        choose(mqd_url, plain, deduplication="broker")


def test_of_queues_that_only_rows_name_the_user_has_to_know_it(mqd_url: str, queue: str) -> None:
    assert choose(mqd_url, queue, "routing_key") == "ledger"
    assert choose(mqd_url, queue, "routing_key", deduplication="broker") == "broker"


def test_behind_an_exchange_all_queues_must_drop_duplicates(
    mqd_url: str, mqd_peer: Peer, queue: str, name: Name
) -> None:
    channel, plain = mqd_peer.channel, mqd_peer.queue(name())
    exchange, other = name("exchange"), name("exchange")
    channel.exchange_declare(exchange, "topic", durable=True, auto_delete=True)
    channel.exchange_declare(other, "fanout", durable=True, auto_delete=True)
    assert choose(mqd_url, "", exchange=exchange) == "ledger"  # no queue is bound yet
    channel.queue_bind(queue, exchange, "#")
    assert choose(mqd_url, "", "routing_key", exchange=exchange) == "broker"
    channel.exchange_bind(other, exchange, "a.*")
    channel.queue_bind(plain, other)
    assert choose(mqd_url, "", exchange=exchange) == "ledger"
    assert choose(mqd_url, "", "exchange", exchange=exchange) == "ledger"
    with pytest.raises(BadOption, match=f"behind the exchange '{exchange}' was declared without .*'{plain}'"):
        choose(mqd_url, "", exchange=exchange, deduplication="broker")
    channel.queue_unbind(plain, other)
    assert choose(mqd_url, "", exchange=exchange) == "broker"


def test_the_driver_says_which_it_is(
    mqd_url: str, queue: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.sink.target._told", set())
    with caplog.at_level("INFO", "spark_sink"):
        for _ in range(3):
            choose(mqd_url, queue)
        choose(mqd_url, queue, "routing_key")
    assert [record.message.split(":")[1] for record in caplog.records] == [
        " exactly-once by the broker",
        " exactly-once by the ledger",
    ]


def test_a_stock_broker_cannot_be_asked_for_it(rabbitmq: int) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{rabbitmq}/"
    assert choose(url, "q") == "ledger"
    with pytest.raises(BadOption, match="'deduplication' is broker, and .* has no publisher deduplication"):
        choose(url, "q", deduplication="broker")
