"""One node of Kafka with its defaults, in the mode without another service (KRaft), and its own clients.

Jars, of the broker and of its tools, come from Maven when they are first needed.

https://kafka.apache.org/42/getting-started/quickstart/
"""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ..brokers import OneNode, free_port
from ..client import HOST, Unexpected
from ..maven import fetched

HERE = Path(__file__).parent
TOOL_MAX_S = 300
#: What `kafka-server-start.sh` gives to its virtual machine.
JAVA = [
    *("java", "-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
]
FIGURE = re.compile(r"(\w+)=([\d.eE+-]+)")
#: The quickstart's file, with addresses and directories of its own.
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Kafka(OneNode):
    name = "kafka"

    def _java(self, *command: str) -> list[str]:
        return [*JAVA, "-cp", f"{fetched(HERE)}/*", *command]

    def _command(self) -> tuple[list[str], dict[str, str]]:
        settings = self.directory / "server.properties"
        settings.write_text(
            SETTINGS.format(host=HOST, port=self.port, controller=free_port(), data=self.directory / "data")
        )
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._tool("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings))
        return self._java("kafka.Kafka", str(settings)), {}

    def start(self) -> float:
        """Return the seconds until it had answered a client."""
        began = time.perf_counter()
        super().start()
        self.topics("started")
        return time.perf_counter() - began

    def _connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), 5)

    @property
    def _server(self) -> tuple[str, str]:
        return "--bootstrap-server", f"{HOST}:{self.port}"

    def _tool(self, *command: str) -> str:
        """Run one of Kafka's own programs; return what it prints. Raises Unexpected."""
        done = subprocess.run(
            self._java(*command), timeout=TOOL_MAX_S, check=False, text=True, capture_output=True
        )
        if done.returncode:
            raise Unexpected(
                f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}"
            )
        return done.stdout

    def topics(self, *names: str, partitions: int = 1, synced: bool = False) -> None:
        """Make topics. `synced`: each message is on the disk before it is acknowledged."""
        more = ("--config", "flush.messages=1") if synced else ()
        for name in names:
            command = ("--create", "--topic", name, "--partitions", str(partitions), *more)
            self._tool("org.apache.kafka.tools.TopicCommand", *self._server, *command)

    def produced(self, topic: str, count: int, warm: int, size: int) -> float:
        """Produce so many messages with Kafka's own program, the first `warm` of them uncounted; return
        messages/s.
        """
        sizes = ("--num-records", str(count), "--warmup-records", str(warm), "--record-size", str(size))
        printed = self._tool(
            *("org.apache.kafka.tools.ProducerPerformance", *self._server, "--topic", topic),
            *(*sizes, "--throughput", "-1", "--command-property", "acks=all"),
        )
        found = re.findall(r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec", printed)
        if not found:
            raise Unexpected(f"ProducerPerformance prints no rate: {printed[-500:]}")
        return float(found[-1][1])

    def consumed(self, topic: str, count: int) -> float:
        """Consume so many messages with Kafka's own program; return messages/s without the time until it was
        a member.
        """
        printed = self._tool(
            *("org.apache.kafka.tools.ConsumerPerformance", *self._server, "--topic", topic),
            *("--num-records", str(count)),
        )
        names, values = (line.split(", ") for line in printed.strip().splitlines()[-2:])
        if names[-1] != "fetch.nMsg.sec":
            raise Unexpected(f"ConsumerPerformance prints no rate: {printed[-500:]}")
        return float(values[-1])

    def loaded(
        self, *arguments: object, began: Callable[[], None], ended: Callable[[int], None]
    ) -> dict[str, float]:
        """Run a scenario of Load.java; return its figures. `began` and `ended`, with a number of messages,
        are called when the measured time begins and ends. Raises Unexpected.
        """
        scenario, *rest = map(str, arguments)
        command = self._java(str(HERE / "Load.java"), scenario, f"{HOST}:{self.port}", *rest)
        said: list[str] = []
        with subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            watch = threading.Timer(TOOL_MAX_S, process.kill)
            watch.start()
            for line in process.stdout:
                said.append(line)
                if line == "began\n":
                    began()
                elif line.startswith("ended "):
                    ended(int(line.split()[1]))
            watch.cancel()
        figures = {name: float(value) for name, value in FIGURE.findall(said[-1] if said else "")}
        if process.returncode or not figures:
            raise Unexpected(f"Load.java ended with {process.returncode}: {''.join(said)[-500:]}")
        return figures
