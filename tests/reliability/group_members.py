"""Members of a consumer group that come and go in all ways, and checks of what they see.

`python -m tests.reliability.group_members URL GROUP PREFETCH HEARTBEAT_S` is a member in a process of its
own, which can be frozen. It prints each delivery as `delivery PARTITION OFFSET again|new` and acks it when
the test lets it go on; when it has lost its place it prints `gone` and joins again.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika
import pika.exceptions

from conformance_tests.patience import PATIENCE_S, open_connection, patient

ROOT = Path(__file__).parents[2]
PERSISTENT = pika.BasicProperties(delivery_mode=2)
ERRORS_MAX = 20
Message = tuple[str, int]


class Record:
    """The messages that all members of a group have seen, in the order of their reports. The group began at
    the first message.

    Nothing is overtaken: within each partition, the messages are seen for the first time in order.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: By partition, the next offset to be seen.
        self.next: defaultdict[str, int] = defaultdict(int)
        self.redelivered = 0
        #: Messages whose acks are on the disks.
        self.done: set[Message] = set()
        self.errors: list[str] = []

    @property
    def count(self) -> int:
        return sum(self.next.values())

    def see(self, who: str, message: Message, *, again: bool) -> None:
        with self.lock:
            partition, offset = message
            due = self.next[partition]
            if message in self.done:
                self._fail(f"{who} gets {message}, which was acked")
            elif offset > due:
                self._fail(f"{who} gets {message} before offset {due}")
            elif offset < due and not again:
                self._fail(f"{who} gets {message} again without the flag")
            self.redelivered += again
            self.next[partition] = max(due, offset + 1)

    def acked(self, messages: list[Message]) -> None:
        with self.lock:
            self.done.update(messages)

    def _fail(self, text: str) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(text)

    def state(self) -> str:
        return f"{self.count} seen: {dict(self.next)}, {len(self.done)} acked, errors: {self.errors}"


class Gone(Exception):
    """The member has closed its connection, and sees nothing any more."""


class Visit:
    """One member from joining to leaving. It acks most messages, some late, gives some back, and leaves in
    one of three ways.
    """

    def __init__(
        self, url: str, group: str, record: Record, seed: str, ends: threading.Event | None = None
    ) -> None:
        self._url = url
        self._group = group
        self._record = record
        self._name = seed
        self._random = random.Random(seed)
        self._ends = ends or threading.Event()
        self._acked: list[Message] = []
        self._late: list[tuple[int, Message]] = []

    def pay(self, messages: int) -> None:
        """Stay for this many messages, or until all members end."""
        with suppress(pika.exceptions.AMQPError, OSError, Gone):
            self._stay(messages)

    def _stay(self, messages: int) -> None:
        connection = open_connection(self._url)
        channel: Any = connection.channel()
        channel.basic_qos(prefetch_count=self._random.choice([1, 5, 50]))
        for method, properties, _ in channel.consume(self._group, inactivity_timeout=0.05):
            if method is not None:
                self._take(channel, method, properties)
                messages -= 1
            elif self._late:
                # The prefetch may be full of late messages.
                self._ack_late(channel)
            if self._ends.is_set() or messages <= 0:
                break
        how = "ack" if self._ends.is_set() else self._random.choice(["close", "ack", "hang up"])
        if how == "hang up":
            connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
            raise Gone
        if how == "ack":
            # A cancelled consumer may still ack the messages that it holds.
            channel.cancel()
            self._ack_late(channel)
            self._sync(channel)
        connection.close()

    def _take(self, channel: Any, method: Any, properties: Any) -> None:
        chance = self._random.random()
        message = (properties.headers["x-stream"], properties.headers["x-stream-offset"])
        self._record.see(self._name, message, again=method.redelivered)
        if chance < 0.05:
            self._late.append((method.delivery_tag, message))
        elif chance < 0.08:
            channel.basic_nack(method.delivery_tag)
        else:
            channel.basic_ack(method.delivery_tag)
            self._acked.append(message)
        if chance > 0.95 or len(self._late) >= 4:
            self._ack_late(channel)
            self._sync(channel)

    def _ack_late(self, channel: Any) -> None:
        late, self._late = self._late, []
        for tag, message in late:
            channel.basic_ack(tag)
            self._acked.append(message)

    def _sync(self, channel: Any) -> None:
        """The answer comes when everything before it is on the disks."""
        channel.queue_declare(self._group, passive=True)
        self._record.acked(self._acked)
        self._acked = []


class Crowd:
    """This many members at a time. For each that leaves, another one joins, at a random node."""

    def __init__(
        self, urls: Callable[[], list[str]], group: str, record: Record, seed: int, size: int = 3
    ) -> None:
        self._urls = urls
        self._group = group
        self._record = record
        self._seed = seed
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(place,), daemon=True) for place in range(size)
        ]

    def _run(self, place: int) -> None:
        chance = random.Random(f"{self._seed} {place}")
        visits = 0
        while not self._ends.is_set():
            visits += 1
            url = chance.choice(self._urls())
            visit = Visit(url, self._group, self._record, f"{self._seed} {place} {visits}", self._ends)
            visit.pay(chance.choice([5, 20, 80]))
            # Nodes may be down.
            time.sleep(0.01)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


class Publisher:
    """Publishes numbered messages to a super stream; keys spread them over the partitions. All are
    confirmed.
    """

    def __init__(self, super_stream: str) -> None:
        self._super_stream = super_stream
        self.count = 0

    def publish(self, url: str, count: int) -> None:
        connection = open_connection(url)
        channel = connection.channel()
        channel.tx_select()
        for number in range(self.count, self.count + count):
            body = b"%d " % number + bytes(300)
            channel.basic_publish(self._super_stream, f"key {number}", body, PERSISTENT)
        channel.tx_commit()
        connection.close()
        self.count += count


class Process:
    """A member in a process of its own. It acks each message after the message is recorded, and joins again
    when it is cancelled.
    """

    def __init__(self, url: str, group: str, record: Record, *, prefetch: int, heartbeat_s: int = 0) -> None:
        self._record = record
        #: The number of messages in all, and since the process was thawed; and how often it was cancelled.
        self.deliveries = self.since = self.cancels = 0
        self._frozen = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, url, group, str(prefetch), str(heartbeat_s)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None and self._process.stdin is not None
        for line in self._process.stdout:
            word, *rest = line.split()
            if word == "gone":
                self.cancels += 1
                self._frozen = False
                self.since = 0
                continue
            self.deliveries += 1
            self.since += 1
            if not self._frozen:
                # After a freeze, the messages in its buffers were taken from it, and others have seen them.
                partition, offset, flag = rest
                self._record.see("the process", (partition, int(offset)), again=flag == "again")
            with suppress(BrokenPipeError):
                self._process.stdin.write("go on\n")
                self._process.stdin.flush()

    def freeze(self) -> None:
        self._frozen = True
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def code(self) -> int | None:
        """Return the exit code, once the process has ended."""
        return self._process.poll()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(PATIENCE_S)
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with suppress(BrokenPipeError):
                end.close()


def stay(url: str, group: str, prefetch: int, heartbeat_s: int) -> None:
    """Be one member until the broker cancels it. Raises AMQPError."""
    parameters = patient(pika.URLParameters(url))
    parameters.heartbeat = heartbeat_s
    connection = pika.BlockingConnection(parameters)
    channel: Any = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    for method, properties, _ in channel.consume(group):
        headers = properties.headers
        flag = "again" if method.redelivered else "new"
        print("delivery", headers["x-stream"], headers["x-stream-offset"], flag, flush=True)
        if not sys.stdin.readline():
            return
        channel.basic_ack(method.delivery_tag)
    # Late acks must not have ended the channel.
    channel.queue_declare(group, passive=True)
    connection.close()


def main() -> None:
    url, group, prefetch, heartbeat_s = sys.argv[1:]
    while True:
        try:
            stay(url, group, int(prefetch), int(heartbeat_s))
        except (pika.exceptions.AMQPHeartbeatTimeout, pika.exceptions.StreamLostError):
            # A broker that has heard no heartbeat ends the connection.
            if heartbeat_s == "0":
                raise
        print("gone", flush=True)


if __name__ == "__main__":
    main()
