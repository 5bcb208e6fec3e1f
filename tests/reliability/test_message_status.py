"""What became of each message, asked after kill -9: it agrees with what the queue has, and with what clients
were told.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pika
import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.patience import open_connection
from conformance_tests.status_client import Asker
from tests.reliability.node import Node, command

ROUNDS = 4
ON: dict[str, Any] = {
    "x-message-status": True,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
}


def connect(node: Node) -> pika.BlockingConnection:
    return open_connection(f"amqp://guest:guest@127.0.0.1:{node.port}/%2F")


class Work:
    """Publishes with confirms, and settles, until it is told to stop or the node is gone."""

    def __init__(self, queue: str, durable: bool) -> None:
        self.queue = queue
        self.durable = durable
        self.number = 0
        self.confirmed: list[str] = []
        #: What the consumer has asked the broker to do, and whether an answer on its channel vouches for it.
        self.asked: dict[str, str] = {}
        self.vouched: dict[str, str] = {}

    def run(self, channel: BlockingChannel, chance: random.Random, steps: int) -> None:
        channel.confirm_delivery()
        for _ in range(steps):
            for _ in range(chance.randint(1, 6)):
                self.number += 1
                id = f"m{self.number}"
                properties = BasicProperties(message_id=id, delivery_mode=2 if self.durable else 1)
                channel.basic_publish("", self.queue, b"x" * chance.randint(0, 300), properties)
                self.confirmed.append(id)
            for _ in range(chance.randint(0, 4)):
                method, properties, _ = channel.basic_get(self.queue)
                if method is None:
                    break
                how = chance.choice(["acknowledged", "acknowledged", "dead-lettered", "queued", "delivered"])
                if how == "acknowledged":
                    channel.basic_ack(method.delivery_tag)
                elif how == "dead-lettered":
                    channel.basic_reject(method.delivery_tag, requeue=False)
                elif how == "queued":
                    channel.basic_reject(method.delivery_tag, requeue=True)
                self.asked[properties.message_id] = how


def drained(channel: BlockingChannel, queue: str) -> list[str]:
    ids: list[str] = []
    while True:
        method, properties, _ = channel.basic_get(queue)
        if method is None:
            return ids
        ids.append(properties.message_id)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_kill_9_again_and_again(tmp_path: Path, kind: str) -> None:
    chance = random.Random(1)
    work = Work("q", durable=True)
    with Node(tmp_path) as node:
        with connect(node) as connection:
            channel = connection.channel()
            channel.queue_declare("dead", durable=True)
            channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind, **ON})
        for _ in range(ROUNDS):
            connection = connect(node)
            work.run(connection.channel(), chance, chance.randint(1, 12))
            node.kill()
            node.start()
            with connect(node) as again:
                asker = Asker(again.channel())
                states = {id: asker.state(id, "q") for id in work.confirmed}
            assert not [id for id, (state, _) in states.items() if state == "unknown"]
            for id, (state, _) in states.items():
                asked = work.asked.get(id, "queued")
                if asked == "delivered":
                    asked = "queued"
                # The last acks may not have reached the disk: then the message is in the queue again.
                assert state in (asked, "queued"), (id, state, asked)
            with connect(node) as holder:
                # What the queue has is what it says.
                ids = drained(holder.channel(), "q")
                assert sorted(ids) == sorted(id for id, (state, _) in states.items() if state == "queued")
                work.asked |= dict.fromkeys(ids, "queued")
        connection = connect(node)
        with connection:
            channel = connection.channel()
            told = Asker(channel).ask(work.confirmed[0], "q")["queues"][0]["messages"][0]
            assert told["queued_ms"] <= told["changed_ms"]
        node.stop()
        node.start()
        with connect(node) as connection:
            again = Asker(connection.channel()).ask(work.confirmed[0], "q")["queues"][0]["messages"][0]
            assert abs(again["queued_ms"] - told["queued_ms"]) < 60_000


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_that_wait_are_not_lost(tmp_path: Path, kind: str) -> None:
    with Node(tmp_path) as node:
        with connect(node) as connection:
            channel = connection.channel()
            channel.queue_declare(
                "q", durable=True, arguments={"x-queue-type": kind, "x-delayed": True, **ON}
            )
            channel.confirm_delivery()
            for id, headers in ("later", {"x-delay": 60_000}), ("again", {}):
                channel.basic_publish(
                    "", "q", b"", BasicProperties(message_id=id, delivery_mode=2, headers=headers)
                )
            method, _, _ = channel.basic_get("q")
            assert method is not None
            again = {"x-delivery-tag": method.delivery_tag, "x-delay": 60_000}
            channel.basic_publish("amq.mqd.retry", "", b"", BasicProperties(headers=again))
        node.kill()
        node.start()
        with connect(node) as connection:
            asker = Asker(connection.channel())
            assert [asker.state(id, "q") for id in ("later", "again")] == [("queued", "")] * 2
            assert [
                asker.ask(id, "q")["queues"][0]["messages"][0]["deliveries"] for id in ("later", "again")
            ] == [0, 1]


def test_transient_messages_of_a_durable_queue_are_lost_and_said_so(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        with connect(node) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments=ON)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"", BasicProperties(message_id="t", delivery_mode=1))
            # Its confirm says that everything before it is on the disk.
            channel.basic_publish("", "q", b"", BasicProperties(message_id="p", delivery_mode=2))
        node.kill()
        node.start()
        with connect(node) as connection:
            asker = Asker(connection.channel())
            assert asker.state("t", "q") == ("dropped", "lost when the node restarted")
            assert asker.state("p", "q") == ("queued", "")


def test_the_record_is_turned_off_and_on(tmp_path: Path) -> None:
    with Node(tmp_path, "--message-status-window-ms", "600000") as node:
        with connect(node) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"", BasicProperties(message_id="m1", delivery_mode=2))
            assert Asker(channel).state("m1", "q") == ("queued", "")
        off_ms = time.time() * 1000
        node.mqctl("set_policy", "off", ".*", '{"message-status": false}')
        with connect(node) as connection:
            channel = connection.channel()
            asker = Asker(channel)
            assert asker.ask("m1", "q")["error"] == 406
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"", BasicProperties(message_id="m2", delivery_mode=2))
        node.kill()
        node.start()
        node.mqctl("clear_policy", "off")
        for _ in range(2):
            with connect(node) as connection:
                asker = Asker(connection.channel())
                for id in ("m1", "m2"):
                    # It says that it does not know what was taken before.
                    (told,) = asker.ask(id, "q")["queues"]
                    assert told["state"] == "unknown" and told["recorded_since_ms"] > off_ms
            node.kill()
            node.start()


def test_the_option_is_taken_away_and_comes_back(tmp_path: Path) -> None:
    with Node(tmp_path, "--message-status-window-ms", "600000") as node:
        options, began_ms = node._options, time.time() * 1000
        for round, chosen in enumerate((options, (), options)):
            node.kill()
            node._options = chosen
            node.start()
            with connect(node) as connection:
                channel = connection.channel()
                channel.queue_declare("q", durable=True)
                channel.confirm_delivery()
                properties = BasicProperties(message_id=f"m{round}", delivery_mode=2)
                channel.basic_publish("", "q", b"", properties)
                asker = Asker(channel)
                if not chosen:
                    assert asker.ask("m0", "q")["error"] == 406
                    continue
                assert asker.state(f"m{round}", "q") == ("queued", "")
                (told,) = asker.ask("m1", "q")["queues"]
                assert told["state"] == "unknown"
                # What came while nothing was recorded is not claimed to be known.
                assert (told["recorded_since_ms"] > began_ms) is (round == 2)


def test_the_command(tmp_path: Path) -> None:
    with Node(tmp_path) as node, connect(node) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=ON)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"", BasicProperties(message_id="m1", delivery_mode=2))
        lines = node.mqctl("message_status", "m1").splitlines()
        assert lines[0].split("\t")[:3] == ["queue", "state", "reason"]
        assert lines[1].split("\t")[:2] == ["q", "queued"]
        assert json.loads(node.mqctl("--formatter", "json", "message_status", "m1", "--queue", "q"))["known"]
        code, _, error = mqctl(node, "message_status", "m2")
        assert code == 69 and "none of 1 queues knows it" in error
        for length in (300, 10_000):
            assert mqctl(node, "message_status", "x" * length)[0] == 65


def mqctl(node: Node, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [command("mqctl"), "--url", f"http://127.0.0.1:{node.http}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_permissions(tmp_path: Path) -> None:
    """The answer to a user who may not read a queue says nothing of the queue or the message."""
    with Node(tmp_path) as node:
        with connect(node) as connection:
            channel = connection.channel()
            for queue in ("open", "secret"):
                channel.queue_declare(queue, durable=True, arguments=ON)
            channel.confirm_delivery()
            channel.basic_publish("", "secret", b"", BasicProperties(message_id="m", delivery_mode=2))
        node.mqctl("add_user", "u", "u")
        node.mqctl("set_user_tags", "u", "management")
        node.mqctl("set_permissions", "u", "", "^amq.default$", "^open$")
        with open_connection(f"amqp://u:u@127.0.0.1:{node.port}/%2F") as connection:
            asker = Asker(connection.channel())
            answers = [asker.ask(id, queue) for queue in ("secret", "absent") for id in ("m", "other")]
            assert [each["error"] for each in answers] == [403] * 4
            assert len({each["reason"].replace("absent", "secret") for each in answers}) == 1
            answer = asker.ask("m")
            assert not answer["known"] and answer["asked"] == 1 and answer["queues"] == []
        texts = set()
        for queue in ("secret", "absent"):
            for id in ("m", "other"):
                code, _, error = mqctl(
                    node, "--user", "u", "--password", "u", "message_status", id, "--queue", queue
                )
                assert code != 0
                texts.add(error.replace(queue, "secret"))
        assert len(texts) == 1
