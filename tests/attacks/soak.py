"""python -m tests.attacks.soak: an hour of churn, after which the broker is as small as after five minutes.

Connections, channels, users, queues of every kind, bindings, messages, transactions, dead letters, refusals
and requests over HTTP come and go. The program samples memory, descriptors, threads and the disk, and
compares the lowest values of the last twelfth of the time with those of the second twelfth.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.reliability.churn import one_round
from tests.reliability.client import ChannelClosed, Client, Delivery, Gone
from tests.reliability.node import Node, memory

from .scenes import frames

MIB = 1 << 20
SAMPLE_S = 1.0
PARTS = 12
WARM_ROUNDS = 5
#: Growth that is no leak: a share of the earlier value, and pages that the allocator holds.
SHARE, SPARE_BYTES, SPARE_COUNT = 0.1, 12 * MIB, 4


@dataclass(frozen=True)
class Sample:
    anonymous_bytes: int
    disk_bytes: int
    descriptors: int
    threads: int


def sample(node: Node) -> Sample:
    process = Path(f"/proc/{node.pid}")
    return Sample(
        memory(process / "status")["RssAnon"],
        node.disk_bytes(),
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
    )


def lowest(samples: Sequence[Sample]) -> Sample:
    return Sample(*(min(getattr(one, field.name) for one in samples) for field in fields(Sample)))


def grown(early: Sample, late: Sample) -> list[str]:
    """Return the figures that grew by more than they may."""
    found = []
    for field in fields(Sample):
        before, after = getattr(early, field.name), getattr(late, field.name)
        spare = SPARE_BYTES if field.name.endswith("bytes") else SPARE_COUNT
        if after > before * (1 + SHARE) + spare:
            found.append(f"{field.name} grew from {before:,} to {after:,}")
    return found


class Churn:
    """Runs one round after the other, each of a random kind."""

    def __init__(self, node: Node, seed: int) -> None:
        self._node = node
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._rounds = (
            self.messages,
            self.expiring,
            self.dead_letters,
            self.transaction,
            self.refused,
            self.web,
            self.megabytes,
        )

    def warm(self) -> None:
        """Run every kind some times: what the broker loads with the first request of a kind is no growth."""
        for _ in range(WARM_ROUNDS):
            for kind in self._rounds:
                kind()

    def round(self) -> None:
        self._chance.choice(self._rounds)()

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        """Half of the clients disconnect without connection.close."""
        client = Client(self._node.port)
        try:
            yield client
            if self._chance.random() < 0.5:
                client.method(commands.Connection.Close(200, "", 0, 0), 0)
                with contextlib.suppress(Gone):
                    client.expect(commands.Connection.CloseOk)
        finally:
            client.close()

    def _name(self) -> str:
        return f"soak-{next(self._numbers)}"

    def _body(self) -> bytes:
        return bytes(self._chance.choice((10, 1_000, 60_000)))

    def messages(self) -> None:
        """A queue is filled, half consumed, and deleted, or left until its connection ends."""
        queue, kind = self._name(), self._chance.choice(("classic", "quorum", "exclusive"))
        with self._client() as client:
            client.confirms()
            arguments: Any = {"x-queue-type": "quorum"} if kind == "quorum" else {}
            client.call(
                commands.Queue.Declare(
                    queue=queue,
                    durable=kind != "exclusive",
                    exclusive=kind == "exclusive",
                    arguments=arguments,
                ),
                commands.Queue.DeclareOk,
            )
            client.call(
                commands.Queue.Bind(queue=queue, exchange="amq.topic", routing_key=f"{queue}.#"),
                commands.Queue.BindOk,
            )
            mode = self._chance.choice((1, 2))
            count = self._chance.randrange(1, 200)
            for number in range(count):
                key = f"{queue}.{number}"
                client.send(
                    frames.message("amq.topic", key, self._body(), delivery_mode=mode, headers={"n": key})
                )
            client.consume(queue, 0)
            last = self._half(client, count)
            client.ack(last, multiple=True)
            if kind != "exclusive":
                client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    @staticmethod
    def _half(client: Client, count: int) -> int:
        """Take half of the deliveries; return the tag of the last one."""
        while True:
            for event in client.receive():
                if isinstance(event, Delivery) and event.tag * 2 >= count:
                    return event.tag

    def expiring(self) -> None:
        """A queue that is deleted by its expiry."""
        with self._client() as client:
            queue = self._name()
            arguments: Any = {"x-expires": 200}
            client.declare(queue, **arguments)
            client.send(frames.message("", queue, self._body(), expiration="50"))
            client.sync(0)

    def dead_letters(self) -> None:
        with self._client() as client:
            source, target = self._name(), self._name()
            client.declare(target, durable=False)
            arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
            client.declare(source, **arguments)
            client.send(frames.message("", source, self._body(), expiration="1", delivery_mode=2) * 20)
            for queue in (source, target):
                client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    def transaction(self) -> None:
        with self._client() as client:
            queue = self._name()
            client.declare(queue)
            client.call(commands.Tx.Select(), commands.Tx.SelectOk)
            client.send(frames.message("", queue, self._body(), delivery_mode=2) * 20)
            if self._chance.random() < 0.5:
                client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    def refused(self) -> None:
        """A channel error, and bytes that are no AMQP."""
        with self._client() as client, contextlib.suppress(ChannelClosed):
            client.count(self._name())
        with socket.create_connection(("127.0.0.1", self._node.port)) as sock:
            sock.sendall(self._chance.randbytes(100))

    def megabytes(self) -> None:
        one_round(self._node, next(self._numbers))

    def web(self) -> None:
        self._node.mqctl("list_queues")


def soak(node: Node, seconds: float, seed: int) -> list[Sample]:
    """Churn for this long; return samples of the whole time."""
    churn = Churn(node, seed)
    churn.warm()
    samples = [sample(node)]
    began = due = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        churn.round()
        if now >= due:
            samples.append(sample(node))
            due = now + SAMPLE_S
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqd-soak-") as directory, Node(Path(directory)) as node:
        samples = soak(node, options.minutes * 60, options.seed)
    each = max(1, len(samples) // PARTS)
    parts = [
        lowest(samples[at : at + each]) for at in range(0, each * PARTS, each) if samples[at : at + each]
    ]
    print("part  memory MiB  disk MiB  descriptors  threads")
    for number, part in enumerate(parts, 1):
        print(
            f"{number:4}  {part.anonymous_bytes / MIB:10.1f}  {part.disk_bytes / MIB:8.1f}  {part.descriptors:11}  "
            f"{part.threads:7}"
        )
    failures = grown(parts[1], parts[-1])
    print("\n".join(failures) or "flat")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
