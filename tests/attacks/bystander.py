"""python -m tests.attacks.bystander AMQP_PORT HTTP_PORT PID: a small client whose latency is watched during
an attack.

It publishes a message every PERIOD_S and consumes it, logs in anew and asks for `/health` now and then. It
ends when its standard input ends, and prints its measurements as JSON. It is a process of its own, so that no
attacker shares its interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import sys
import time
import urllib.request
from collections import deque
from dataclasses import asdict, dataclass, field

from pamqp import commands

from tests.reliability.client import Address, Client, Delivery, Gone

PERIOD_S = 0.005
#: Interval of logins and health probes.
SELDOM_S = 0.5
#: Anything that takes longer is a failure.
PATIENCE_S = 20.0
QUEUE = "bystander"


@dataclass
class Seen:
    """Latencies in ms, each from the moment at which the message or request was due."""

    messages: list[float] = field(default_factory=list)
    #: CPU time of the node's loop while a message was under way, in ms: other load on the machine does not
    #: change it.
    loop: list[float] = field(default_factory=list)
    logins: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Bystander:
    def __init__(self, amqp: int, http: int, pid: int) -> None:
        self.seen = Seen()
        #: Statistics of the process's first thread, which runs the loop.
        self._used = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)
        self._amqp, self._http = amqp, http
        self._client = Client(amqp, timeout_s=PATIENCE_S)
        self._client.declare(QUEUE, durable=False)
        self._client.call(commands.Basic.Consume(queue=QUEUE, no_ack=True), commands.Basic.ConsumeOk)
        self._address = Address("", QUEUE, persistent=False)
        #: Messages under way, oldest first: when each was due, and the loop's CPU time before it in ms.
        self._under_way: deque[tuple[float, float]] = deque()

    def run(self) -> None:
        """Run until standard input ends."""
        due = seldom = time.monotonic()
        while not self._ended(due):
            now = time.monotonic()
            if now >= seldom:
                self._take_all()
                self._seldom()
                seldom = now + SELDOM_S
                # Logins are measured separately.
                due = time.monotonic()
            elif now >= due:
                self._publish(due)
                due += PERIOD_S
        self._take_all()

    def _ended(self, due: float) -> bool:
        """Take the deliveries that come until `due`; True if standard input has ended."""
        while True:
            ready = select.select([sys.stdin, self._client.sock], [], [], max(0.0, due - time.monotonic()))[0]
            if self._client.sock in ready:
                self._take(0.0)
            if sys.stdin in ready or not ready:
                return bool(ready)

    def _publish(self, due: float) -> None:
        """Messages are published when they are due, whether the earlier ones have come or not: if one takes
        longer than PERIOD_S, a client that waited for each of them would measure its own queue, too.
        """
        if self._under_way and due - self._under_way[0][0] > PATIENCE_S:
            raise TimeoutError(f"a message did not come within {PATIENCE_S} s")
        self._under_way.append((due, self._loop_ms()))
        self._client.send(self._address.message(struct.pack(">d", due)))

    def _take(self, wait_s: float) -> None:
        for event in self._client.receive(wait_s):
            if isinstance(event, Delivery):
                due, used = self._under_way.popleft()
                assert struct.unpack(">d", event.body)[0] == due
                self.seen.messages.append((time.monotonic() - due) * 1e3)
                self.seen.loop.append(self._loop_ms() - used)

    def _take_all(self) -> None:
        """Wait for the messages that are under way."""
        while self._under_way:
            before = len(self._under_way)
            self._take(PATIENCE_S)
            if len(self._under_way) == before:
                raise TimeoutError(f"a message did not come within {PATIENCE_S} s")

    def _loop_ms(self) -> float:
        return int(os.pread(self._used, 64, 0).split()[0]) / 1e6

    def _seldom(self) -> None:
        began = time.monotonic()
        try:
            with contextlib.closing(Client(self._amqp, timeout_s=PATIENCE_S)):
                self.seen.logins.append((time.monotonic() - began) * 1e3)
        except (Gone, OSError) as error:
            self.seen.failures.append(f"login: {error!r}")
        began = time.monotonic()
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._http}/health", timeout=PATIENCE_S
            ) as answer:
                answer.read()
            self.seen.probes.append((time.monotonic() - began) * 1e3)
        except OSError as error:
            self.seen.failures.append(f"health: {error!r}")


def main() -> None:
    bystander = Bystander(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print("ready", flush=True)
    try:
        bystander.run()
    except (Gone, OSError) as error:
        bystander.seen.failures.append(f"messages: {error!r}")
    print(json.dumps(asdict(bystander.seen)), flush=True)


if __name__ == "__main__":
    main()
