"""The node itself as the management API shows and controls it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from amqp_server.config import VERSION, Config
from amqp_server.management.objects.views import (
    ListenerView,
    NodeView,
)
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.statistics.sampler import FIGURES, Sampler
from amqp_server.management.statistics.stats import Stats
from exchanges.registry import EXCHANGE_TYPES
from persistence.own_process import files_limit, open_files

if TYPE_CHECKING:
    from amqp_server.app import Node

log = logging.getLogger("mqd.management")


class ManagedNode:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker = node.broker
        self.name = node.broker.config.node
        self.descriptors = node.descriptors
        #: None until `sample` is called.
        self.sampler: Sampler | None = None

    def sample(self, slices: Slices) -> Sampler:
        """Return the sampler of the node; the caller has to run it."""
        config = self._broker.config
        self.sampler = Sampler(
            self._broker,
            slices,
            self._figures,
            interval_s=config.statistics_interval_ms / 1000,
            bytes_max=config.statistics_bytes_max,
        )
        return self.sampler

    def _figures(self) -> tuple[int, ...]:
        """Return the values of sampler.FIGURES."""
        watch, syncs = self._node.resources, self._node.commits.syncs
        sockets = len(self._broker.sessions)
        return watch.memory_bytes, watch.disk_free_bytes, open_files(), sockets, syncs.count, syncs.count

    def churn(self) -> dict[str, int]:
        ended = self._broker.counts.ended
        return {
            "connection_created": ended.connections_created,
            "connection_closed": ended.connections_closed,
            "channel_created": ended.channels_created,
            "channel_closed": ended.channels_closed,
            "queue_declared": ended.queues_declared,
            "queue_created": ended.queues_created,
            "queue_deleted": ended.queues_deleted,
        }

    def view(self, stats: Stats | None = None) -> NodeView:
        watch = self._node.resources
        alarms = self._broker.alarms.names()
        config, syncs = self._broker.config, self._node.commits.syncs
        figures = dict(zip(FIGURES, self._figures(), strict=True))
        told: dict[str, Any] = {} if stats is None else stats.churn(self.churn()) | stats.figures(figures)
        told["io_sync_avg_time"] = round(1000 * syncs.seconds / syncs.count, 3) if syncs.count else 0.0
        return NodeView(
            name=self.name,
            os_pid=str(os.getpid()),
            uptime=int((time.monotonic() - self._node.began) * 1000),
            processors=os.cpu_count() or 1,
            mem_used=watch.memory_bytes,
            mem_limit=watch.memory_limit_bytes,
            mem_alarm="memory" in alarms,
            disk_free=watch.disk_free_bytes,
            disk_free_limit=watch.disk_free_min_bytes,
            disk_free_alarm=any(name.startswith("disk") for name in alarms),
            fd_used=open_files(),
            fd_total=files_limit(),
            sockets_used=len(self._broker.sessions),
            sockets_total=files_limit(),
            rates_mode="basic",
            db_dir=config.data_dir,
            net_ticktime=config.cluster_dead_ms // 1000,
            applications=[{"name": "mqd", "description": "AMQP 0-9-1 broker", "version": VERSION}],
            auth_mechanisms=[
                {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": enabled}
                for name, enabled in (
                    ("PLAIN", True),
                    ("AMQPLAIN", True),
                    ("EXTERNAL", bool(config.amqps) and config.tls_login_from != "off"),
                )
            ],
            contexts=self.contexts(),
            exchange_types=self.exchange_types(),
            stats=told,
        )

    def alarms(self) -> list[str]:
        """Return the names of the alarms of this node, as health checks show them."""
        found = dict.fromkeys(
            "disk" if name.startswith("disk") else name for name in self._broker.alarms.names()
        )
        return sorted(found)

    def memory(self) -> tuple[int, int]:
        """Return the memory of the node in bytes, and the share of message bodies in it."""
        return self._node.resources.memory_bytes, self._broker.services.memory.used

    def contexts(self) -> list[dict[str, Any]]:
        """Return the management listener in RabbitMQ's format for its web server."""
        if not self._node.http_address:
            return []
        host, _, port = self._node.http_address.rpartition(":")
        return [
            {
                "description": "mqd Management",
                "path": "/",
                "ip": host.strip("[]"),
                "port": port,
                "cowboy_opts": "[]",
                "ssl_opts": [],
            }
        ]

    def listeners(self) -> Iterable[ListenerView]:
        node = self._node
        told = (
            ("amqp", node.amqp_address),
            ("amqp/ssl", node.amqps_address),
            ("http", node.http_address),
            ("http/prometheus", node.metrics_address),
        )
        for protocol, address in told:
            if address:
                host, _, port = address.rpartition(":")
                yield ListenerView(
                    protocol=protocol, ip_address=host.strip("[]"), port=int(port), node=self.name
                )

    def certificates(self) -> list[str]:
        """Return the files of the certificates that the node presents to clients and to other nodes."""
        config = self._broker.config
        files = [config.tls_cert_file] if config.amqps and config.tls_cert_file else []
        if self._node.cluster is not None and config.cluster_tls_cert_file:
            files.append(config.cluster_tls_cert_file)
        return files

    def exchange_types(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in EXCHANGE_TYPES
        ]

    def set_memory_limit(self, limit: str) -> None:
        """Set the limit: a share of the machine's memory ("0.6") or a size in bytes. Raises InvalidOption."""
        self._node.resources.set_memory_limit(Config(memory_limit=limit).memory_limit_bytes)

    async def stop(self) -> None:
        """Start an orderly shutdown of the node. Returns before it is complete."""
        log.info("the management API requested that the node stop")
        self._node.stop()

    async def synced(self) -> None:
        """Return when all changes made until now are on disk."""
        await self._node.commits.barrier()
