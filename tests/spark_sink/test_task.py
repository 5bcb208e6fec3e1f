"""The work of a task, without Spark around it: every way of delivery, on mqd and on RabbitMQ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.client.connection import Connection
from spark_sink.client.errors import AmqpError, ChannelClosed, ConnectFailed, LoginRefused, MessagesRefused
from spark_sink.options import sink_options
from spark_sink.sink.encoder import BadRow
from spark_sink.sink.ledger import LEDGER, Ledger
from spark_sink.sink.target import Mechanism
from spark_sink.sink.task import Plan, Task, write
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer

ROWS = 1_000
#: The window and the batches are smaller than a task, so that each task has many.
OPTIONS = {"maxInFlight": "300", "confirmTimeoutMs": "20000"}


class TaskDied(Exception):
    pass


def bodies(count: int = ROWS, prefix: str = "") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def batches(
    values: list[Any], die_after: int | None = None, **columns: list[Any]
) -> Iterator[pa.RecordBatch]:
    """Batches as Spark gives them; in between, the task may die."""
    size = 170
    for start in range(0, len(values), size):
        if die_after is not None and start >= die_after:
            raise TaskDied
        columns_here = {name: column[start : start + size] for name, column in columns.items()}
        yield pa.record_batch({"value": pa.array(values[start : start + size], pa.string()), **columns_here})
    if die_after is not None:
        raise TaskDied


def plan(url: str, mechanism: Mechanism, queue: str, **options: str) -> Plan:
    delivery = "exactly-once" if mechanism == "broker" else mechanism
    given = OPTIONS | {"url": url, "routingKey": queue, "delivery": delivery} | options
    return Plan(sink_options(given), mechanism, None)


@pytest.fixture
def task(name: Name) -> Task:
    return Task(name("query"), 7, 3)


@pytest.fixture
def queue(peer: Peer, name: Name) -> str:
    return peer.queue(name())


def once(values: list[str]) -> Counter[bytes]:
    return Counter(value.encode() for value in values)


@pytest.mark.parametrize("mechanism", ["none", "confirm", "tx", "ledger"])
def test_every_row_arrives_once_and_in_order(
    url: str, peer: Peer, queue: str, task: Task, mechanism: Mechanism
) -> None:
    written = write(plan(url, mechanism, queue), task, batches(bodies()))
    assert (written.partition, written.rows) == (3, ROWS)
    taken = peer.take(queue, ROWS)
    assert [body for _, _, body in taken] == [body.encode() for body in bodies()]
    ids = [properties.message_id for _, properties, _ in taken]
    assert ids == [f"{task.application}/7/3/{row}" for row in range(ROWS)]


@pytest.mark.parametrize(("mechanism", "left"), [("confirm", 510), ("tx", 0), ("ledger", 0)])
def test_a_task_that_dies_half_way_and_its_retry(
    url: str, peer: Peer, queue: str, task: Task, mechanism: Mechanism, left: int
) -> None:
    with pytest.raises(TaskDied):
        write(plan(url, mechanism, queue), task, batches(bodies(), die_after=400))
    write(plan(url, mechanism, queue), task, batches(bodies()))
    taken = peer.take(queue, ROWS)
    # With confirm, the messages of the first attempt are there twice, under the same ids; with the other
    # deliveries never.
    assert Counter(body for _, _, body in taken).keys() == once(bodies()).keys()
    assert len(taken) == ROWS + left
    assert len({properties.message_id for _, properties, _ in taken}) == ROWS


@pytest.mark.parametrize(("mechanism", "copies"), [("confirm", 2), ("tx", 2), ("ledger", 1)])
def test_a_task_whose_success_is_not_heard_of_is_run_again(
    url: str, peer: Peer, queue: str, task: Task, mechanism: Mechanism, copies: int
) -> None:
    for _ in range(2):
        assert write(plan(url, mechanism, queue), task, batches(bodies())).rows == ROWS
    taken = peer.take(queue, copies * ROWS)
    assert Counter(body for _, _, body in taken) == dict.fromkeys(once(bodies()), copies)
    assert len({properties.message_id for _, properties, _ in taken}) == ROWS


def test_batches_follow_one_another_in_the_ledger(url: str, peer: Peer, queue: str, name: Name) -> None:
    application = name("query")
    for batch in (0, 1, 1, 2):
        write(plan(url, "ledger", queue), Task(application, batch, 0), batches(bodies(20, f"{batch}-")))
    assert peer.bodies(queue, 60) == once([body for batch in (0, 1, 2) for body in bodies(20, f"{batch}-")])
    assert peer.count(f"{LEDGER}{application}/0") == 1
    with pytest.raises(
        AmqpError, match="is at batch 2, and this is batch 1: was an older checkpoint put back"
    ):
        write(plan(url, "ledger", queue), Task(application, 1, 0), batches(bodies(20, "1-")))


def test_a_version_that_is_not_above_the_last_was_written_before(
    url: str, peer: Peer, queue: str, name: Name
) -> None:
    application = name("app")
    for version in (5, 4):
        one = plan(
            url, "ledger", queue, delivery="exactly-once", txnAppId=application, txnVersion=str(version)
        )
        assert write(one, Task(application, version, 0), batches(bodies(20))).rows == 20
    assert peer.bodies(queue, 20) == once(bodies(20))


def test_a_replay_with_other_rows_is_an_error(url: str, peer: Peer, queue: str, task: Task) -> None:
    write(plan(url, "ledger", queue), task, batches(bodies()))
    for other in (bodies()[::-1], bodies(ROWS - 1)):
        with pytest.raises(AmqpError, match="the replay of batch 7 gives other rows"):
            write(plan(url, "ledger", queue), task, batches(other))
    assert peer.bodies(queue, ROWS) == once(bodies())


def test_another_attempt_of_the_partition_is_kept_out(url: str, peer: Peer, queue: str, task: Task) -> None:
    one = plan(url, "ledger", queue, confirmTimeoutMs="2000")
    with Connection.open(one.options.login, "zombie") as zombie:
        Ledger(zombie, task.producer, one.options.ledger_expires_ms).lock(1_000)
        with pytest.raises(AmqpError, match="another attempt has been writing partition"):
            write(one, task, batches(bodies(5)))
    write(one, task, batches(bodies(5)))
    assert peer.bodies(queue, 5) == once(bodies(5))


@pytest.mark.parametrize("mechanism", ["none", "confirm", "tx", "ledger"])
def test_a_row_that_no_queue_takes_fails_the_task(
    url: str, peer: Peer, queue: str, task: Task, mechanism: Mechanism
) -> None:
    keys = [queue] * 9 + ["nowhere"]
    with pytest.raises(
        MessagesRefused,
        match=f"'{task.application}/7/3/9' came back from .*routing key 'nowhere'.*312 NO_ROUTE",
    ):
        write(plan(url, mechanism, queue), task, batches(bodies(10), routing_key=keys))


def test_the_retry_of_a_ledger_writes_only_what_came_back(
    url: str, peer: Peer, queue: str, task: Task, name: Name
) -> None:
    late = name("late")
    keys = [queue] * 9 + [late]
    for _ in range(2):
        with pytest.raises(MessagesRefused, match=late):
            write(plan(url, "ledger", queue), task, batches(bodies(10), routing_key=keys))
    peer.queue(late)
    for _ in range(2):
        write(plan(url, "ledger", queue), task, batches(bodies(10), routing_key=keys))
    assert peer.bodies(queue, 9) == once(bodies(9))
    assert peer.bodies(late, 1) == once(["9"])


def test_rows_that_nobody_wants_are_dropped_without_mandatory(
    url: str, peer: Peer, queue: str, task: Task
) -> None:
    keys = [queue, "nowhere"]
    write(plan(url, "confirm", queue, mandatory="false"), task, batches(bodies(2), routing_key=keys))
    assert peer.bodies(queue, 1) == once(["0"])


def test_a_full_queue_that_rejects_fails_the_task(url: str, peer: Peer, name: Name, task: Task) -> None:
    full = peer.queue(name(), x_max_length=5, x_overflow="reject-publish")
    with pytest.raises(MessagesRefused, match=r"nacked \d+ messages, the first of them row \d"):
        write(plan(url, "confirm", full), task, batches(bodies(100)))


def test_a_full_queue_within_a_transaction_is_never_taken_for_written(
    url: str, peer: Peer, name: Name, task: Task
) -> None:
    full = peer.queue(name(), x_max_length=5, x_overflow="reject-publish")
    for text in ("a queue rejected rows of the transaction", "took only a part of it"):
        with pytest.raises(MessagesRefused, match=text):
            write(plan(url, "ledger", full), task, batches(bodies(100)))


@pytest.mark.parametrize(("mechanism", "before"), [("confirm", 170), ("tx", 0), ("ledger", 0)])
def test_nothing_of_a_batch_with_a_bad_row_is_sent(
    url: str, peer: Peer, queue: str, task: Task, mechanism: Mechanism, before: int
) -> None:
    values: list[Any] = bodies(340)
    values[339] = None
    with pytest.raises(BadRow, match="column 'value' in row 339 of partition 3 is null"):
        write(plan(url, mechanism, queue), task, batches(values))
    assert sum(peer.bodies(queue, before).values()) == before


def test_an_exchange_that_a_row_names_and_nobody_declared(
    url: str, peer: Peer, queue: str, task: Task
) -> None:
    with pytest.raises(ChannelClosed, match="404 NOT_FOUND - no exchange 'nowhere'.*columns exchange"):
        write(plan(url, "confirm", queue), task, batches(bodies(5), exchange=["nowhere"] * 5))


def test_a_body_over_the_brokers_limit(url: str, peer: Peer, queue: str, task: Task) -> None:
    with pytest.raises(BadRow, match="maxMessageBytes"):
        write(plan(url, "confirm", queue), task, batches(["x" * (17 << 20)]))


def test_large_bodies_and_empty_ones(url: str, peer: Peer, queue: str, task: Task) -> None:
    values = ["", "x" * 131_064, "y" * 131_065, "z" * 1_000_000]
    write(plan(url, "confirm", queue), task, batches(values))
    assert [body for _, _, body in peer.take(queue, 4)] == [value.encode() for value in values]


def test_an_empty_partition_opens_no_connection(task: Task) -> None:
    nobody = plan("amqp://127.0.0.1:1", "confirm", "q")
    assert write(nobody, task, batches([])).rows == 0


def test_refused_logins_say_so(url: str, task: Task) -> None:
    with pytest.raises(LoginRefused, match="login refused for user 'guest'"):
        write(plan(url, "confirm", "q", password="wrong"), task, batches(bodies(1)))
    with pytest.raises(LoginRefused, match="vhost 'nowhere' refused"):
        write(plan(url + "nowhere", "confirm", "q"), task, batches(bodies(1)))


def test_a_broker_that_is_not_there(task: Task) -> None:
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1: Connection refused"):
        write(plan("amqp://127.0.0.1:1", "confirm", "q", confirmTimeoutMs="100"), task, batches(bodies(1)))


def test_hosts_are_tried_in_turn(url: str, peer: Peer, queue: str, task: Task) -> None:
    write(plan(url.replace("@", "@127.0.0.1:1,"), "confirm", queue), task, batches(bodies(3)))
    assert peer.bodies(queue, 3) == once(bodies(3))
