"""Several RabbitMQ nodes on this machine, each on its own loopback address, with its own ports, directories,
cookie and port mapper. Nodes find each other by RabbitMQ's own `classic_config`, so `rabbitmqctl`, which
takes seconds, is not needed; questions to a node go through one Erlang process that stays.

The addresses make it possible to cut single links: a connection between two nodes has both of their
addresses.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from . import processes
from .brokers import BrokerFailed, free_port
from .client import HOST, Connection, Refused
from .installation import HERE, SERVER, Installation

START_MAX_S = 120.0
STOP_MAX_S = 60.0
ASK_MAX_S = 15.0
CALL_MAX_MS = 4_000
#: Seconds until a silent node counts as down; RabbitMQ's own default is 60.
TICK_S = 8
FIRST_ADDRESS = 11
#: Reads expressions, one on each line, and prints each value on one line.
_ASKED = """
F = fun F() ->
  case io:get_line("") of
    eof -> halt();
    Line ->
      Value = try
        {ok, Tokens, _} = erl_scan:string(Line),
        {ok, Parsed} = erl_parse:parse_exprs(Tokens),
        element(2, erl_eval:exprs(Parsed, []))
      catch C:E -> {failed, C, E} end,
      io:format("~0p~n", [Value]), F()
  end
end, F().
"""


class RabbitNode:
    """One node: its directories and ports, and the successive processes that use them."""

    def __init__(self, cluster: RabbitNodes, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.erlang_name = f"{name}@{address}"
        self.directory = cluster.directory / name
        self.port = free_port()
        #: Additions to our own environment, also for later starts.
        self.environment: dict[str, str] = {}
        self._cluster = cluster
        self._dist_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.directory / "mnesia"

    def launch(self) -> None:
        """Start it, and do not wait for it."""
        here, cluster = self.directory, self._cluster
        here.mkdir(exist_ok=True)
        names = "".join(
            f"cluster_formation.classic_config.nodes.{i} = {node.erlang_name}\n"
            for i, node in enumerate(cluster.nodes, 1)
        )
        (here / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{self.port}\n"
            "cluster_formation.peer_discovery_backend = classic_config\n"
            f"{names}"
        )
        (here / "rabbitmq-env.conf").write_text("")
        (here / "enabled_plugins").write_text("[].\n")
        seen = cluster.installation.seen(here)
        octets = self.address.replace(".", ",")
        arguments = (
            f"-kernel inet_dist_use_interface {{{octets}}} "
            f"-kernel inet_dist_connect_options [{{ip,{{{octets}}}}}] -kernel net_ticktime {TICK_S}"
        )
        environment = {
            "HOME": cluster.installation.seen(cluster.directory),
            "ERL_EPMD_ADDRESS": cluster.addresses,
            "ERL_EPMD_PORT": str(cluster.epmd_port),
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODENAME": self.erlang_name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": f"{seen}/rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{seen}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{seen}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": cluster.installation.seen(self.data),
            "RABBITMQ_LOG_BASE": f"{seen}/log",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
        }
        with (here / "output").open("ab") as output:
            self._process = subprocess.Popen(
                cluster.installation.command(SERVER),
                env=os.environ | environment | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=here,
            )

    def ready(self, within_s: float = START_MAX_S) -> None:
        """Wait until it accepts a client."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                Connection(self.port, 5).close()
            except (OSError, Refused):
                if not self.running:
                    raise BrokerFailed(f"{self.name} has ended: {self.last_words()}") from None
                time.sleep(0.05)
            else:
                return
        raise BrokerFailed(f"{self.name} took no connection for {within_s:.0f} s: {self.last_words()}")

    @property
    def session(self) -> int:
        """Session of all its processes; 0 if there are none."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        return (self.directory / "output").read_text(errors="replace")[-2_000:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        if self._process is not None:
            for pid in processes.members(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            # Some of its processes are not our children: they have ended when they are no longer listed.
            while processes.members(self._process.pid):
                time.sleep(0.005)
            self._process = None

    def stop(self) -> None:
        """Ask it to stop, as an init system does."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_MAX_S)
        self.kill()


class RabbitNodes:
    """The nodes of one cluster, their port mapper, and the process that asks."""

    def __init__(self, names: Sequence[str], installation: Installation = HERE) -> None:
        if not installation.exists:
            raise BrokerFailed(installation.lack)
        self.installation = installation
        self.directory = installation.new_directory("rabbitmq-nodes-")
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        self.nodes: list[RabbitNode] = []
        for i, name in enumerate(names):
            self.nodes.append(RabbitNode(self, name, f"127.0.0.{FIRST_ADDRESS + i}"))
        self.addresses = ",".join([HOST, *(node.address for node in self.nodes)])
        self.epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._asked: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start all of them, as one cluster."""
        self._epmd = subprocess.Popen(
            self.installation.command("epmd", "-address", self.addresses, "-port", str(self.epmd_port)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if self.installation.version.startswith("3."):
            # The first founds the cluster, the others find it.
            for node in self.nodes:
                node.launch()
                node.ready()
        else:
            # The first one waits a minute for the others, and they for it.
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.ready()
        self.wait_formed()

    def wait_formed(self, within_s: float = START_MAX_S) -> None:
        deadline = time.monotonic() + within_s
        while True:
            said = [self.call(node, "rabbit_nodes", "all_running", "[]") for node in self.nodes]
            if all(node.erlang_name in one for one in said for node in self.nodes):
                return
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the nodes have not found each other: {said}")
            time.sleep(0.1)

    def call(self, node: RabbitNode, module: str, function: str, arguments: str) -> str:
        """Return the value of a function on a node, as Erlang prints it."""
        return self.ask(f"rpc:call('{node.erlang_name}', {module}, {function}, {arguments}, {CALL_MAX_MS}).")

    def ask(self, expression: str) -> str:
        if self._asked is None:
            self._asked = self._asker()
        asked = self._asked
        assert asked.stdin is not None and asked.stdout is not None
        asked.stdin.write(expression + "\n")
        asked.stdin.flush()
        readable, _, _ = select.select([asked.stdout], [], [], ASK_MAX_S)
        if not readable:
            asked.kill()
            asked.wait()
            self._asked = None
            raise BrokerFailed(f"no answer within {ASK_MAX_S} s: {expression}")
        return asked.stdout.readline().strip()

    def _asker(self) -> subprocess.Popen[str]:
        cookie = (self.directory / ".erlang.cookie").read_text()
        name = f"ask{os.getpid()}@{HOST}"
        return subprocess.Popen(
            self.installation.command(
                *("erl", "-noshell", "-hidden", "-name", name, "-setcookie", cookie),
                *("-kernel", "inet_dist_use_interface", "{127,0,0,1}", "-eval", _ASKED),
            ),
            env=os.environ
            | {
                "HOME": self.installation.seen(self.directory),
                "ERL_EPMD_PORT": str(self.epmd_port),
                "ERL_EPMD_ADDRESS": HOST,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        for process in (self._asked, self._epmd):
            if process is not None:
                process.kill()
                process.wait()
        self._asked = self._epmd = None
        shutil.rmtree(self.directory, ignore_errors=True)
