"""The composition root: builds the node from its parts, runs it, and stops it. Only this module knows all
parts.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from amqp_server import logs
from amqp_server.backpressure import Backpressure
from amqp_server.broker.access.password import hash_cheaply, hash_like_rabbitmq
from amqp_server.broker.access.permissions import Permission
from amqp_server.broker.access.users import UserRefused, hashed
from amqp_server.broker.alarms import Alarms
from amqp_server.broker.broker import Broker
from amqp_server.broker.dead_letter import DeadLetterSender
from amqp_server.broker.declared.operations import PutUser, PutVhost, SetPermission
from amqp_server.broker.hosts import LocalHosts
from amqp_server.broker.recovery import recovery, stored_queue_time
from amqp_server.broker.timers import Timers
from amqp_server.broker.topology.parts import Hosts
from amqp_server.build import BUILD
from amqp_server.clock import SystemClock
from amqp_server.cluster.errors import ClusterError, OutOfCluster, StartAgain
from amqp_server.cluster.membership.membership import check_alone, drop_copies
from amqp_server.conditions import STREAM_REMOTE, STREAM_TABLE, ConditionWatch
from amqp_server.config import AUTO, VERSION, Config, age_ms
from amqp_server.connection.ack_timeout import AckTimeout
from amqp_server.connection.login.authentication import Authentication
from amqp_server.connection.login.http_backend import HttpBackend
from amqp_server.connection.login.password_checks import PasswordChecks
from amqp_server.connection.sockets import poll_task
from amqp_server.connection.sockets.listener import (
    NO_OTHERS,
    ListenError,
    Server,
    begin_listening,
    bind_all,
    listen_for_nodes,
)
from amqp_server.connection.sockets.poller import Poller
from amqp_server.connection.sockets.tls import ListenerTLS, TLSFileError
from amqp_server.connection.unfinished_publishes import UnfinishedWatch
from amqp_server.connection.unread_output import UntakenWatch
from amqp_server.descriptors import Descriptors
from amqp_server.draining import Draining
from amqp_server.driver import Driver
from amqp_server.imports import imported
from amqp_server.management.serving.delayed_start import quiet_or_asked
from amqp_server.resources import ResourceWatch
from amqp_server.secret_files import SecretFileError, read_password
from amqp_server.startup import start_time
from amqp_server.startup.administrator import reset_administrator
from amqp_server.startup.doubts import doubts
from amqp_server.startup.exit_codes import AGAIN, INTERNAL_ERROR, OUT
from amqp_server.startup.load_definitions import DefinitionsError, load_definitions
from amqp_server.startup.options import Reread, command_line
from amqp_server.startup.reload import Reload, Reloaded
from amqp_server.startup.remotes import open_remote
from amqp_server.streams.local_host import StreamOptions, StreamServices
from amqp_server.streams.tiers.remotes import Remotes
from amqp_server.turn import NoPeers, Peers, Turn
from amqp_server.workers.cores import workers_of, workers_on_disk
from persistence.commits.commit import Commit
from persistence.delivered_marks import DeliveredMarks
from persistence.environment import MARKS_FILE, Environment
from persistence.errors import CommitFailed, PersistenceError, StoreCorrupt
from persistence.journal import Journal, SpillJournal
from persistence.replica_logs.logs import Groups
from persistence.store import DATA_FILE
from persistence.streams.remote.stores import RemoteStores
from persistence.streams.remote.table_process import Settings, TableProcess
from persistence.streams.retention import RetentionLimits
from persistence.streams.store import StreamStore
from quorum_queue.boundary import Boundary, Fatal
from quorum_queue.local_host import NodeServices
from quorum_queue.memory import MemoryBudget, ReadAhead
from quorum_queue.unsent_bytes import Unsent

if TYPE_CHECKING:
    from amqp_server.broker.declared.parameters import ParameterRecord
    from amqp_server.cluster.node import ClusterNode
    from amqp_server.cluster.wiring import ClusterParts
    from amqp_server.management.parts import ManagedParts
    from amqp_server.shovels.shovels import Shovels
    from amqp_server.workers.settings import NodeSettings
    from amqp_server.workers.worker import Worker

logger = logging.getLogger("mqd")

#: The garbage collector looks at this many new objects at a time, which takes a millisecond, and once more
#: after as many others. It looks at older objects only when memory runs out (amqp_server.resources): looking
#: at all objects of 100,000 queues takes most of a second.
GC_THRESHOLDS = 2_000, 1, 1 << 30
#: The highest generation of younger objects.
YOUNG = 1
#: A thread that ends a commit gets the interpreter back within this time, s.
SWITCH_INTERVAL_S = 0.001
#: Imported after the start, when the node is quiet.
MANAGEMENT = "amqp_server.management.serving.listener", "amqp_server.management.statistics.sampler"
#: Interval at which a node checks whether the first user exists, s.
FIRST_USER_WAIT_S = 0.005
#: Time after which a node that does not lead makes the first user itself, s.
FIRST_USER_OVERDUE_S = 3.0
#: Maximum time between the first user and its permission, s.
FIRST_PERMISSION_WAIT_S = 1.0
#: Time for clients to take their last bytes when the node stops, s.
STOP_TIMEOUT_S = 5.0
#: What the log says of the alarm of a full disk.
WRITES_FAIL = "the file system of the data directory is full"


class Node:
    """One running node, built from the bottom up: each part gets the parts that were made before it."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        reread: Reread | None = None,
        worker: Worker | None = None,
    ) -> None:
        """`reread` reads the configuration again; without it, only certificates are reloaded. `worker` is
        what this process has in common with the node's other ones, if there are any.
        """
        self.config = config
        self.worker = worker
        self.environment = environment
        self.began = time.monotonic()
        clock = SystemClock()
        alarms = Alarms(worker)
        self._driver = Driver()
        boundary = Boundary()
        timers = Timers(changed=self._driver.timer_changed, boundary=boundary)
        self.marks = DeliveredMarks(environment.directory / MARKS_FILE)
        self.commits = Commit(
            environment,
            self.marks,
            on_full=lambda full: alarms.set("disk", full, WRITES_FAIL if full else ""),
            ack_wait_s=config.ack_wait_us / 1e6,
        )
        self._spill_commits = Commit(environment.spill)
        self._journal = Journal(environment)
        spill = SpillJournal(environment.spill, self._spill_commits.request)
        parts = self._cluster_parts(clock, timers, boundary) if config.peers else None
        peers: Peers = NoPeers() if parts is None else parts.peers
        turn = Turn(
            self.commits,
            peers,
            self._driver.wake,
            boundary,
            now=time.monotonic,
            lasts_s=config.turn_ms / 1000,
            tidy=partial(gc.collect, YOUNG),
        )
        self.poller = Poller(turn, config.turn_ms / 1000, config.receive_bytes, self.commits)
        services = NodeServices(
            clock=clock,
            queue_time=stored_queue_time.restore(environment, clock),
            turn=turn,
            memory=MemoryBudget(config.body_budget_bytes, Unsent(config.unsent_budget_bytes, turn)),
            read_ahead=ReadAhead(config.read_ahead_bytes, config.disk_read_ahead_bytes),
            timers=timers,
            dead_letters=DeadLetterSender(config.frame_max_bytes, clock),
            journal=self._journal,
            spill=spill,
            commits=self.commits,
            marks=self.marks,
        )
        self._streams = self._stream_services(services, alarms)
        hosts = self._hosts(services, parts)
        self.broker = Broker(
            config,
            environment,
            clock,
            turn=turn,
            timers=timers,
            alarms=alarms,
            services=services,
            hosts=hosts,
            replication=None if parts is None else parts.replication,
        )
        self.broker.counts.others = worker
        if worker is not None:
            self.broker.counts.resume(worker.board.counted(worker.number))
        self.cluster = None if parts is None else self._cluster_node(parts, hosts)
        self.administration = None if self.cluster is None else self.cluster.administration
        self.backpressure = Backpressure(
            config,
            self.commits,
            self._spill_commits,
            flight_bytes=lambda: (
                self._streams.tail_bytes + (0 if parts is None else parts.replicas.flight_bytes)
            ),
            sleep=trio.sleep,
        )
        self._unfinished = UnfinishedWatch(self.broker, lambda: self.backpressure.ahead)
        self._untaken = UntakenWatch(self.broker)
        self._ack_timeout = AckTimeout(self.broker)
        self.password_checks = PasswordChecks(
            self.broker.access.users, config, self.broker.replace_hash, worker
        )
        answers = self.broker.access.answers
        #: None if no other server decides about logins.
        self.http_backend = None if answers is None else HttpBackend(config, answers, self.broker.log_limit)
        self.authentication = Authentication(
            self.broker.access.users, config, self.password_checks, self.http_backend
        )
        self.descriptors = Descriptors(config, alarms)
        self.server = Server(
            self.broker,
            self.backpressure,
            self.password_checks,
            self.poller,
            self.authentication,
            self.descriptors,
            worker or NO_OTHERS,
        )
        if self.cluster is not None:
            self.cluster.ends = self.server.take_no_more
        self.tokens = self.server.tokens
        # Memory is one limit for all processes of the node.
        whole = config if worker is None else worker.node_config
        self.resources = ResourceWatch(
            whole,
            alarms,
            Path(environment.directory),
            environment.free_bytes,
            self.descriptors,
            worker,
        )
        self.reload = Reload(whole, self.resources, self.broker.log_limit, reread)
        self.draining = Draining(self.server, self.cluster)
        self.settings = None if worker is None else self._node_settings(worker)
        self.conditions = ConditionWatch(
            config,
            alarms,
            failed_queues=lambda: len(self.broker.failures.stopped()),
            has_majority=self._has_majority,
        )
        if parts is not None:
            self.reload.certificates.append(self._links_tls(parts))
        self.amqp_address = self.amqps_address = self.http_address = self.metrics_address = ""
        #: None until the node serves.
        self.shovels: Shovels | None = None

    def _node_settings(self, worker: Worker) -> NodeSettings:
        from amqp_server.workers.settings import NodeSettings

        return NodeSettings(worker, self.reload, self.draining)

    def _stream_services(self, services: NodeServices, alarms: Alarms) -> StreamServices:
        config = self.config
        self.stream_store = StreamStore(
            self.environment.directory,
            readers=config.stream_readers,
            compaction_bytes_per_s=config.stream_compaction_bytes_per_s,
            on_full=lambda full: alarms.set("disk for streams", full, WRITES_FAIL if full else ""),
        )
        self.remote_stores = RemoteStores(
            {name: partial(open_remote, remote) for name, remote in config.remotes.items()},
            cache_bytes=config.stream_remote_cache_bytes,
            readers=config.stream_remote_readers,
            tables=TableProcess(
                Settings(
                    config.stream_remotes,
                    config.stream_table_group_bytes,
                    config.stream_table_timeout_ms / 1000,
                )
            ),
            with_catalog=frozenset(each.name for each in config.remotes.values() if each.catalog_file),
        )
        return StreamServices(
            clock=services.clock,
            queue_time=services.queue_time,
            turn=services.turn,
            memory=services.memory,
            timers=services.timers,
            journal=self._journal,
            commits=services.commits,
            store=self.stream_store,
            options=StreamOptions(
                segment_bytes=config.stream_segment_bytes,
                segment_bytes_min=config.stream_segment_bytes_min,
                limits=RetentionLimits(
                    age_ms(config.stream_max_age) if config.stream_max_age else None,
                    config.stream_max_bytes or None,
                ),
                flush_batches=config.stream_flush_batches,
                flush_bytes=config.stream_flush_bytes,
                flush_ms=config.stream_flush_ms,
                read_bytes_max=config.stream_read_budget_bytes,
                codec=config.stream_compression,
                compaction_dirty_percent=config.stream_compaction_dirty_percent,
                compaction_memory_bytes=config.stream_compaction_memory_bytes,
                tombstone_age_ms=age_ms(config.stream_tombstone_age),
                names_max=config.stream_names_max,
                begin_timeout_ms=config.stream_begin_timeout_ms,
            ),
            remotes=Remotes(
                self.remote_stores,
                lambda text: alarms.set_condition(STREAM_REMOTE, text),
                on_tables=lambda text: alarms.set_condition(STREAM_TABLE, text),
                timeout_ms=config.stream_remote_timeout_ms,
            ),
        )

    # A node without a cluster does not import the cluster package.

    def _cluster_parts(self, clock: SystemClock, timers: Timers, boundary: Boundary) -> ClusterParts:
        """Make the cluster's parts. Raises ListenError, ClusterError."""
        from amqp_server.cluster.wiring import begin, make_mesh, make_parts
        from quorum_queue.links.shared_port import ONE_PROCESS

        config, environment = self.config, self.environment
        directory, incarnation = begin(environment, clock)
        mesh = make_mesh(config, environment, incarnation, self._links(), self.worker or ONE_PROCESS)
        return make_parts(
            config, environment, self.commits, clock, timers, directory, incarnation, mesh, boundary
        )

    def _links(self) -> list[socket.socket]:
        """Return the sockets that listen for other nodes. Raises ListenError."""
        return [listen_for_nodes(self.config)] if self.worker is None else self.worker.links

    def _links_tls(self, parts: ClusterParts) -> Reloaded:
        from amqp_server.cluster.settings import LinksTls

        return LinksTls(self.config, parts.mesh)

    def _hosts(self, services: NodeServices, parts: ClusterParts | None) -> Hosts:
        if parts is None:
            return LocalHosts(services, self.environment, self._streams)
        from amqp_server.cluster.hosts import ClusterHosts

        return ClusterHosts(
            self.config,
            services,
            self.environment,
            parts.groups,
            parts.roster,
            parts.topology_progress,
            parts.reach,
            self._streams,
        )

    def _cluster_node(self, parts: ClusterParts, hosts: Hosts) -> ClusterNode:
        from amqp_server.cluster.hosts import ClusterHosts
        from amqp_server.cluster.node import ClusterNode

        assert isinstance(hosts, ClusterHosts)
        return ClusterNode(self.broker, parts, hosts, self.poller)

    def first_start(self) -> None:
        """Make the default vhost and user in an empty data directory."""
        broker, config = self.broker, self.config
        if len(broker.vhost_records) == 0:
            broker.add_vhost(config.default_vhost)
        if len(broker.access.users) == 0:
            broker.access.users.add(config.default_user, first_password(config), ("administrator",))
            broker.access.permissions.set(config.default_user, config.default_vhost, ".*", ".*", ".*")
        self.environment.flush()

    async def _first_start_of_cluster(self, cluster: ClusterNode) -> None:
        """Ensure that the default vhost and user exist: the node that leads the topology makes them, the
        others wait.

        A deleted default user is never made again while there is another user. If all users were deleted, the
        leader started long ago, and the node that starts now makes the default user.
        """
        broker, config = self.broker, self.config
        if not cluster.began_empty:
            return
        proposed, began = False, trio.current_time()
        while not len(broker.access.users):
            overdue = trio.current_time() - began > FIRST_USER_OVERDUE_S
            if (cluster.leads_topology or overdue) and not proposed:
                proposed = True
                broker.turn.run(self._propose_first_user)
            await trio.sleep(FIRST_USER_WAIT_S)
        if [user.name for user in broker.access.users] != [config.default_user]:
            return
        # Its permission was proposed with it, but an administrator may have removed it since.
        with trio.move_on_after(FIRST_PERMISSION_WAIT_S):
            while broker.access.permissions.get(config.default_user, config.default_vhost) is None:
                await trio.sleep(FIRST_USER_WAIT_S)

    def _propose_first_user(self) -> None:
        broker, config = self.broker, self.config
        user = broker.access.users.prepare(
            config.default_user, hashed(first_password(config)), ("administrator",)
        )
        broker.propose(PutVhost(broker.vhost_records.prepare(config.default_vhost)))
        broker.propose(PutUser(user))
        broker.propose(SetPermission(Permission(user.name, config.default_vhost, ".*", ".*", ".*")))

    def _has_majority(self) -> bool:
        return self.administration is None or self.administration.has_majority()

    def _go_on(self, cluster: ClusterNode) -> None:
        """Read this member's data from disk, and start as a member."""
        recovery.recover(self.broker, self._journal)
        cluster.start()

    async def run(
        self,
        announce: Callable[[Node], None],
        serve_sockets: Callable[[Poller], Awaitable[None]] = poll_task.serve,
    ) -> None:
        """Serve until SIGTERM or SIGINT. Raises ListenError, ClusterError, CommitFailed, Fatal."""
        config, turn = self.config, self.broker.turn
        # Before the recovery, which may take long: an address that is taken is an error of the first second.
        # Clients are refused until the sockets listen.
        sockets = bind_all(config) if self.worker is None else self.worker.sockets
        if self.cluster is None:
            check_alone(self.broker.metadata, config.data_dir)
            drop_copies(Groups(self.environment))
            turn.run(recovery.recover, self.broker, self._journal)
            streams = (queue for queue in self.broker.all_queues() if queue.type.is_stream)
            self.stream_store.keep(queue.queue_id for queue in streams)
            if not config.load_definitions:
                self.first_start()
        else:
            self.cluster.check_directory()
            if not self.cluster.stood_alone:
                turn.run(self._go_on, self.cluster)
        listening: list[tuple[socket.socket, ListenerTLS | None]] = [(sockets["amqp"], None)]
        self.amqp_address = _address(sockets["amqp"])
        if "amqps" in sockets:
            certificate = ListenerTLS(config)
            listening.append((sockets["amqps"], certificate))
            self.amqps_address = _address(sockets["amqps"])
            self.reload.certificates.append(certificate)
        http, metrics = sockets.get("http"), sockets.get("metrics")
        if http is not None:
            self.http_address = _address(http)
        if metrics is not None:
            self.metrics_address = _address(metrics)
        for option, sock in sockets.items():
            begin_listening(option, sock, config.listen_backlog)
        self.descriptors.tell()
        _settle_collector()
        # Before others hand connections over.
        lost = self._lost_connections()
        async with trio.open_nursery() as background:
            background.start_soon(serve_sockets, self.poller)
            background.start_soon(self.commits.run, turn.run, self.poller.report)
            background.start_soon(self._spill_commits.run, None, self.poller.report)
            background.start_soon(self.environment.reader.run, turn.run)
            background.start_soon(self.environment.spill.reader.run, turn.run)
            background.start_soon(self.stream_store.run, turn.run)
            if config.stream_remotes:
                background.start_soon(self.remote_stores.run, turn.run)
            background.start_soon(self._driver.run, turn, self.broker.timers, self.broker.clock, self.poller)
            background.start_soon(self.server.watch)
            if self.http_backend is not None:
                background.start_soon(self.http_backend.run)
            background.start_soon(self.resources.run)
            background.start_soon(self.reload.watch_certificates)
            if self.settings is not None:
                background.start_soon(self.settings.run)
            if self.cluster is not None:
                background.start_soon(self.cluster.run)
                if self.worker is not None:
                    background.start_soon(self._take_over, self.worker, self.cluster)
                if self.cluster.stood_alone:
                    await self.cluster.adopt(self._journal)
                    turn.run(self._go_on, self.cluster)
                    _settle_collector()
                await self.cluster.joined()
            if self.worker is not None:
                await self.worker.node_begun()
            if config.load_definitions:
                await self._load_definitions(config.load_definitions)
            if self.cluster is not None:
                await self._first_start_of_cluster(self.cluster)
            elif config.load_definitions and not len(self.broker.access.users):
                turn.run(self._propose_first_user)
            if config.reset_administrator:
                await reset_administrator(
                    self.broker, self.commits, config.reset_administrator, first_password(config)
                )
            turn.run(self.broker.topology.declare_event_exchange)
            turn.run(self._tell_lost, lost)
            async with trio.open_nursery() as serving:
                serving.start_soon(self.server.run)
                serving.start_soon(self.conditions.run)
                serving.start_soon(self.draining.run)
                serving.start_soon(self._shovel)
                serving.start_soon(self._cancel_messages)
                for sock, tls in listening:
                    serving.start_soon(self.server.serve, sock, tls)
                if http is not None:
                    serving.start_soon(self._manage, http)
                elif self.cluster is not None:
                    serving.start_soon(self._answer_others)
                if metrics is not None:
                    serving.start_soon(self._measure, metrics)
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                    # A supervisor may send SIGTERM as soon as it reads the ready line.
                    announce(self)
                    logger.info("%s", in_force(self))
                    for doubt in doubts(config):
                        logger.warning("%s", doubt)
                    async for number in signals:
                        if number != signal.SIGHUP:
                            break
                        self.reload.reload()
                logger.info("stopping")
                # Clients that come now go to another node at once.
                self.server.take_no_more()
                for sock, _ in listening:
                    # Otherwise Trio would wait for the next file that gets the same descriptor.
                    trio.lowlevel.notify_closing(sock)
                    sock.close()
                if self.cluster is not None:
                    await self.cluster.drain(config.drain_timeout_s)
                await self._say_goodbye()
                serving.cancel_scope.cancel()
            self.broker.time_notes.note()
            self.commits.stop()
            self._spill_commits.stop()
            with trio.move_on_after(STOP_TIMEOUT_S):
                await self.commits.barrier()
            background.cancel_scope.cancel()

    @cached_property
    def managed(self) -> ManagedParts:
        """What the management API uses. First read when the node listens: it has the addresses."""
        from amqp_server.management.parts import ManagedParts
        from amqp_server.management.statistics.sampler import Sampler, figures

        config, broker = self.config, self.broker
        return ManagedParts(
            config=config,
            broker=broker,
            commits=self.commits,
            resources=self.resources,
            reload=self.reload,
            draining=self.draining,
            backpressure=self.backpressure,
            descriptors=self.descriptors,
            password_checks=self.password_checks,
            authentication=self.authentication,
            tokens=self.tokens,
            cluster=self.cluster,
            administration=self.administration,
            others=self.administration,
            counted_before=(lambda node: None) if self.worker is None else self.worker.counted_before,
            shovels=lambda: self.shovels,
            sampler=Sampler(
                broker,
                partial(figures, broker, self.resources, self.commits),
                interval_s=config.statistics_interval_ms / 1000,
                bytes_max=config.statistics_bytes_max,
            ),
            remotes=self._streams.remotes,
            addresses={
                "amqp": self.amqp_address,
                "amqp/ssl": self.amqps_address,
                "http": self.http_address,
                "http/prometheus": self.metrics_address,
            },
            node_id=self.environment.node_id,
            began=self.began,
            stop=self.stop,
            clients_wait=self.poller.waited_for,
        )

    async def _load_definitions(self, path: str) -> None:
        """Import the definitions in a file before any client is served. Raises DefinitionsError."""
        await load_definitions(self.managed, path)

    def stop(self) -> None:
        """Begin an orderly shutdown, as on SIGTERM."""
        if self.worker is None:
            signal.raise_signal(signal.SIGTERM)
        else:
            # Its parent tells all workers.
            os.kill(os.getppid(), signal.SIGTERM)

    def _lost_connections(self) -> list[Mapping[str, object]]:
        """Return what is told of the connections that have ended with the worker's last process; keep note of
        those of this one.
        """
        events, worker = self.broker.events, self.worker
        if events is None or worker is None or worker.open_connections is None:
            return []
        events.kept = worker.open_connections
        return worker.open_connections.take()

    def _tell_lost(self, lost: list[Mapping[str, object]]) -> None:
        events = self.broker.events
        if events is not None and events.wanted:
            for told in lost:
                events.tell("connection.closed", told)

    async def _take_over(self, worker: Worker, cluster: ClusterNode) -> None:
        """Take connections from other workers, and hand clients' over to these."""
        from amqp_server.workers.handing_over import HandingOver

        assert self.settings is not None
        handing_over = HandingOver(
            worker,
            self.server.adopt,
            self.broker.turn,
            self.settings.look,
            cluster.mesh.take,
            cluster.mesh.connected,
            self.server.was_lost,
        )
        if self.config.worker_affinity:
            self.server.affinity = handing_over
        await handing_over.run()

    async def _manage(self, listening: socket.socket) -> None:
        # The import takes a third of a start's CPU, so clients are served first.
        await quiet_or_asked(listening)
        await imported(*MANAGEMENT)
        from amqp_server.management.serving.listener import serve

        await serve(listening, self.managed, self.config, trio.sleep_forever)

    async def _imported(self, *modules: str) -> None:
        """Import modules, once the node's other processes have started: they need the cores."""
        if self.worker is not None:
            await self.worker.node_started()
        await imported(*modules)

    async def _answer_others(self) -> None:
        """Answer the management APIs of other nodes; this node has no HTTP listener of its own."""
        assert self.cluster is not None
        # What they ask meanwhile waits.
        self.cluster.questions.answers_soon()
        await self._imported(*MANAGEMENT)
        from amqp_server.management.serving.listener import answer_others

        await answer_others(self.managed, self.config)

    async def _cancel_messages(self) -> None:
        """Cancel messages for clients, from the first one that asks on."""
        begins, begun = trio.open_memory_channel[None](1)

        def begin() -> None:
            with suppress(trio.WouldBlock):
                begins.send_nowait(None)

        self.broker.cancels.begin = begin
        await begun.receive()
        await imported("amqp_server.management.messages.cancelling", MANAGEMENT[1])
        from amqp_server.management.messages.cancelling import cancel_for_clients

        begin()
        await cancel_for_clients(self.managed, begun)

    async def _shovel(self) -> None:
        """Run the shovels that are assigned to this node."""
        from amqp_server.shovels.shovels import Shovels, always

        broker, config, administration = self.broker, self.config, self.administration

        def here(vhost: str, name: str) -> bool:
            assert administration is not None
            return administration.keeper_of(f"{vhost}\0{name}") == config.node

        self.shovels = Shovels(
            broker,
            self.server.connect,
            always if administration is None else here,
            self._clear_parameter,
            lambda: broker.runtime.parameters.cluster_name or f"mqd@{config.node}",
            self.descriptors,
        )
        await self.shovels.run()

    async def _clear_parameter(self, record: ParameterRecord) -> None:
        """Clear a parameter. Raises AMQPError."""
        from amqp_server.management.changes.proposals import clear_parameter

        await clear_parameter(self.broker, record)

    async def _measure(self, listening: socket.socket) -> None:
        await self._imported(MANAGEMENT[0])
        from amqp_server.management.serving.listener import serve_metrics

        await serve_metrics(listening, self.managed, self.config, trio.sleep_forever)

    async def _say_goodbye(self) -> None:
        """Close all connections in order (320), and wait a short time for their answers."""
        self.broker.turn.run(self._close_sessions)
        with trio.move_on_after(1.0):
            while self.server.has_goodbyes:
                await trio.sleep(0.02)

    def _close_sessions(self) -> None:
        for session in self.broker.sessions:
            session.force_close("broker forced connection closure with reason 'shutdown'")


def in_force(node: Node) -> str:
    """Return the line of the log about a node that has started: what runs, where, and by which limits."""
    config, watch = node.config, node.resources
    listeners = {
        "amqp": node.amqp_address,
        "amqps": node.amqps_address,
        "http": node.http_address,
        "metrics": node.metrics_address,
        "cluster": config.links_address,
    }
    served = ", ".join(f"{name} {address}" for name, address in listeners.items() if address)
    return (
        f"mqd {VERSION} ({BUILD}) has started as node {config.node}; listeners: {served}; data directory: "
        f"{Path(config.data_dir).resolve()}; limits: memory {watch.memory_limit_bytes} bytes, free disk "
        f"{watch.disk_free_min_bytes} bytes, connections {node.descriptors.connections_max}, message "
        f"{config.message_bytes_max} bytes"
    )


def _settle_collector() -> None:
    """Exclude the objects that exist now from garbage collection: they stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def _address(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _raise_file_limit() -> None:
    """Raise the limit of open files: connections are file descriptors, and the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def first_password(config: Config) -> str:
    """Return the password of the user that is made when there are no users. Raises SecretFileError."""
    if config.default_password_file:
        return read_password("default_password_file", config.default_password_file)
    return config.default_password


def serve(config: Config, reread: Reread | None = None, *, lasts: bool = True) -> int:
    """Run a node; return the exit code. A node that does not last is for tests: see docs/testing.md."""
    count, kept = workers_of(config), workers_on_disk(config)
    if count < kept and config.workers != AUTO:
        print(f"mqd: {_too_few(config, count, kept)}", file=sys.stderr)
        return 1
    if max(count, kept) > 1:
        refused = _of_a_cluster(config) if kept == 1 and not config.peers else None
        if refused is not None:
            print(f"mqd: {refused}", file=sys.stderr)
            return 1
        return _serve_by_workers(config, reread, max(count, kept), lasts)
    logs.begin(config.log_level, config.log_format, config.log_queue_lines_max)
    try:
        return _serve(config, reread, lasts)
    finally:
        logs.end()


def _of_a_cluster(config: Config) -> ClusterError | None:
    """Return why a directory that has no workers yet cannot get any: it is that of a member of a cluster.

    The first worker would find out, too, but then there would be directories of the others, with which the
    member could not go back to its cluster.
    """
    if not Path(config.data_dir, "main", DATA_FILE).exists():
        return None
    try:
        with closing(Environment.open(config.data_dir, log_bytes=config.log_bytes)) as environment:
            check_alone(environment, config.data_dir)
    except ClusterError as error:
        return error
    except (PersistenceError, StoreCorrupt) as error:
        # The first worker tells it.
        logger.debug("%s", error)
    return None


def serve_worker(worker: Worker, reread: Reread | None, *, lasts: bool) -> int:
    """Run one worker of a node; return the exit code."""
    config = worker.config
    logs.name_process(config.node)
    logs.begin(config.log_level, config.log_format, config.log_queue_lines_max)
    try:
        return _serve(config, reread, lasts, worker)
    finally:
        logs.end()


def _serve_by_workers(config: Config, reread: Reread | None, count: int, lasts: bool) -> int:
    # Before the workers are forked: they have these modules in common.
    import amqp_server.cluster.hosts
    import amqp_server.cluster.node  # noqa: F401
    from amqp_server.workers.parent import Parent

    return Parent(
        config,
        count,
        partial(serve_worker, reread=reread, lasts=lasts),
        partial(_print_ready, config.node),
    ).run()


def _print_ready(node: str, served: str) -> None:
    print(f"mqd ready node={node} {served} ({BUILD}, {start_time.elapsed_s():.2f} s)", flush=True)


def _serve(config: Config, reread: Reread | None, lasts: bool, worker: Worker | None = None) -> int:
    # If the disk cannot deliver a page of a mapped file, SIGBUS ends the process: then at least print a
    # message.
    faulthandler.enable()
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Modules stay, and so do the objects that are read from disk now: the collector is off until these exist.
    gc.freeze()
    gc.disable()
    if not lasts:
        hash_cheaply()
    if config.password_hashing == "rabbitmq":
        hash_like_rabbitmq()
    try:
        # Checked at every start, not only at the first: an operator who names the file needs to know that it
        # can be read.
        first_password(config)
        environment = Environment.open(
            config.data_dir,
            log_bytes=config.log_bytes,
            log_commit_bytes_max=config.log_commit_bytes_max,
            sync=lasts,
        )
    except (PersistenceError, SecretFileError) as error:
        print(f"mqd: {error}", file=sys.stderr)
        return 1
    except StoreCorrupt as error:
        print(f"mqd: {error}. {_way_back(config, error)}", file=sys.stderr)
        return 1

    def announce(node: Node) -> None:
        http = f" http={node.http_address}" if node.http_address else ""
        http += f" metrics={node.metrics_address}" if node.metrics_address else ""
        served = f"amqp={node.amqp_address}{http}"
        if worker is None:
            _print_ready(config.node, served)
        else:
            worker.begin(served)

    async def run() -> None:
        await Node(config, environment, reread, worker).run(announce, poll_task.serve_directly)

    code, again = 0, False
    try:
        trio.run(run)
    except* (
        ListenError,
        ClusterError,
        TLSFileError,
        SecretFileError,
        UserRefused,
        DefinitionsError,
    ) as group:
        # Flush the log first, so that the reason is the last line.
        logs.end()
        print(f"mqd: {_first(group)}", file=sys.stderr)
        code = OUT if worker is not None and isinstance(_first(group), OutOfCluster) else 1
    except* StartAgain:
        again = True
    except* CommitFailed as group:
        logger.critical(
            "writes to the disk failed, so the node ends (it can confirm nothing more): %s", _first(group)
        )
        code = 1
    except* StoreCorrupt as group:
        corrupt = _first(group)
        assert isinstance(corrupt, StoreCorrupt)
        logger.critical("%s. %s", corrupt, _way_back(config, corrupt))
        code = 1
    except* (Fatal, Exception) as group:
        logger.critical(
            "internal error, so the node ends. Confirmed messages are on disk; start the node again: %s",
            _first(group),
            exc_info=group,
        )
        code = INTERNAL_ERROR
    if code == 0:
        environment.close()
    if again and worker is not None:
        return AGAIN
    if again:
        # The node has announced nothing yet, and exec closes its open files.
        logs.end()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return code


def _too_few(config: Config, count: int, kept: int) -> str:
    return (
        f"the data directory {config.data_dir} has the queues of {kept} workers, and --workers is {count}: start the "
        f"node with --workers {kept}, or move what it has to another node first (shovels, mqctl export)"
    )


def _way_back(config: Config, corrupt: StoreCorrupt) -> str:
    """Return the text that tells an operator how to handle a damaged data file."""
    if not corrupt.lasts:
        return "This file is rebuilt at each start: start the node again"
    if config.peers:
        return (
            f"Replace {config.data_dir} by an empty data directory and start node '{config.node}': the "
            "other nodes fill it. Durable classic queues of this node can only come from a backup"
        )
    return (
        f"Replace {config.data_dir} by a backup, or start the node with an empty data directory (--data-dir)"
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception within nested groups."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner


main = command_line(serve)
#: Entry point of a broker that is only needed as long as the program that has started it.
main_for_tests = command_line(partial(serve, lasts=False))
