"""The examples of frameworks in examples/stacks: a worker does what is asked, also what was asked while it
was down. A framework that is not installed is skipped.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqp_server.testing import Broker, start
from conformance_tests.patience import PATIENCE_S

STACKS = Path(__file__).parents[1] / "examples" / "stacks"
#: The library, the worker's command, and the program that sends one task.
COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "celery": ("celery", ["celery", "--app", "shop", "worker", "--concurrency", "1", "--loglevel", "INFO"], "shop.bill.delay({!r})"),
    "dramatiq": ("dramatiq", ["dramatiq", "shop", "--processes", "1", "--threads", "1"], "shop.bill.send({!r})"),
    "faststream": ("faststream", ["faststream", "run", "shop:app"], "asyncio.run(shop.order({!r}))"),
    "taskiq": ("taskiq_aio_pika", ["taskiq", "worker", "shop:broker", "--workers", "1"], "asyncio.run(shop.order({!r}))"),
}  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start() as started:
        yield started


class Stack:
    """One framework with a virtual host of its own, and its worker."""

    def __init__(self, name: str, broker: Broker, directory: Path) -> None:
        library, command, self._send = COMMANDS[name]
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        program = Path(sys.executable).with_name(command[0])
        self._command = [str(program), *command[1:]]
        broker.api("PUT", f"/api/vhosts/{name}", {})
        broker.api("PUT", f"/api/permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        self._environment = {
            **os.environ,
            "AMQP_URL": broker.url().rpartition("/")[0] + f"/{name}",
            "PYTHONPATH": str(STACKS / name),
        }
        self._log = directory / "log"
        self.worker: subprocess.Popen[bytes] | None = None

    def work(self) -> None:
        with self._log.open("ab") as log:
            self.worker = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._log.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A kill must reach the processes of its pool, too.
                start_new_session=True,
            )

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.worker is not None:
            os.killpg(self.worker.pid, number)
            self.worker.wait(PATIENCE_S)
            self.worker = None

    def run(self, statement: str) -> None:
        program = f"import asyncio, shop; {statement}"
        subprocess.run(
            [sys.executable, "-c", program],
            env=self._environment,
            check=True,
            timeout=PATIENCE_S,
            cwd=self._log.parent,
        )

    def send(self, order: str) -> None:
        self.run(self._send.format(order))

    def done(self, order: str) -> None:
        """Wait until the worker says that it has done this."""
        deadline = time.monotonic() + PATIENCE_S
        while f"billed {order}" not in self._log.read_text(errors="replace"):
            assert time.monotonic() < deadline, self._log.read_text(errors="replace")[-3000:]
            time.sleep(0.05)


@pytest.fixture
def stack(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[Stack]:
    made = Stack(request.param, broker, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("stack", COMMANDS, indirect=True)
def test_tasks_are_done_also_those_that_were_sent_while_no_worker_was_there(stack: Stack) -> None:
    stack.work()
    stack.send("order-1")
    stack.done("order-1")
    stack.end()
    stack.send("order-2")
    stack.work()
    stack.done("order-2")


@pytest.mark.parametrize("stack", ["celery"], indirect=True)
def test_celery_leaves_later_tasks_in_the_broker(stack: Stack, broker: Broker) -> None:
    """Otherwise they would take up the worker's prefetch until they are due."""
    stack.work()
    stack.send("first")
    stack.done("first")
    stack.run("[shop.bill.apply_async((f'far-{n}',), countdown=3600) for n in range(10)]")
    stack.run("shop.bill.apply_async(('soon',), countdown=2)")
    stack.send("now")
    stack.done("now")
    stack.done("soon")
    queues: list[dict[str, Any]] = broker.api("GET", "/api/queues/celery")
    waiting = sum(queue["messages"] for queue in queues if queue["name"].startswith("celery_delayed_"))
    assert waiting == 10
    own = next(queue for queue in queues if queue["name"] == "shop")
    assert (own["type"], own["messages"]) == ("quorum", 0)
