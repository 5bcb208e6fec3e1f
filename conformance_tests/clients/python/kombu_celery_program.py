# mypy: disable-error-code="import-untyped, no-untyped-call, attr-defined"
"""Stock kombu, and a real Celery worker process over it, against any broker."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance_tests.clients.python import checks
from conformance_tests.clients.python.checks import (
    AMQP_URL,
    CheckFailed,
    Checks,
    Names,
    contains,
    equal,
    that,
    wait_until,
)

name = Names("celery")
os.environ["AMQP_URL"] = AMQP_URL
os.environ["CELERY_PREFIX"] = name.prefix

import amqp.exceptions
from celery.exceptions import TimeoutError as NoResult
from kombu import Connection, Consumer, Exchange, Producer, Queue

from conformance_tests.clients.python import celery_quorum_tasks, celery_tasks

ROOT = Path(__file__).resolve().parents[3]
TASKS = "conformance_tests.clients.python.celery_tasks"
QUORUM_TASKS = "conformance_tests.clients.python.celery_quorum_tasks"
WORKER_SECONDS = 15


class Client:
    connection: Any


client = Client()


def connect(url: str = AMQP_URL) -> Any:
    return Connection(url, transport_options={"confirm_publish": True}, heartbeat=30)


def drain(done: Callable[[], object], what: str, connection: Any = None) -> None:
    source = connection or client.connection

    def step() -> None:
        try:
            source.drain_events(timeout=0.1)
        except TimeoutError:
            source.heartbeat_check()

    wait_until(done, step, what)


def drain_until(got: list[Any], count: int) -> None:
    drain(lambda: len(got) >= count, f"{count} deliveries")


# kombu


def wrong_password_is_refused() -> None:
    try:
        connect(checks.other_url(password="not-the-password")).connect()
    except amqp.exceptions.AccessRefused as error:
        equal(error.reply_code, 403, "reply code")
    else:
        raise CheckFailed("connected")


def unknown_vhost_is_refused() -> None:
    try:
        connect(checks.other_url(vhost="no-such-vhost")).connect()
    except amqp.exceptions.NotAllowed as error:
        equal(error.reply_code, 530, "reply code")
        contains(error.reply_text, "vhost no-such-vhost not found")
    else:
        raise CheckFailed("connected")


def topology_routes() -> None:
    with client.connection.channel() as channel:
        exchange = Exchange(name("topic"), "topic", durable=False, channel=channel)
        queue = Queue(
            name("topic-queue"),
            exchange,
            routing_key="a.#",
            exclusive=True,
            max_length=2,
            queue_arguments={"x-max-priority": 3},
            channel=channel,
        )
        queue.declare()
        producer = Producer(channel, exchange)
        for key in ("a.1", "b.1", "a.2", "a.3"):
            producer.publish({"key": key}, routing_key=key)
        equal(queue.queue_declare(passive=True).message_count, 2, "kept by x-max-length")
        equal(queue.get(no_ack=True).payload, {"key": "a.2"}, "first message")
        equal(queue.purge(), 1, "purged")
        queue.unbind_from(exchange, "a.#")
        producer.publish("nobody", routing_key="a.1")
        equal(queue.get(), None, "after queue.unbind")
        queue.delete()
        exchange.delete()


def publishes_are_confirmed() -> None:
    with client.connection.channel() as channel:
        queue = Queue(name("confirmed"), durable=True, channel=channel)
        queue.declare()
        producer = Producer(channel)
        for n in range(100):
            producer.publish({"n": n}, routing_key=queue.name, compression="zlib" if n % 2 else None)
        equal(queue.queue_declare(passive=True).message_count, 100, "after the confirms")
        equal([queue.get(no_ack=True).payload["n"] for _ in range(100)], list(range(100)), "order")
        queue.delete()


def full_queue_nacks() -> None:
    with client.connection.channel() as channel:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = Queue(name("full"), exclusive=True, queue_arguments=arguments, channel=channel)
        queue.declare()
        producer = Producer(channel)
        producer.publish("fits", routing_key=queue.name)
        try:
            producer.publish("does not", routing_key=queue.name)
        except amqp.exceptions.MessageNacked:
            pass
        else:
            raise CheckFailed("the second publish was confirmed")
        queue.delete()


def unroutable_mandatory_returns() -> None:
    returned: list[tuple[int, str]] = []
    with client.connection.channel() as channel:
        producer = Producer(
            channel, on_return=lambda error, *_: returned.append((error.reply_code, str(error)))
        )
        producer.publish("come back", routing_key=name("nowhere"), mandatory=True)
        # py-amqp waits for the confirm, and the return comes before it.
        equal([code for code, _ in returned], [312], "reply codes")
        contains(returned[0][1], "NO_ROUTE")


def prefetch_and_acks() -> None:
    got: list[Any] = []
    with client.connection.channel() as channel:
        queue = Queue(name("prefetch"), exclusive=True, channel=channel)
        queue.declare()
        producer = Producer(channel)
        for n in range(6):
            producer.publish(n, routing_key=queue.name)
        consumer = Consumer(
            channel, [queue], prefetch_count=2, on_message=got.append, accept=["json"], tag_prefix="kombu"
        )
        consumer.consume()
        drain_until(got, 2)
        equal(queue.queue_declare(passive=True).message_count, 4, "ready behind the prefetch")
        equal(len(got), 2, "deliveries")
        got[0].requeue()
        drain_until(got, 3)
        equal((got[2].decode(), got[2].delivery_info["redelivered"]), (0, True), "requeued")
        for n in range(1, 7):
            got[n].ack()
            drain_until(got, min(n + 3, 7))
        equal([message.decode() for message in got], [0, 1, 0, 2, 3, 4, 5], "order")
        consumer.cancel()
        queue.delete()


def stream_with(count: int) -> Any:
    """Declare a stream with so many numbered messages."""
    stream = Queue(name(f"stream-{count}"), durable=True, queue_arguments=dict(checks.STREAM))
    with client.connection.channel() as channel:
        stream.bind(channel).declare()
        producer = Producer(channel)
        for n in range(count):
            producer.publish(n, routing_key=stream.name)
    return stream


def read(queue: Any, count: int, *, acks: int | None = None) -> list[Any]:
    """Consume so many messages on a separate channel, and ack the first ones, or all. The channel is closed
    with the unacked rest.
    """
    got: list[Any] = []

    def take(message: Any) -> None:
        if len(got) < (count if acks is None else acks):
            message.ack()
        if len(got) < count:
            got.append(message)

    with client.connection.channel() as channel:
        consumer = Consumer(
            channel,
            [queue],
            prefetch_count=checks.STREAM_PREFETCH,
            on_message=take,
            accept=["json"],
            auto_declare=False,
        )
        consumer.consume()
        drain_until(got, count)
    return got


def offsets(got: list[Any]) -> list[int]:
    """Offsets of messages whose bodies are their offsets."""
    found = [message.headers["x-stream-offset"] for message in got]
    equal([message.decode() for message in got], found, "bodies and offsets")
    return found


def stream_is_read_from_an_offset() -> None:
    stream = stream_with(checks.STREAM_MESSAGES)
    for start, first in ((20, 20), ("first", 0), (20, 20)):
        stream.consumer_arguments = {"x-stream-offset": start}
        got = read(stream, checks.STREAM_MESSAGES - first)
        equal(offsets(got), list(range(first, checks.STREAM_MESSAGES)), f"offsets from {start}")
    with client.connection.channel() as channel:
        stream.bind(channel).delete()


def group_goes_on_where_it_acked() -> None:
    stream = stream_with(checks.STREAM_MESSAGES)
    group = Queue(name("group"), durable=True, queue_arguments=dict(checks.group_of(stream.name)))
    with client.connection.channel() as channel:
        bound = group.bind(channel)
        bound.declare()
        got = read(group, checks.GROUP_ACKS + 1, acks=checks.GROUP_ACKS)
        equal(offsets(got), list(range(checks.GROUP_ACKS + 1)), "offsets of the first member")
        equal({message.headers["x-stream"] for message in got}, {stream.name}, "x-stream")
        got = read(group, checks.STREAM_MESSAGES - checks.GROUP_ACKS)
        equal(
            offsets(got), list(range(checks.GROUP_ACKS, checks.STREAM_MESSAGES)), "offsets of the second one"
        )
        that(got[0].delivery_info["redelivered"], "what the first member held and had not acked is flagged")
        equal(bound.get(), None, "one more than was published")
        equal(bound.queue_declare(passive=True).message_count, 0, "messages of the group")
        bound.delete()
        stream.bind(channel).delete()


def channel_errors_spare_the_connection() -> None:
    exclusive = connect()
    locked = Queue(name("locked"), exclusive=True, channel=exclusive.channel())
    locked.declare()
    with client.connection.channel() as channel:
        Queue(name("agreed"), exclusive=True, durable=False, channel=channel).declare()
    for error_class, code, text, act in (
        (amqp.exceptions.NotFound, 404, "no queue", lambda ch: Queue(name("missing")).bind(ch).get()),
        (
            amqp.exceptions.AccessRefused,
            403,
            "reserved prefix",
            lambda ch: Queue("amq.mine").bind(ch).declare(),
        ),
        (
            amqp.exceptions.ResourceLocked,
            405,
            "exclusive access to locked queue",
            lambda ch: locked.bind(ch).queue_declare(passive=True),
        ),
        (
            amqp.exceptions.PreconditionFailed,
            406,
            "inequivalent arg 'x-expires'",
            lambda ch: Queue(name("agreed"), exclusive=True, durable=False, expires=60).bind(ch).declare(),
        ),
    ):
        channel = client.connection.channel()
        try:
            act(channel)
        except error_class as error:
            equal(error.reply_code, code, "reply code")
            contains(error.reply_text, text)
        else:
            raise CheckFailed(f"no channel close {code}")
    exclusive.release()
    that(client.connection.connected, "the connection lives on")
    with client.connection.channel() as channel:
        Queue(exclusive=True).bind(channel).declare()


def ensure_publishes_over_a_restart() -> None:
    connection = connect()
    queue = Queue(name("ensured"), durable=True, channel=connection.default_channel)
    queue.declare()
    producer = Producer(connection)
    for n in range(20):
        producer.publish(n, routing_key=queue.name)
    checks.restart_broker()
    errors: list[BaseException] = []
    publish = connection.ensure(
        producer,
        producer.publish,
        errback=lambda error, interval: errors.append(error),
        max_retries=20,
        interval_start=0.1,
        interval_step=0.2,
    )
    publish(20, routing_key=queue.name)
    that(errors, "the broker's end went unnoticed")
    bound = queue.bind(connection.default_channel)
    equal([bound.get(no_ack=True).payload for _ in range(21)], list(range(21)), "messages after the restart")
    equal(bound.get(), None, "one more than was published")
    bound.delete()
    connection.release()


# Celery


class Worker:
    """`celery worker` as users start it: prefork, with mingle, gossip, events and remote control."""

    def __init__(self, log: Path, tasks: str = TASKS) -> None:
        self.log = log.open("ab")
        self.node = f"{name.prefix}.{time.monotonic_ns()}@127.0.0.1"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", tasks, "worker"),
                *("--concurrency", "1", "--task-events", "--loglevel", "INFO", "--hostname", self.node),
            ],
            cwd=ROOT,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            # A group of its own: a kill must reach the pool's processes too.
            start_new_session=True,
        )
        checks.at_timeout.append(self.kill)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WORKER_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WORKER_SECONDS)


class Workplace:
    log: Path
    worker: Worker | None = None

    def start(self, tasks: str = TASKS) -> Worker:
        self.worker = Worker(self.log, tasks)
        return self.worker

    def present(self) -> Worker:
        if self.worker is None:
            raise CheckFailed("no worker was started")
        return self.worker


workplace = Workplace()


def result_of(asked: Any, seconds: float = WORKER_SECONDS) -> Any:
    try:
        return asked.get(timeout=seconds)
    except NoResult:
        tail = " | ".join(workplace.log.read_text(errors="replace").splitlines()[-6:])
        raise CheckFailed(f"no result from the worker, whose log ends: {tail}") from None


def celery_task_gives_a_result() -> None:
    workplace.start()
    equal(result_of(celery_tasks.add.delay(2, 3)), 5, "2 + 3")
    results = [celery_tasks.add.delay(n, n) for n in range(20)]
    equal([result_of(one) for one in results], [2 * n for n in range(20)], "twenty results")


def celery_error_comes_back() -> None:
    try:
        result_of(celery_tasks.fail.delay("on purpose"))
    except ValueError as error:
        equal(str(error), "on purpose", "text")
    else:
        raise CheckFailed("no error came back")


def celery_retries() -> None:
    equal(result_of(celery_tasks.succeed_at_third.delay()), 2, "retries")


def celery_remote_control_answers() -> None:
    node = workplace.present().node
    equal(celery_tasks.app.control.ping([node], timeout=3), [{node: {"ok": "pong"}}], "ping")
    inspected = celery_tasks.app.control.inspect([node], timeout=3).active_queues()
    equal([queue["name"] for queue in inspected[node]], [f"{name.prefix}.tasks"], "queues of the worker")


def celery_late_ack_outlives_a_killed_worker() -> None:
    asked = celery_tasks.slow_first_time.delay(60)
    inspect = celery_tasks.app.control.inspect([workplace.present().node], timeout=1)

    def running() -> bool:
        tasks = (inspect.active() or {}).get(workplace.present().node, [])
        return any(task["id"] == asked.id for task in tasks)

    wait_until(running, lambda: time.sleep(0.05), "the worker took the task")
    workplace.present().kill()
    workplace.start()
    redelivered, _ = result_of(asked)
    equal(redelivered, True, "redelivered to the second worker")


def celery_worker_comes_back_after_a_restart() -> None:
    """The worker reconnects by itself, and runs a task that was in a durable queue meanwhile."""
    with connect() as connection:
        answers = Queue(name("answers"), durable=True, channel=connection.default_channel)
        answers.declare()
        Queue(celery_tasks.LATER_QUEUE, Exchange(""), durable=True).bind(
            connection.default_channel
        ).queue_declare()
    celery_tasks.answer_to.apply_async((name("answers"), "kept"), queue=celery_tasks.LATER_QUEUE)
    checks.restart_broker()
    celery_tasks.answer_to.apply_async((name("answers"), "fresh"), retry=True)
    with connect() as connection:
        connection.ensure_connection(max_retries=20, interval_start=0.2, interval_step=0.2)
        bound = answers.bind(connection.default_channel)
        got: list[str] = []

        def look() -> None:
            message = bound.get(no_ack=True)
            if message is None:
                time.sleep(0.05)
            else:
                got.append(message.payload)

        wait_until(lambda: got, look, "the task sent after the restart")
        celery_tasks.app.control.add_consumer(
            celery_tasks.LATER_QUEUE, destination=[workplace.present().node]
        )
        wait_until(lambda: len(got) > 1, look, "the task sent before the restart")
        equal(got, ["fresh", "kept"], "answers")
        bound.delete()


def celery_worker_stops_warmly() -> None:
    equal(workplace.present().stop(), 0, "exit code of the worker")


def celery_retries_with_quorum_queues() -> None:
    """RabbitMQ before 4.0.1 loses such tasks: it takes the x-death that Celery sends back for its own."""
    workplace.start(QUORUM_TASKS)
    equal([result_of(celery_quorum_tasks.succeed_at_third.delay()) for _ in range(2)], [2, 2], "retries")
    with connect() as connection:
        tasks = f"{celery_quorum_tasks.PREFIX}.tasks"
        # Another type would be refused.
        Queue(tasks, queue_arguments={"x-queue-type": "quorum"}).bind(connection).queue_declare()


def delete_what_is_left() -> None:
    with connect() as connection:
        channel = connection.default_channel
        for queue in (
            f"{name.prefix}.tasks",
            celery_tasks.LATER_QUEUE,
            f"{celery_quorum_tasks.PREFIX}.tasks",
        ):
            Queue(queue).bind(channel).delete()
            # For a queue given by name, Celery declares an exchange with the same name.
            Exchange(queue).bind(channel).delete()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="celery-") as directory:
        workplace.log = Path(directory) / "worker.log"
        return check_all(Checks())


def check_all(results: Checks) -> int:
    client.connection = connect()
    client.connection.connect()
    for check in (
        wrong_password_is_refused,
        unknown_vhost_is_refused,
        topology_routes,
        publishes_are_confirmed,
        full_queue_nacks,
        unroutable_mandatory_returns,
        prefetch_and_acks,
        channel_errors_spare_the_connection,
        stream_is_read_from_an_offset,
    ):
        results.run(check)
    results.run(group_goes_on_where_it_acked, needs_groups=True)
    client.connection.release()
    results.run(ensure_publishes_over_a_restart, needs_restart=True)
    try:
        for check in (
            celery_task_gives_a_result,
            celery_error_comes_back,
            celery_retries,
            celery_remote_control_answers,
            celery_late_ack_outlives_a_killed_worker,
        ):
            results.run(check)
        results.run(celery_worker_comes_back_after_a_restart, needs_restart=True)
        results.run(celery_worker_stops_warmly)
        results.run(celery_retries_with_quorum_queues)
        results.run(celery_worker_stops_warmly)
    finally:
        if workplace.worker is not None:
            workplace.worker.kill()
    results.run(delete_what_is_left)
    return results.finish()


if __name__ == "__main__":
    checks.exit_with(main())
