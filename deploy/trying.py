"""Whether a wheel is what it says: installed in a fresh environment, it serves a client and an operator."""

from __future__ import annotations

import os
import re
import select
import subprocess
import tempfile
import time
from pathlib import Path

from deploy import compiled

#: Seconds for each step.
STEP_S = 60
#: What examples/hello.py needs.
CLIENT = "pika>=1.3,<2"
BUILD = "from amqp_server.build import BUILD; from quorum_queue.machine import machine; print(BUILD, machine.__file__)"


class Failed(Exception):
    """A step that failed, and what it said."""


def run(*command: str, within_s: float = STEP_S) -> str:
    """Return what a command prints. Raises Failed."""
    try:
        # Without the tree's modules, wherever this is started.
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within_s,
            check=False,
            cwd=Path(tempfile.gettempdir()),
            env=environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from None
    if done.returncode:
        raise Failed(f"{' '.join(command)}: code {done.returncode}: {done.stdout.strip()[-2000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MQD_", "PYTHONPATH"))}


def try_wheel(python: str, wheel: Path) -> str:
    """Install the wheel and try it; return what was seen. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="mqd-try-") as name:
        place = Path(name, "environment")
        run(python, "-m", "venv", str(place))
        install = [str(place / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        run(*install, "--quiet", str(wheel), CLIENT, within_s=10 * STEP_S)
        return try_programs(place / "bin", "compiled" if compiled.is_compiled(wheel) else "pure")


def try_programs(programs: Path, build: str) -> str:
    """Start mqd, send a message through it, ask for its state, and stop it; return its ready line."""
    seen, _, file = run(str(programs / "python"), "-c", BUILD).strip().partition(" ")
    if seen != build or file.endswith(".py") != (build == "pure"):
        raise Failed(f"this should be {build}, and is {seen}: {file}")
    with tempfile.TemporaryDirectory(prefix="mqd-try-data-") as data:
        try:
            return _serve(programs, Path(data))
        except Failed as failed:
            log = Path(data, "log").read_text(errors="replace")
            raise Failed(f"{failed}; the end of mqd's log: {log[-2000:]}") from None


def _serve(programs: Path, place: Path) -> str:
    command = [str(programs / "mqd"), "--data-dir", str(place / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with (place / "log").open("wb") as log:
        node = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(), cwd=place
        )
    try:
        line = _ready(node)
        amqp, http = (_port(line, name) for name in ("amqp", "http"))
        told = run(str(programs / "python"), str(compiled.ROOT / "examples" / "hello.py"), amqp)
        if told != "received: Hello, world!\n":
            raise Failed(f"examples/hello.py printed {told!r}")
        run(str(programs / "mqctl"), "--url", f"http://127.0.0.1:{http}", "status")
        node.terminate()
        if node.wait(STEP_S):
            raise Failed(f"mqd ended with code {node.returncode}")
    except subprocess.TimeoutExpired:
        raise Failed(f"mqd did not stop within {STEP_S} s of SIGTERM") from None
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()
    return line


def _ready(node: subprocess.Popen[str]) -> str:
    assert node.stdout is not None
    until = time.monotonic() + STEP_S
    while time.monotonic() < until:
        if select.select([node.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            line = node.stdout.readline()
            if line.startswith("mqd ready "):
                return line.strip()
            if not line:
                raise Failed("mqd ended before it was ready")
    raise Failed(f"mqd was not ready within {STEP_S} s")


def _port(line: str, name: str) -> str:
    found = re.search(rf"\b{name}=127\.0\.0\.1:(\d+)", line)
    if found is None:
        raise Failed(f"the ready line has no port of {name}: {line}")
    return found[1]
