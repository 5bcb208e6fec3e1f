"""The composition root: builds the node out of its parts, runs it, and stops it. The one place that knows everybody."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from amqp_server.broker import recovery
from amqp_server.broker.broker import Broker
from amqp_server.broker.operations import PutUser, PutVhost, SetPermission
from amqp_server.broker.permissions import Permission
from amqp_server.broker.users import hashed
from amqp_server.clock import Clock
from amqp_server.cluster.belonging import check_alone, drop_copies
from amqp_server.cluster.errors import ClusterError
from amqp_server.config import Config
from amqp_server.connection.listener import ListenError, Server
from amqp_server.connection.tls import make_context
from amqp_server.options import command_line
from amqp_server.resources import ResourceWatch
from persistence.commit import Commit
from persistence.environment import MARKS_FILE, Environment
from persistence.errors import CommitFailed, PersistenceError, StoreCorrupt
from persistence.groups import Groups
from persistence.journal import Journal
from persistence.marks import DeliveredMarks
from quorum_queue.local import NodeServices
from quorum_queue.memory import MemoryBudget

if TYPE_CHECKING:
    from amqp_server.cluster.node import ClusterNode

logger = logging.getLogger("mqd")

#: The collector walks every queued message otherwise: 700 objects are allocated in no time.
GC_FIRST_THRESHOLD = 100_000
#: A thread that ends a commit gets the interpreter back within this time, s.
SWITCH_INTERVAL_S = 0.001
#: With however small a memory budget, so much may wait for the disk, or publishers would wait for each sync.
UNSYNCED_MIN_BYTES = 1 << 20
#: Between two looks at whether what was sent to other nodes has arrived, s.
FLIGHT_WAIT_S = 0.005
#: Time that clients have to take their last bytes when the node stops, s.
STOP_TIMEOUT_S = 5.0


class SpillJournal(Journal):
    """Bodies of transient messages that did not fit in memory; written in the background, forgotten at a restart."""

    def __init__(self, environment: Environment, commits: Commit) -> None:
        super().__init__(environment.spill)
        self._commits = commits

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes], head_parts: int = 0
    ) -> None:
        super().append(queue_id, first_seq, count, payload, head_parts)
        self._commits.request()

    def settle(self, queue_id: int, seqs: range) -> None:
        super().settle(queue_id, seqs)
        self._commits.request()

    def drop(self, queue_id: int) -> None:
        super().drop(queue_id)
        self._commits.request()


class Node:
    """One running node."""

    def __init__(self, config: Config, environment: Environment) -> None:
        self.config = config
        self.environment = environment
        self.began = time.monotonic()
        self.marks = DeliveredMarks(environment.directory / MARKS_FILE)
        self.commits = Commit(environment, self.marks)
        self.spill_commits = Commit(environment.spill)
        self.journal = Journal(environment)
        self.spill = SpillJournal(environment, self.spill_commits)
        clock = Clock()
        self.broker = Broker(config, environment, clock)
        self.broker.services = NodeServices(
            clock=clock,
            memory=MemoryBudget(config.body_budget_bytes),
            timers=self.broker.timers,
            dead_letters=self.broker.dead_letters,
            journal=self.journal,
            spill=self.spill,
            commits=self.commits,
            marks=self.marks,
        )
        self.broker.unsynced = self._unsynced
        self.server = Server(
            self.broker, unsynced_bytes=self._unsynced_bytes, barrier=self._written, commits=self.commits
        )
        self.broker.want_turn = self.server.want_turn
        self.cluster = self._join_cluster(environment) if config.peers else None
        self.administration = None if self.cluster is None else self.cluster.administration
        # What is on its way to the disk is in memory, too, whatever the budget says.
        room = max(config.body_budget_bytes // 4, UNSYNCED_MIN_BYTES)
        self.server.unsynced_high = min(config.unsynced_high_bytes, room)
        self.resources = ResourceWatch(
            config, self.broker, Path(environment.directory), environment.free_bytes
        )
        self.commits.on_full = self._disk_full
        # The confirms that a commit brings go out with the same turn as all else that it led to.
        self.commits.on_durable = self.server.end_turn
        self.broker.alarms.listeners.append(self.server.alarm_changed)
        self._timer_changed = trio.Event()
        self.broker.timers.changed = lambda: self._timer_changed.set()
        self.amqp_address = self.amqps_address = self.http_address = ""

    def _join_cluster(self, environment: Environment) -> ClusterNode:
        """Make what this node is to others. Raises ListenError, ClusterError."""
        from amqp_server.cluster.node import ClusterNode

        config, broker = self.config, self.broker
        host, port = config.peer_addresses[config.node]
        address = config.cluster_listen or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        listening = self.server.listen(address, config.listen_backlog)
        commits = broker.services.commits
        cluster = ClusterNode(config, broker, environment, commits, listening, end_turn=self.server.end_turn)
        broker.replication, broker.hosts = cluster.replication, cluster.hosts
        broker.replicate = cluster.turn
        broker.hold, broker.flush = cluster.mesh.hold, cluster.flush
        return cluster

    def _disk_full(self, full: bool) -> None:
        self.broker.alarms.set("disk", full)
        if self.cluster is not None:
            self.cluster.replicas.disk_full(full)

    def _unsynced_bytes(self) -> int:
        """What this node's clients have published and is not safe yet."""
        waiting = max(self.journal.pending_bytes, self.spill.pending_bytes)
        return waiting if self.cluster is None else max(waiting, self.cluster.replicas.flight_bytes)

    def _unsynced(self) -> bool:
        pending = self.environment.pending
        return bool(pending.open) or len(pending.layers) > 1

    async def _written(self) -> None:
        """Wait until what takes up memory because it is on its way to the disk, or to other nodes, is there."""
        cluster = self.cluster
        if cluster is not None and cluster.replicas.flight_bytes > self.server.unsynced_high:
            await trio.sleep(FLIGHT_WAIT_S)
            return
        if self.spill.pending_bytes > self.journal.pending_bytes:
            await self.spill_commits.barrier()
        else:
            await self.commits.barrier()

    def first_start(self) -> None:
        """Make the default vhost and user in an empty data directory."""
        broker, config = self.broker, self.config
        if len(broker.vhost_records) == 0:
            broker.add_vhost(config.default_vhost)
        if len(broker.users) == 0:
            broker.users.add(config.default_user, config.default_password, ("administrator",))
            broker.permissions.set(config.default_user, config.default_vhost, ".*", ".*", ".*")
        self.environment.flush()

    async def _first_start_of_cluster(self, cluster: ClusterNode) -> None:
        """See to the default vhost and user: the node that leads the topology makes them, the others wait."""
        broker, config = self.broker, self.config
        if not cluster.began_empty or broker.permissions.all() or len(broker.users) > 1:
            return
        proposed = False
        while broker.permissions.get(config.default_user, config.default_vhost) is None:
            if cluster.leads_topology and not proposed:
                proposed = True
                user = broker.users.prepare(
                    config.default_user, hashed(config.default_password), ("administrator",)
                )
                broker.propose(PutVhost(broker.vhost_records.prepare(config.default_vhost)))
                broker.propose(PutUser(user))
                broker.propose(SetPermission(Permission(user.name, config.default_vhost, ".*", ".*", ".*")))
                self.server.end_turn()
            await trio.sleep(FLIGHT_WAIT_S)

    def _go_on(self, cluster: ClusterNode) -> None:
        """Read what is on disk of a member, and be one."""
        recovery.recover(self.broker, self.journal)
        cluster.start()

    async def run(self, announce: Callable[[Node], None]) -> None:
        """Serve until SIGTERM or SIGINT. Raises ListenError, CommitFailed."""
        config = self.config
        if self.cluster is None:
            check_alone(self.broker.metadata, config.data_dir)
            drop_copies(Groups(self.environment))
            recovery.recover(self.broker, self.journal)
            self.first_start()
        else:
            self.cluster.check_directory()
            if not self.cluster.stood_alone:
                self._go_on(self.cluster)
        listening: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        listening.append((self.server.listen(config.amqp, config.listen_backlog), None))
        self.amqp_address = _address(listening[0][0])
        if config.amqps:
            listening.append((self.server.listen(config.amqps, config.listen_backlog), make_context(config)))
            self.amqps_address = _address(listening[-1][0])
        http = None
        if config.http:
            http = self.server.listen(config.http, config.listen_backlog)
            self.http_address = _address(http)
        _settle_collector()
        async with trio.open_nursery() as background:
            background.start_soon(self.commits.run)
            background.start_soon(self.spill_commits.run)
            background.start_soon(self.server.run_turns)
            background.start_soon(self._run_timers)
            background.start_soon(self.server.watch)
            background.start_soon(self.resources.run)
            if self.cluster is not None:
                background.start_soon(self.cluster.run)
                if self.cluster.stood_alone:
                    await self.cluster.adopt(self.journal)
                    self._go_on(self.cluster)
                    _settle_collector()
                await self.cluster.joined()
                await self._first_start_of_cluster(self.cluster)
            async with trio.open_nursery() as serving:
                for sock, tls in listening:
                    serving.start_soon(self.server.serve, sock, tls)
                if http is not None:
                    serving.start_soon(self._manage, http)
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    # Whoever is told that the node serves may stop it at once.
                    announce(self)
                    async for _ in signals:
                        break
                logger.info("stopping")
                if self.cluster is not None:
                    await self.cluster.drain(config.drain_timeout_s)
                for sock, _ in listening:
                    # Or the next file to get its number would be waited for in its place.
                    trio.lowlevel.notify_closing(sock)
                    sock.close()
                await self._say_goodbye()
                serving.cancel_scope.cancel()
            self.commits.stop()
            self.spill_commits.stop()
            with trio.move_on_after(STOP_TIMEOUT_S):
                await self.commits.barrier()
            background.cancel_scope.cancel()

    async def _manage(self, listening: socket.socket) -> None:
        from amqp_server.management.adapter import ManagedBroker
        from amqp_server.management.listener import serve

        await serve(listening, ManagedBroker(self), self.config, trio.sleep_forever)

    async def _say_goodbye(self) -> None:
        """Close all connections in order (320), and wait a moment for their answers."""
        for transport in list(self.server.transports.values()):
            transport.session.force_close("broker forced connection closure with reason 'shutdown'")
        self.server.end_turn()
        with trio.move_on_after(1.0):
            while self.server.transports:
                await trio.sleep(0.02)

    async def _run_timers(self) -> None:
        timers, clock = self.broker.timers, self.broker.clock
        while True:
            timers.run(clock())
            self.server.end_turn()
            self._timer_changed = trio.Event()
            due = timers.next_ms
            if due is None:
                await self._timer_changed.wait()
                continue
            with trio.move_on_after(max(0.0, (due - clock()) / 1000)):
                await self._timer_changed.wait()


def _settle_collector() -> None:
    """What is there now stays: it is not to be looked at again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_FIRST_THRESHOLD, 50, 100)
    gc.enable()


def _address(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _raise_file_limit() -> None:
    """Connections are file descriptors; the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(config: Config) -> int:
    """Run a node; return the exit code."""
    began = _process_start()
    logging.basicConfig(
        level=config.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # A page of a mapped file that the disk does not give ends the process (SIGBUS): not without a word.
    faulthandler.enable()
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What was imported stays, and so does what is read back now: to look through it while it grows finds no garbage.
    gc.freeze()
    gc.disable()
    try:
        environment = Environment.open(config.data_dir)
    except PersistenceError as error:
        print(f"mqd: {error}", file=sys.stderr)
        return 1
    except StoreCorrupt as error:
        print(f"mqd: {error}. {_way_back(config, error)}", file=sys.stderr)
        return 1

    def announce(node: Node) -> None:
        http = f" http={node.http_address}" if node.http_address else ""
        elapsed = time.time() - began
        print(f"mqd ready node={config.node} amqp={node.amqp_address}{http} ({elapsed:.2f} s)", flush=True)

    async def run() -> None:
        await Node(config, environment).run(announce)

    code = 0
    try:
        trio.run(run)
    except* ListenError as group:
        print(f"mqd: {_first(group)}", file=sys.stderr)
        code = 1
    except* ClusterError as group:
        print(f"mqd: {_first(group)}", file=sys.stderr)
        code = 1
    except* CommitFailed as group:
        logger.critical("the disk failed, nothing more can be confirmed: %s", _first(group))
        code = 1
    except* StoreCorrupt as group:
        corrupt = _first(group)
        assert isinstance(corrupt, StoreCorrupt)
        logger.critical("%s. %s", corrupt, _way_back(config, corrupt))
        code = 1
    if code == 0:
        environment.close()
    return code


def _way_back(config: Config, corrupt: StoreCorrupt) -> str:
    """Say what an operator does about a damaged data file."""
    if not corrupt.lasts:
        return "It is made anew at each start: start the node again"
    if config.peers:
        return (
            f"Start node '{config.node}' with an empty data directory in the place of {config.data_dir}, and the other "
            "nodes fill it; durable classic queues that were on this node are in a backup, or lost"
        )
    return f"Put a backup in the place of {config.data_dir}, or start the node with an empty one (--data-dir)"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception within nested groups."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner


def _process_start() -> float:
    """Return when this process began, so that what it took to import counts."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as uptime:
            boot = time.time() - float(uptime.read().split()[0])
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        return time.time()


main = command_line(serve)
