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
from amqp_server.management.statistics.sampler import FIGURES
from amqp_server.management.statistics.stats import Stats
from exchanges.registry import EXCHANGE_TYPES
from persistence.own_process import files_limit, open_files

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts

log = logging.getLogger("mqd.management")


class ManagedNode:
    def __init__(self, parts: ManagedParts) -> None:
        self._parts = parts
        self._broker = parts.broker
        self.name = parts.config.node
        self.descriptors = parts.descriptors
        self.sampler = parts.sampler

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
        watch = self._parts.resources
        alarms = self._broker.alarms.names()
        config, syncs = self._broker.config, self._parts.commits.syncs
        figures = dict(zip(FIGURES, self.sampler.figures(), strict=True))
        told: dict[str, Any] = {} if stats is None else stats.churn(self.churn()) | stats.figures(figures)
        told["io_sync_avg_time"] = round(1000 * syncs.seconds / syncs.count, 3) if syncs.count else 0.0
        return NodeView(
            name=self.name,
            os_pid=str(os.getpid()),
            uptime=int((time.monotonic() - self._parts.began) * 1000),
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
        return self._parts.resources.memory_bytes, self._broker.services.memory.used

    def contexts(self) -> list[dict[str, Any]]:
        """Return the management listener in RabbitMQ's format for its web server."""
        address = self._parts.addresses["http"]
        if not address:
            return []
        host, _, port = address.rpartition(":")
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
        for protocol, address in self._parts.addresses.items():
            if address:
                host, _, port = address.rpartition(":")
                yield ListenerView(
                    protocol=protocol, ip_address=host.strip("[]"), port=int(port), node=self.name
                )

    def certificates(self) -> list[str]:
        """Return the files of the certificates that the node presents to clients and to other nodes."""
        config = self._broker.config
        files = [config.tls_cert_file] if config.amqps and config.tls_cert_file else []
        if self._parts.cluster is not None and config.cluster_tls_cert_file:
            files.append(config.cluster_tls_cert_file)
        return files

    def exchange_types(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in EXCHANGE_TYPES
        ]

    def set_memory_limit(self, limit: str) -> None:
        """Set the limit: a share of the machine's memory ("0.6") or a size in bytes. Raises InvalidOption."""
        self._parts.resources.set_memory_limit(Config(memory_limit=limit).memory_limit_bytes)

    async def stop(self) -> None:
        """Start an orderly shutdown of the node. Returns before it is complete."""
        log.info("the node is stopped by a request of the management API")
        self._parts.stop()

    async def synced(self) -> None:
        """Return when all changes made until now are on disk."""
        await self._parts.commits.barrier()
