"""What a worker gets from its parent: its number, its sockets, its part of the configuration."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import trio

from amqp_server.cluster.membership.machines import machine_of, worker_name
from amqp_server.conditions import CERTIFICATE, CLOCK
from amqp_server.config import Config, parse_address
from amqp_server.descriptors import ALARM
from amqp_server.workers.board import (
    ALARMS,
    BEGUN,
    CHANNELS,
    CONNECTIONS,
    HALF_OPEN,
    MEMORY,
    SERVES,
    STARTED,
    Board,
)
from amqp_server.workers.open_connections import OpenConnections
from persistence.environment import WORKERS
from quorum_queue.links.handshake import PeerRefused

#: The secret of the links of a node without peers, beside the other workers' data.
SECRET_FILE = "links.secret"
#: What workers send each other, most of it with descriptors: a client's connection and its state; the
#: connection of another node's link; nothing, but look at what an operator has set.
CONNECTION, LINK, LOOK = b"c", b"n", b"l"
#: Interval of looks whether the node has begun, s.
BEGUN_LOOK_S = 0.01
#: Options whose work one worker does for the node.
_OF_THE_FIRST = ("http", "load_definitions", "reset_administrator")
#: Options for memory and work that all clients of a node share: each worker has an even part.
_DIVIDED = (
    "memory_budget_bytes",
    "unsent_bytes_max",
    "shovels_bytes_max",
    "stream_read_bytes_max",
    "statistics_bytes_max",
    "bodies_bytes",
    "memo_bytes_max",
    "stream_remote_cache_bytes",
    "stream_compaction_bytes_per_s",
    "auth_http_requests_max",
    # Else one address could have all logins of a worker under way.
    "auth_http_logins_per_address_max",
)
#: The alarms that are the node's, whichever worker raises them first.
_ALARMS = ("memory", "disk space", "disk", "disk for streams", ALARM, CERTIFICATE, CLOCK)


class WorkerConfig(Config):
    """The configuration of one worker. It follows from the node's, which was checked."""

    #: That of the whole node.
    _whole: Config

    def __init__(self, whole: Config, **values: Any) -> None:
        super().__init__(**values)
        object.__setattr__(self, "_whole", whole)

    def __post_init__(self) -> None:
        pass

    @property
    def node_name(self) -> str:
        return self._whole.node

    def is_of_node(self, name: str) -> bool:
        return machine_of(name) == self._whole.node

    @property
    def links_address(self) -> str:
        return self._whole.links_address

    @property
    def told_addresses(self) -> dict[str, str]:
        """Other nodes reach all workers of a node at its one address."""
        machine, found = self._whole.node, super().told_addresses
        own = self._whole.told_addresses.get(machine)
        if own is not None:
            found |= {name: own for name in found if machine_of(name) == machine}
        return found

    def _is_name(self, name: str) -> bool:
        return True


def directory_of(config: Config, number: int) -> Path:
    """Return the data directory of a worker; the first one has that of the node."""
    directory = Path(config.data_dir)
    return directory / WORKERS / str(number) if number else directory


def metrics_address(config: Config, number: int) -> str:
    """Return where a worker serves its metrics: the ports follow each other."""
    parsed = parse_address(config.metrics)
    assert parsed is not None
    host, port = parsed
    return f"{f'[{host}]' if ':' in host else host}:{min(port + number, 65_535) if port else 0}"


def config_of(config: Config, number: int, addresses: list[str]) -> WorkerConfig:
    """Return a worker's part of the node's configuration; `addresses` are those of all workers' links."""
    values = {declared.name: getattr(config, declared.name) for declared in fields(config)}
    names = [worker_name(config.node, each) for each in range(len(addresses))]
    others = [each for each in config.peers if each.partition("=")[0] != config.node]
    values |= {name: _part(config, name, len(addresses)) for name in _DIVIDED}
    values |= {
        "node": names[number],
        "data_dir": str(directory_of(config, number)),
        "peers": (*(f"{name}={address}" for name, address in zip(names, addresses, strict=True)), *others),
        "memory_limit": str(config.memory_limit_bytes // len(addresses)),
        "password_checks_max": max(1, config.password_checks_at_once // len(addresses)),
    }
    if not config.peers:
        values["cluster_secret_file"] = str(Path(config.data_dir) / WORKERS / SECRET_FILE)
        # A queue is best where its client is: see cluster.leader_counts.
        values["queue_leader_locator"] = "client-local"
    if config.metrics:
        values["metrics"] = metrics_address(config, number)
    if number:
        values |= dict.fromkeys(_OF_THE_FIRST, "")
    return WorkerConfig(config, **values)


def _part(config: Config, option: str, workers: int) -> int:
    """Return a worker's part of an option; 0 stays, because it stands for a share of the memory."""
    whole: int = getattr(config, option)
    low = next(declared.metadata["low"] for declared in fields(config) if declared.name == option)
    return max(low, whole // workers) if whole else 0


@dataclass
class Worker:
    number: int
    #: As the operator gave it.
    node_config: Config
    config: WorkerConfig
    #: By option, bound and not listening yet; all workers have the same.
    sockets: dict[str, socket.socket]
    #: Listen for the other workers, and, in all workers alike, for other nodes.
    links: list[socket.socket]
    #: Connections that other workers hand over come here; by number, where those of other workers go.
    inbox: socket.socket
    outboxes: list[socket.socket]
    board: Board
    #: None if nobody hears of their ends.
    open_connections: OpenConnections | None
    #: Call this with the text of the ready line when the worker serves.
    ready: Callable[[str], None]
    #: True if the node's configuration was read again since the node has started.
    reloaded: bool = False
    #: Lets the others look at what an operator has set. See workers.settings.
    settings_changed: Callable[[], None] = lambda: None

    def begin(self, text: str) -> None:
        """The worker serves from now on; `text` is what its ready line says."""
        if not self.number:
            self.board.set(BEGUN, 1)
        self.board.note(self.number, SERVES, 1)
        self.ready(text)

    async def node_begun(self) -> None:
        """Wait until the first worker has done what it does for the node at its start."""
        while self.number and not self.board.setting(BEGUN):
            await trio.sleep(BEGUN_LOOK_S)

    async def node_started(self) -> None:
        """Wait until all workers serve: before that, what can wait would take the cores that others need."""
        while not self.board.setting(STARTED):
            await trio.sleep(BEGUN_LOOK_S)

    def serves(self, number: int) -> bool:
        """True if another worker takes clients now."""
        return number < len(self.outboxes) and bool(self.board.of(number, SERVES))

    # See quorum_queue.links.shared_port.Processes.

    def pass_on(self, number: int, sock: socket.socket) -> None:
        if number >= len(self.outboxes):
            raise PeerRefused(
                f"it looks for worker {number}, and this node has {len(self.outboxes)}", suspect=True
            )
        socket.send_fds(self.outboxes[number], [LINK], [sock.fileno()], socket.MSG_DONTWAIT)

    # See connection.sockets.listener.OtherWorkers.

    def note_connections(self, count: int) -> None:
        self.board.note(self.number, CONNECTIONS, count)

    def connections(self) -> int:
        return self.board.others(self.number, CONNECTIONS)

    def surplus(self) -> int:
        counts, serving = self.board.all(CONNECTIONS), self.board.all(SERVES)
        others = [count for count, serves in zip(counts, serving, strict=True) if serves]
        return max(0, counts[self.number] - min(others, default=0))

    def note_takes_clients(self, takes: bool) -> None:
        self.board.note(self.number, SERVES, int(takes))

    def others_take_clients(self) -> bool:
        return self.board.others(self.number, SERVES) > 0

    # See connection.sockets.unauthenticated.OtherHalfOpens.

    def note_half_open(self, count: int, source: str, of_source: int) -> None:
        self.board.note(self.number, HALF_OPEN, count)
        self.board.half_open.note(self.number, source, of_source, 0)

    def half_open(self) -> int:
        return self.board.others(self.number, HALF_OPEN)

    def half_open_of(self, source: str) -> int:
        return self.board.half_open.others(self.number, source)

    # See connection.login.password_checks.OtherFailures.

    def note_failures(self, address: str, failures: int) -> None:
        self.board.failed_logins.note(self.number, address, failures, _now_ms())

    def failures(self, address: str, memory_s: float) -> int:
        return self.board.failed_logins.others(self.number, address, _now_ms() - int(memory_s * 1000))

    # See broker.object_counts.OtherChannels.

    def note_channels(self, count: int) -> None:
        self.board.note(self.number, CHANNELS, count)

    def channels(self) -> int:
        return self.board.others(self.number, CHANNELS)

    # See broker.alarms.OtherAlarms.

    def note_alarm(self, name: str, raised: bool) -> bool:
        if name not in _ALARMS:
            # Each worker tells its own.
            return True
        bit = 1 << _ALARMS.index(name)
        own = self.board.of(self.number, ALARMS)
        others = sum(bool(words & bit) for words in self.board.all(ALARMS)) - bool(own & bit)
        self.board.note(self.number, ALARMS, own | bit if raised else own & ~bit)
        return not others

    # See management.parts.ManagedParts.

    def counted_before(self, node: str) -> Sequence[int] | None:
        names = [worker_name(self.node_config.node, number) for number in range(len(self.outboxes))]
        return self.board.counted(names.index(node)) if node in names else None

    # See resources.OtherProcesses.

    def note_memory(self, size: int) -> int:
        self.board.note(self.number, MEMORY, size)
        return self.board.others(self.number, MEMORY)


def _now_ms() -> int:
    # This clock is one for all processes of a machine.
    return time.monotonic_ns() // 1_000_000
