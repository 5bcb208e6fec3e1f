"""A group over a super stream of three nodes, with members of many client libraries, under all kinds of
faults: `python -m tests.cluster.group_storm.storm --seed N --seconds 60`.

Members come, go, are killed and are frozen for longer than their heartbeats allow; nodes are killed, leaders
change, and the super stream grows. The judge reads the members' reports of every delivery. Libraries whose
tools are missing are left out.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from conformance_tests.clients.toolchain import HERE as CLIENTS
from conformance_tests.clients.toolchain import TOOLCHAINS
from conformance_tests.patience import PATIENCE_S, open_connection
from tests.cluster.group_storm.judge import Judge
from tests.cluster.group_storm.telling import partition_of
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
STREAM, GROUP, LETTERS = "orders", "billing", "letters"
PARTITIONS = 4
HEARTBEAT_S = 2
#: Long enough for the broker to have given up a frozen member.
FROZEN_S = 4 * HEARTBEAT_S
#: A member that a busy machine delays does not count as stuck.
TIMEOUT_MS = 12_000
#: Messages that are published in one transaction.
TRANSACTION = 20


class Libraries:
    """How to start a member of each library."""

    def __init__(self, cache: Path, wanted: Sequence[str]) -> None:
        self.commands: dict[str, list[str]] = {"pika": _module("pika_member")}
        self._environment: dict[str, str] = {}
        for toolchain in TOOLCHAINS:
            if toolchain.missing() is None and (not wanted or toolchain.name in wanted):
                toolchain.prepare(cache)
                self._add(toolchain.name, cache)

    def _add(self, language: str, cache: Path) -> None:
        if language == "python":
            python = next(iter(TOOLCHAINS[0].programs(cache))).command[0]
            for name in ("aio_pika_member", "kombu_member", "amqpstorm_member"):
                self.commands[name.removesuffix("_member")] = _module(name, python)
        elif language == "node":
            self._environment["STORM_MODULES"] = str(CLIENTS / "node")
            self.commands["node"] = ["node", str(HERE / "member.js")]
        elif language == "go":
            built = cache / "group-member"
            environment = os.environ | dict(
                next(each for each in TOOLCHAINS if each.name == "go").environment(cache)
            )
            subprocess.run(
                ["go", "build", "-o", str(built), "."], cwd=HERE / "go", env=environment, check=True
            )
            self.commands["go"] = [str(built)]
        elif language == "java":
            path = ":".join(
                str(each) for each in sorted((CLIENTS / "java" / "target" / "dependency").glob("*.jar"))
            )
            classes = cache / "group-member-java"
            subprocess.run(
                ["javac", "-cp", path, "-d", str(classes), str(HERE / "java" / "Member.java")], check=True
            )
            self.commands["java"] = [
                "java",
                "-Xmx96m",
                "-XX:+UseSerialGC",
                "-cp",
                f"{path}:{classes}",
                "Member",
            ]

    def start(self, library: str, environment: dict[str, str], log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.commands[library],
            cwd=ROOT,
            env=os.environ | self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _module(name: str, python: str = sys.executable) -> list[str]:
    return [python, "-m", f"{__package__}.{name}"]


class Process:
    def __init__(self, name: str, library: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.library = library
        self.process = process
        self.thaws_at = 0.0


class Storm:
    def __init__(
        self, cluster: MqdCluster, libraries: Libraries, directory: Path, seed: int, *, members: int, may: str
    ) -> None:
        self.cluster = cluster
        self.libraries = libraries
        self.chance = random.Random(seed)
        self.seed = seed
        self.judge = Judge(gaps="no_ack" in may)
        self.may = may
        self._record = directory / f"record-{seed}"
        self._record.touch()
        self._end = directory / f"end-{seed}"
        self._urls = directory / f"urls-{seed}"
        self._log = (directory / f"members-{seed}.log").open("ab")
        self._writer = os.open(self._record, os.O_WRONLY | os.O_APPEND)
        self.stream, self.group, self.letters = (f"{each}-{seed}" for each in (STREAM, GROUP, LETTERS))
        self._wanted = members
        self._started: set[str] = set()
        self.processes: list[Process] = []
        self._count = 0
        self.partitions = PARTITIONS
        #: How often the super stream was declared anew. Each message carries it. See judge.py.
        self.epoch = 0
        #: The holder publishes a transaction, or there is no super stream.
        self._transaction = threading.Lock()
        self.down: dict[str, float] = {}
        self._publishing = True
        self.published = 0
        self.acts: dict[str, int] = {}
        self._declare()

    def tell(self, *words: str) -> None:
        os.write(self._writer, (" ".join(("*", *words)) + "\n").encode())

    def url(self, name: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.cluster.port(name)}/"

    def up(self) -> list[str]:
        return [name for name in self.cluster.names if name not in self.down]

    def _declare(self) -> None:
        connection = open_connection(self.url("n1"))
        channel = connection.channel()
        channel.exchange_declare(
            self.stream, "x-super-stream", durable=True, arguments={"x-partitions": PARTITIONS}
        )
        channel.queue_declare(self.letters, durable=True, arguments={"x-queue-type": "stream"})
        group = {
            "x-queue-type": "stream-group",
            "x-stream": self.stream,
            "x-stream-offset": "first",
            "x-consumer-timeout": TIMEOUT_MS,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.letters,
        }
        channel.queue_declare(self.group, durable=True, arguments=group)
        connection.close()

    # -- members ---------------------------------------------------------------------------------------------

    def _tell_urls(self) -> None:
        new = self._urls.with_suffix(".new")
        new.write_text("\n".join(self.url(each) for each in self.up()))
        new.replace(self._urls)

    def fill(self) -> None:
        """Start members up to the wanted number."""
        self._tell_urls()
        for each in list(self.processes):
            if each.process.poll() is not None:
                self.processes.remove(each)
        while len(self.processes) < self._wanted:
            self._count += 1
            names = list(self.libraries.commands)
            library = names[self._count % len(names)]
            name = f"{library}{self._count}"
            environment = {
                "STORM_GROUP": self.group,
                "STORM_URLS": str(self._urls),
                "STORM_NAME": name,
                "STORM_SEED": f"{self.seed} {self._count}",
                "STORM_HEARTBEAT": str(HEARTBEAT_S),
                "STORM_MAY": self.may,
                "STORM_RECORD": str(self._record),
                "STORM_END": str(self._end),
            }
            self._started.add(library)
            process = self.libraries.start(library, environment, self._log)
            self.processes.append(Process(name, library, process))

    def kill_member(self) -> None:
        each = self.chance.choice(self.processes)
        # The member's last lines come before this one.
        os.killpg(each.process.pid, signal.SIGSTOP)
        self.tell("kill", each.name)
        os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
        self.processes.remove(each)
        self.fill()

    def freeze_member(self) -> None:
        running = [each for each in self.processes if not each.thaws_at]
        if len(running) > 2:
            each = self.chance.choice(running)
            each.thaws_at = time.monotonic() + FROZEN_S
            os.killpg(each.process.pid, signal.SIGSTOP)
            self.tell("doom", each.name)

    def thaw(self) -> None:
        """A member that is thawed earlier may not have lost its place."""
        for each in self.processes:
            if each.thaws_at and time.monotonic() >= each.thaws_at:
                each.thaws_at = 0.0
                self.tell("lose", each.name)
                with suppress(ProcessLookupError):
                    os.killpg(each.process.pid, signal.SIGCONT)

    # -- nodes -----------------------------------------------------------------------------------------------

    def kill_node(self) -> None:
        if self.down:
            return
        name = self.chance.choice(self.cluster.names)
        if self.chance.random() < 0.5:
            with suppress(Exception):
                name = self.cluster.leader(self.group) or name
        self.tell("down", str(self.cluster.port(name)))
        self.cluster.kill(name)
        self.down[name] = time.monotonic() + self.chance.choice([0.5, 2, 5])

    def restart_nodes(self, *, all_: bool = False) -> None:
        for name, at in list(self.down.items()):
            if all_ or time.monotonic() >= at:
                self.cluster.restart(name)
                del self.down[name]

    def transfer(self) -> None:
        if not self.down:
            names = [self.group, *(f"{self.stream}-{number}" for number in range(self.partitions))]
            queue, to = self.chance.choice(names), self.chance.choice(self.cluster.names)
            with suppress(AssertionError):
                self.cluster.mqctl(to, "cluster", "transfer-leader", queue, to)

    def grow(self) -> None:
        if not self.down and self.partitions < 12:
            self.cluster.mqctl(self.chance.choice(self.up()), "add_partitions", self.stream, "1")
            self.partitions += 1

    # -- operators -------------------------------------------------------------------------------------------

    def reset(self) -> None:
        if not self.down:
            self.tell("move", "first")
            try:
                name = self.chance.choice(self.up())
                told = self.cluster.mqctl(name, "-q", "reset_group", self.group, "--to", "first", "--force")
            except AssertionError:
                self.tell("moved", "perhaps")
            else:
                # A partition that the node does not know yet begins with its first message anyway.
                self.tell("moved", "first", *(self._named(row.split("\t")[0]) for row in told.splitlines()))

    def purge(self) -> None:
        if not self.down:
            self.tell("move", "end")
            with suppress(AssertionError):
                self.cluster.mqctl(self.chance.choice(self.up()), "purge_queue", self.group)
            self.tell("moved", "end")

    def declare_anew(self) -> None:
        """The super stream is deleted with all its messages, and declared again; the group begins with the
        first message.
        """
        if self.down:
            return
        name = self.chance.choice(self.up())
        with self._transaction:
            self.cluster.mqctl(name, "delete_exchange", self.stream)
            if self.chance.random() < 0.5:
                # Otherwise the stream comes again before the group has noticed.
                wait_for("the group has no stream", lambda: not self._rows(name), state=self._state)
            self.epoch += 1
            self.tell("anew", str(self.epoch))
            self.partitions = PARTITIONS
            connection = open_connection(self.url(name))
            connection.channel().exchange_declare(
                self.stream, "x-super-stream", durable=True, arguments={"x-partitions": PARTITIONS}
            )
            connection.close()

    def _named(self, partition: str) -> str:
        return f"{partition}@{self.epoch}"

    def _publish(self) -> None:
        chance = random.Random(f"{self.seed} publisher")
        while self._publishing:
            try:
                connection = open_connection(self.url(chance.choice(self.up())))
                channel = connection.channel()
                channel.tx_select()
                until = time.monotonic() + chance.choice([1, 5])
                while self._publishing and time.monotonic() < until:
                    with self._transaction:
                        properties = pika.BasicProperties(delivery_mode=2, headers={"epoch": self.epoch})
                        for _ in range(TRANSACTION):
                            body = b"%d " % self.published + bytes(chance.choice([10, 300, 300, 9000]))
                            channel.basic_publish(
                                self.stream, f"key {chance.random()}", body, properties, mandatory=True
                            )
                            self.published += 1
                        channel.tx_commit()
                connection.close()
            except (pika.exceptions.AMQPError, OSError, IndexError):
                time.sleep(0.1)

    # -- the run ---------------------------------------------------------------------------------------------

    def run(self, seconds: float, weights: Mapping[str, float]) -> None:
        acts: dict[str, Callable[[], None]] = {
            "kill member": self.kill_member,
            "freeze member": self.freeze_member,
            "kill node": self.kill_node,
            "transfer": self.transfer,
            "grow": self.grow,
            "reset": self.reset,
            "purge": self.purge,
            "declare anew": self.declare_anew,
        }
        publisher = threading.Thread(target=self._publish, daemon=True)
        publisher.start()
        until = time.monotonic() + seconds
        names = [name for name in acts if weights.get(name)]
        while time.monotonic() < until:
            self.fill()
            time.sleep(self.chance.uniform(0.2, 1.5))
            name = self.chance.choices(names, [weights[each] for each in names])[0]
            self.acts[name] = self.acts.get(name, 0) + 1
            acts[name]()
            self.thaw()
            self.restart_nodes()
            self._tell_urls()
        self.restart_nodes(all_=True)
        while frozen := [each.thaws_at for each in self.processes if each.thaws_at]:
            time.sleep(max(max(frozen) - time.monotonic(), 0))
            self.thaw()
        self._publishing = False
        publisher.join(PATIENCE_S)
        # Members go on until no message is left.
        for each in list(self.processes):
            if each.process.poll() is not None:
                self.processes.remove(each)
        self.fill()
        try:
            self._wait_until_read()
        finally:
            self._end.touch()
            self._wait_for_members()
            for line in self._record.read_text().splitlines():
                self.judge.line(line)
        wait_for("nothing is left", self._is_empty, state=self._state)
        self.judge.finish(self._ends())
        self._judge_letters()
        for library in self._started:
            if not any(name.startswith(library) for name in self.judge.sessions):
                self.judge.errors.append(f"no member of {library} has joined")

    def _wait_until_read(self) -> None:
        """Members with a small prefetch may take minutes for the rest: wait as long as they make progress."""
        done, until = -1, time.monotonic() + PATIENCE_S
        while not self._is_empty():
            with suppress(Exception):
                before, done = done, self._committed()
                if done != before:
                    until = time.monotonic() + PATIENCE_S
            if time.monotonic() > until:
                raise AssertionError(f"the group has not read on for {PATIENCE_S} s; {self._state()}")
            time.sleep(0.5)

    def _wait_for_members(self) -> None:
        until = time.monotonic() + PATIENCE_S
        for each in self.processes:
            try:
                each.process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                self.judge.errors.append(f"{each.name} does not end")
                os.killpg(each.process.pid, signal.SIGKILL)
                each.process.wait()

    def close(self) -> None:
        self._publishing = False
        for each in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
        self._log.close()
        os.close(self._writer)

    def _rows(self, name: str = "n1") -> list[list[str]]:
        return [
            row.split("\t")
            for row in self.cluster.mqctl(name, "-q", "list_group_partitions", self.group).splitlines()
        ]

    def _ends(self) -> dict[str, int]:
        return {self._named(row[1]): int(row[3]) for row in self._rows()}

    def _committed(self) -> int:
        return sum(int(row[2]) for row in self._rows())

    def _is_empty(self) -> bool:
        with suppress(Exception):
            rows = [self.cluster.row(name, self.group) for name in self.cluster.names]
            return all(row["messages"] == 0 and row["messages_unacknowledged"] == 0 for row in rows)
        return False

    def _state(self) -> str:
        with suppress(Exception):
            return str(self._rows()) + self.cluster.mqctl("n1", "-q", "list_group_members", self.group)
        return "not to be had"

    def _judge_letters(self) -> None:
        """Each message that was certainly refused is among the dead letters, once; and no message that nobody
        refused.
        """
        found: Counter[str] = Counter()
        connection = open_connection(self.url("n1"))
        channel: Any = connection.channel()
        count = self.cluster.row("n1", self.letters)["messages"]
        channel.basic_qos(prefetch_count=1000)
        arguments = {"x-stream-offset": "first"}
        if count:
            for method, properties, _ in channel.consume(
                self.letters, arguments=arguments, inactivity_timeout=PATIENCE_S
            ):
                if method is None:
                    self.judge.errors.append(f"of {count} dead letters {found.total()} came")
                    break
                # The dead letter has the headers that the member got, except the offset.
                found[partition_of(properties.headers)] += 1
                channel.basic_ack(method.delivery_tag)
                if found.total() >= count:
                    break
        connection.close()
        self.judge.finish_letters(found)
        print(f"    dead letters: {count}, refused for certain {len(self.judge.refused)}")


OPERATORS = {"reset": 0.6, "purge": 0.3, "declare anew": 0.6}
ALL = {"kill member": 3.0, "freeze member": 1.0, "kill node": 0.7, "transfer": 1.0, "grow": 0.3}
MAY = "refuse,slow"
SECONDS, MEMBERS = 60.0, 8


def storms(
    seeds: Iterable[int],
    *,
    seconds: float = SECONDS,
    members: int = MEMBERS,
    may: str = MAY,
    languages: Sequence[str] = (),
    acts: Mapping[str, float] = ALL | OPERATORS,
    nodes: int = 3,
    keep: Path | None = None,
) -> bool:
    """Run one storm for each seed; return whether all checks held. It ends with the first failure, unless
    `keep` names a directory for records and logs.
    """
    libraries = Libraries(CLIENTS / ".cache", languages)
    print("libraries:", ", ".join(libraries.commands), flush=True)
    held = True
    directory = keep or Path(tempfile.mkdtemp(prefix="mqd-storm-"))
    directory.mkdir(parents=True, exist_ok=True)
    with MqdCluster([f"n{number}" for number in range(1, nodes + 1)]) as cluster:
        for seed in seeds:
            storm = Storm(cluster, libraries, directory, seed, members=members, may=may)
            try:
                storm.run(seconds, acts)
            except AssertionError as error:
                storm.judge.errors.append(str(error)[:2000])
            finally:
                storm.close()
                for name in cluster.names:
                    (directory / f"{name}-{seed}.log").write_text(cluster.log(name))
            print(f"seed {seed}: {storm.acts}, {storm.published} published\n    {storm.judge}", flush=True)
            held = held and not storm.judge.errors
            for name in cluster.names:
                if "Traceback" in cluster.log(name):
                    held = False
                    print(f"    {name} has a traceback")
            if storm.judge.errors and not keep:
                break
    if not keep and held:
        shutil.rmtree(directory)
    else:
        print(f"records: {directory}")
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--may", default=MAY)
    parser.add_argument("--only", default="", help="languages, by commas")
    parser.add_argument("--without", default="", help="acts that are left out, by commas")
    parser.add_argument(
        "--operators",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="resets, purges and streams that are declared anew, too",
    )
    parser.add_argument("--nodes", type=int, default=3, help="the group is on three of them")
    parser.add_argument("--keep", type=Path, help="where records and logs go")
    chosen = parser.parse_args()
    acts = ALL | OPERATORS if chosen.operators else ALL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    held = storms(
        range(chosen.seed, chosen.seed + chosen.runs),
        seconds=chosen.seconds,
        members=chosen.members,
        may=chosen.may,
        languages=[each for each in chosen.only.split(",") if each],
        acts={name: weight for name, weight in acts.items() if name not in chosen.without.split(",")},
        nodes=chosen.nodes,
        keep=chosen.keep,
    )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
