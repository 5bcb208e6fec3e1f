"""The framework of every Python client program: named checks, one line each, and the broker's restart."""

import asyncio
import faulthandler
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

AMQP_URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
HTTP_URL = os.environ.get("HTTP_URL", "http://guest:guest@127.0.0.1:15672")
RESTART_CMD = os.environ.get("RESTART_CMD", "")
CONSUMER_GROUPS = os.environ.get("CONSUMER_GROUPS", "")

PROGRAM_SECONDS = 230
WAIT_SECONDS = 40
RESTART_SECONDS = 130

# Processes that must not outlive a program that hangs, such as its own workers.
at_timeout: list[Callable[[], None]] = []


def _give_up() -> None:
    """A client that hangs has failed: report where it hung, then exit."""
    print(f"FAIL program timed out after {PROGRAM_SECONDS} s", flush=True)
    faulthandler.dump_traceback()
    for end in at_timeout:
        end()
    os._exit(1)


_watchdog = threading.Timer(PROGRAM_SECONDS, _give_up)
_watchdog.daemon = True
_watchdog.start()


class CheckFailed(Exception):
    pass


def equal(got: object, want: object, what: str) -> None:
    if got != want:
        raise CheckFailed(f"{what}: got {got!r}, want {want!r}")


def that(holds: object, what: str) -> None:
    if not holds:
        raise CheckFailed(what)


def contains(text: object, part: str) -> None:
    if part not in str(text):
        raise CheckFailed(f"{part!r} not in {str(text)!r}")


def wait_until(done: Callable[[], object], step: Callable[[], object], what: str) -> None:
    """Call `step`, which waits a little for the broker, until `done` holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise CheckFailed(f"timed out: {what}")
        step()


STREAM = {"x-queue-type": "stream"}
#: The number of messages that the programs publish to a stream, how many of them the first member of a group
#: acks, and the members' prefetch.
STREAM_MESSAGES, GROUP_ACKS, STREAM_PREFETCH = 50, 30, 10


def group_of(stream: str) -> dict[str, str]:
    """Arguments of a consumer group that begins with the first message of a stream."""
    return {"x-queue-type": "stream-group", "x-stream": stream, "x-stream-offset": "first"}


def other_url(*, user: str = "", password: str = "", vhost: str = "") -> str:
    """AMQP_URL with other credentials or another virtual host."""
    parts = urlsplit(AMQP_URL)
    login = f"{user or parts.username or 'guest'}:{password or parts.password or 'guest'}"
    path = f"/{vhost}" if vhost else parts.path
    return urlunsplit((parts.scheme, f"{login}@{parts.hostname}:{parts.port or 5672}", path, "", ""))


def restart_broker() -> None:
    done = subprocess.run(
        RESTART_CMD, shell=True, check=False, capture_output=True, text=True, timeout=RESTART_SECONDS
    )
    if done.returncode != 0:
        raise CheckFailed(f"RESTART_CMD gave {done.returncode}: {done.stderr.strip()[-300:]}")


class Names:
    """Names for this run only, so that programs can share a broker."""

    def __init__(self, client: str) -> None:
        self.prefix = f"clients.{client}.{uuid.uuid4().hex[:8]}"

    def __call__(self, noun: str) -> str:
        return f"{self.prefix}.{noun}"


class Checks:
    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def run(
        self, check: Callable[[], None], *, needs_restart: bool = False, needs_groups: bool = False
    ) -> None:
        name = self._name(check)
        if self._skipped(name, needs_restart, needs_groups):
            return
        try:
            check()
        except Exception as error:  # noqa: BLE001 - a check may fail in any way that a client can
            self._fail(name, error)
        else:
            self._pass(name)

    async def run_async(
        self, check: Callable[[], Awaitable[None]], *, needs_restart: bool = False, needs_groups: bool = False
    ) -> None:
        name = self._name(check)
        if self._skipped(name, needs_restart, needs_groups):
            return
        try:
            await asyncio.wait_for(check(), RESTART_SECONDS if needs_restart else WAIT_SECONDS)
        except Exception as error:  # noqa: BLE001 - a check may fail in any way that a client can
            self._fail(name, error)
        else:
            self._pass(name)

    def finish(self) -> int:
        self._say(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0

    def _skipped(self, name: str, needs_restart: bool, needs_groups: bool) -> bool:
        lacking = [
            variable
            for variable, value, needed in (
                ("RESTART_CMD", RESTART_CMD, needs_restart),
                ("CONSUMER_GROUPS", CONSUMER_GROUPS, needs_groups),
            )
            if needed and not value
        ]
        if lacking:
            self._say(f"skip {name} {lacking[0]} is not set")
        return bool(lacking)

    def _name(self, check: Callable[..., object]) -> str:
        return check.__name__.strip("_").replace("_", "-")

    def _pass(self, name: str) -> None:
        self.passed += 1
        self._say(f"ok {name}")

    def _fail(self, name: str, error: BaseException) -> None:
        self.failed += 1
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        self._say(f"FAIL {name} {reason[:400]}")

    def _say(self, line: str) -> None:
        print(line, flush=True)


def exit_with(code: int) -> None:
    """Exit without joining a client's threads, which may hang after a failed check."""
    sys.stdout.flush()
    os._exit(code)
