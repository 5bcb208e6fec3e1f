"""The examples of frameworks in examples/stacks: a worker does what is asked, also what was asked while it
was down. A framework that is not installed is skipped, and so is one of another language if the environment
does not say where to build it (`STACKS`, see `make stacks`), or a program for that is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amqp_server.testing import Broker, start
from conformance_tests.patience import PATIENCE_S

STACKS = Path(__file__).parents[1] / "examples" / "stacks"
#: Time for the downloads of a build, s.
BUILD_S = 900


class Framework(NamedTuple):
    #: What it needs: a Python library, or programs of its language.
    needs: tuple[str, ...]
    worker: list[str]
    #: A statement that sends one task; empty if the worker's command does that with the name of an order.
    send: str = ""
    builds: tuple[list[str], ...] = ()


FRAMEWORKS = {
    "celery": Framework(
        ("celery",),
        ["celery", "--app", "shop", "worker", "--concurrency", "1", "--loglevel", "INFO"],
        "shop.bill.delay({!r})",
    ),
    "dramatiq": Framework(
        ("dramatiq",), ["dramatiq", "shop", "--processes", "1", "--threads", "1"], "shop.bill.send({!r})"
    ),
    "faststream": Framework(
        ("faststream",), ["faststream", "run", "shop:app"], "asyncio.run(shop.order({!r}))"
    ),
    "taskiq": Framework(
        ("taskiq_aio_pika",),
        ["taskiq", "worker", "shop:broker", "--workers", "1"],
        "asyncio.run(shop.order({!r}))",
    ),
    "nestjs": Framework(
        ("npm", "node"),
        ["node", "dist/shop.js"],
        builds=(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], ["npm", "run", "build"]),
    ),
    "spring": Framework(
        ("mvn", "java"), ["java", "-jar", "target/shop.jar"], builds=(["mvn", "-q", "-B", "package"],)
    ),
    "symfony": Framework(("php",), ["php", "shop.php"]),
    "watermill": Framework(("go",), ["./shop"], builds=(["go", "build"],)),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start() as started:
        yield started


def built(name: str) -> Path:
    """Return the directory of a framework, where it is built."""
    framework = FRAMEWORKS[name]
    if framework.send:
        (library,) = framework.needs
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        return STACKS / name
    if "STACKS" not in os.environ:
        pytest.skip("make stacks builds it")
    for program in framework.needs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    directory = Path(os.environ["STACKS"]).absolute() / name
    shutil.copytree(STACKS / name, directory, dirs_exist_ok=True)
    for command in framework.builds:
        subprocess.run(command, cwd=directory, check=True, timeout=BUILD_S)
    return directory


class Stack:
    """One framework with a virtual host of its own, and its worker."""

    def __init__(self, name: str, broker: Broker, directory: Path) -> None:
        framework, home = FRAMEWORKS[name], built(name)
        self._send = framework.send
        self._command = framework.worker
        if self._send:
            self._command = [str(Path(sys.executable).with_name(self._command[0])), *self._command[1:]]
        self._directory = directory if self._send else home
        broker.api("PUT", f"/api/vhosts/{name}", {})
        broker.api("PUT", f"/api/permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        self._environment = {
            **os.environ,
            "AMQP_URL": broker.url().rpartition("/")[0] + f"/{name}",
            "PYTHONPATH": str(home),
        }
        self._log = directory / "log"
        self.worker: subprocess.Popen[bytes] | None = None

    def work(self) -> None:
        with self._log.open("ab") as log:
            self.worker = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._directory,
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
        self._run([sys.executable, "-c", f"import asyncio, shop; {statement}"])

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, env=self._environment, check=True, timeout=PATIENCE_S, cwd=self._directory)

    def send(self, order: str) -> None:
        if self._send:
            self.run(self._send.format(order))
        else:
            self._run([*self._command, order])

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


@pytest.mark.parametrize("stack", FRAMEWORKS, indirect=True)
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
