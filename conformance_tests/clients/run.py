"""Drive a broker with stock clients of four languages: `python conformance_tests/clients/run.py --help`."""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

# Run as a script, the root of the repository is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from conformance_tests.clients.mqd_process import BrokerFailed, MqdProcess, RestartDoor, find_mqd
from conformance_tests.clients.toolchain import HERE, TOOLCHAINS, PrepareFailed, Program, Toolchain

# The programs give up by themselves a little earlier, and say where they hung.
PROGRAM_SECONDS = 240
BROKER_SECONDS = 60
#: Programs that use the management API.
MANAGEMENT = ("tools", "rabbit-hole", "hop")


@dataclass(frozen=True)
class Broker:
    url: str
    #: URL of its management API; if empty, the tools that use it are left out.
    http_url: str
    restart_command: str
    #: Whether the broker has consumer groups of streams.
    has_groups: bool


@dataclass
class Outcome:
    client: str
    language: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    # The reason why it did not run to its end, if any.
    trouble: str = ""
    missing: bool = False

    @property
    def green(self) -> bool:
        return not self.failed and not self.trouble and bool(self.passed)


def main() -> int:
    options = parse_options()
    chosen = choose(options.only)
    if not chosen:
        print(f"nothing is called {options.only}; there are: {', '.join(all_names())}", file=sys.stderr)
        return 2
    ready = [prepared(toolchain, options.cache) for toolchain in chosen]
    if not any(outcome is None for outcome in ready):
        return report([outcome for outcome in ready if outcome], options.require_all)
    outcomes = []
    try:
        with broker_of(options) as broker:
            for toolchain, trouble in zip(chosen, ready, strict=True):
                if trouble is not None:
                    outcomes.append(trouble)
                    continue
                for program in toolchain.programs(options.cache):
                    if not wanted(options.only, toolchain, program):
                        continue
                    if program.name in MANAGEMENT and not broker.http_url:
                        print(f"skip {program.name}: --http-url is not given")
                        outcomes.append(Outcome(program.name, toolchain.name, skipped=1, missing=True))
                    else:
                        wait_for(broker.url)
                        outcomes.append(run_program(program, toolchain, broker, options.cache))
    except BrokerFailed as error:
        print(f"broker: {error}", file=sys.stderr)
        return report(outcomes, options.require_all) or 1
    return report(outcomes, options.require_all)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Drive a broker with stock AMQP clients as they come.")
    parser.add_argument("--amqp-url", help="the broker to judge; without it mqd is started on free ports")
    parser.add_argument("--http-url", help="its management API, http://guest:guest@127.0.0.1:15672")
    parser.add_argument("--restart-cmd", help="restarts that broker and returns when it serves again")
    parser.add_argument(
        "--consumer-groups", action="store_true", help="that broker has mqd's consumer groups"
    )
    parser.add_argument("--only", type=lambda text: text.split(","), help="languages or clients: node,pika,…")
    parser.add_argument("--require-all", action="store_true", help="a skipped program or check is an error")
    parser.add_argument("--kill", action="store_true", help="restart our own mqd by kill -9, not SIGTERM")
    parser.add_argument("--cache", type=Path, default=HERE / ".cache", help="where packages and builds go")
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    return options


def all_names() -> list[str]:
    programs = [program.name for toolchain in TOOLCHAINS for program in toolchain.programs(HERE)]
    return [*(toolchain.name for toolchain in TOOLCHAINS), *programs]


def choose(only: list[str] | None) -> list[Toolchain]:
    if only is not None and not set(only) <= set(all_names()):
        return []
    return [
        toolchain
        for toolchain in TOOLCHAINS
        if any(wanted(only, toolchain, program) for program in toolchain.programs(HERE))
    ]


def wanted(only: list[str] | None, toolchain: Toolchain, program: Program) -> bool:
    return only is None or toolchain.name in only or program.name in only


def prepared(toolchain: Toolchain, cache: Path) -> Outcome | None:
    """Return None if its programs can run, otherwise the reason."""
    missing = toolchain.missing()
    if missing is not None:
        print(f"skip {toolchain.name}: {missing}")
        return Outcome("-", toolchain.name, trouble=missing, missing=True)
    try:
        toolchain.prepare(cache)
    except PrepareFailed as error:
        print(f"FAIL {toolchain.name}: could not be prepared: {error}")
        return Outcome("-", toolchain.name, trouble="could not be prepared")
    return None


@contextmanager
def broker_of(options: argparse.Namespace) -> Iterator[Broker]:
    if options.amqp_url:
        http_url = options.http_url or ""
        yield Broker(options.amqp_url, http_url, options.restart_cmd or "", options.consumer_groups)
        return
    executable = find_mqd()
    if executable is None:
        raise BrokerFailed("no mqd beside this interpreter or on the PATH; install it, or give --amqp-url")
    with tempfile.TemporaryDirectory(prefix="mqd-clients-") as name:
        directory = Path(name)
        restart_signal = signal.SIGKILL if options.kill else signal.SIGTERM
        mqd = MqdProcess(executable, directory, restart_signal=restart_signal)
        mqd.start()
        try:
            with RestartDoor(mqd, directory / "restart"):
                script = HERE / "restart.py"
                command = shlex.join([sys.executable, str(script), str(directory / "restart")])
                yield Broker(mqd.url, mqd.http_url, command, has_groups=True)
        finally:
            mqd.stop()


def wait_for(url: str) -> None:
    """A program that died during its restart of the broker must not fail the next program."""
    address = urlsplit(url)
    deadline = time.monotonic() + BROKER_SECONDS
    while True:
        try:
            socket.create_connection((address.hostname, address.port or 5672), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{address.hostname}:{address.port} takes no connections") from None
            time.sleep(0.2)


def run_program(program: Program, toolchain: Toolchain, broker: Broker, cache: Path) -> Outcome:
    outcome = Outcome(program.name, toolchain.name)
    summary = ""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            program.command,
            cwd=program.directory,
            env={
                **os.environ,
                **toolchain.environment(cache),
                "AMQP_URL": broker.url,
                "HTTP_URL": broker.http_url,
                "RESTART_CMD": broker.restart_command,
                "CONSUMER_GROUPS": "1" if broker.has_groups else "",
                "PYTHONUNBUFFERED": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # A separate process group, so that no process that it started outlives the limit.
            start_new_session=True,
        )
        limit = threading.Timer(PROGRAM_SECONDS, end_group, [process])
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            summary = line.strip()
            print(f"{program.name:14} {summary}", flush=True)
            count(summary, outcome)
        code = process.wait()
        limit.cancel()
        outcome.seconds = time.monotonic() - started
        outcome.trouble = trouble_of(code, summary, outcome)
        if not outcome.green:
            errors.seek(0)
            sys.stdout.writelines(f"{program.name:14} | {line}" for line in errors.readlines()[-20:])
    return outcome


def count(line: str, outcome: Outcome) -> None:
    word = line.partition(" ")[0]
    outcome.passed += word == "ok"
    outcome.failed += word == "FAIL"
    outcome.skipped += word == "skip"


def trouble_of(code: int, summary: str, outcome: Outcome) -> str:
    if outcome.seconds >= PROGRAM_SECONDS:
        return f"more than {PROGRAM_SECONDS} s"
    if summary != f"{outcome.passed} passed, {outcome.failed} failed":
        return f"ended early with code {code}"
    if (code == 0) != (outcome.failed == 0):
        return f"code {code} does not fit"
    return ""


def end_group(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def report(outcomes: list[Outcome], require_all: bool) -> int:
    print(f"\n{'client':14} {'language':10} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7}")
    for outcome in outcomes:
        print(
            f"{outcome.client:14} {outcome.language:10} {outcome.passed:6} {outcome.failed:6} "
            f"{outcome.skipped:7} {outcome.seconds:7.1f}  {outcome.trouble}".rstrip()
        )
    broken = [outcome for outcome in outcomes if not outcome.green and not outcome.missing]
    incomplete = [outcome for outcome in outcomes if outcome.missing or outcome.skipped]
    if require_all and incomplete:
        print("--require-all: not everything ran")
        return 1
    if not any(outcome.green for outcome in outcomes):
        print("nothing ran to a good end")
        return 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
