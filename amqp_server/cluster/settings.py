"""The options of links and of replication, made from the configuration."""

from __future__ import annotations

import ssl
from pathlib import Path

from amqp_server.cluster.errors import ClusterError
from amqp_server.config import Config
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.links.ports import LinkOptions


def secret(config: Config) -> bytes:
    path = Path(config.cluster_secret_file)
    try:
        found = path.read_bytes().strip()
    except OSError as error:
        raise ClusterError(f"the cluster's secret in {path} can't be read: {error.strerror}") from None
    if len(found) < 16:
        raise ClusterError(
            f"the cluster's secret in {path} has {len(found)} bytes, it needs 16 at least: "
            "write some from /dev/urandom, in base64, and give all nodes the same file"
        )
    return found


def tls(config: Config) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Contexts for both ends of a link: each shows its certificate and requires the other's."""
    if not config.cluster_tls_cert_file:
        return None
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config.cluster_tls_ca_file)
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=config.cluster_tls_ca_file)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(config.cluster_tls_cert_file, config.cluster_tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(f"the certificates for the links can't be used: {error}") from None
    return server, client


def link_options(config: Config) -> LinkOptions:
    return LinkOptions(
        frame_bytes_max=config.cluster_frame_bytes_max,
        queue_bytes_max=config.cluster_queue_bytes_max,
        read_bytes=config.receive_bytes,
        heartbeat_ms=config.cluster_heartbeat_ms,
        dead_ms=config.cluster_dead_ms,
        half_open_max=config.cluster_strangers_max,
    )


def replication_options(config: Config) -> ReplicationOptions:
    return ReplicationOptions(
        gather_ms=config.gather_ms,
        snapshot_entries=config.snapshot_entries,
        snapshot_bytes=config.snapshot_bytes,
        log_bytes_max=config.log_bytes_max,
        transfer_bytes_max=config.transfer_bytes_max,
        transfer_timeout_ms=config.transfer_timeout_ms,
        node_down_ms=config.node_down_ms,
        disk_stall_ms=config.disk_stall_ms,
        change_timeout_ms=config.change_timeout_ms,
        rebalance_ms=config.rebalance_ms,
        reach_ms=config.cluster_reach_ms,
        steady_ms=config.cluster_steady_ms,
        handover_groups=config.handover_groups,
        bodies_bytes=config.bodies_bytes,
        lost_entry_retry_ms=config.lost_entry_retry_ms,
        lost_entry_report_ms=config.lost_entry_report_ms,
        lost_entry_refill_ms=config.lost_entry_refill_ms,
        read_ahead_bytes=config.quorum_read_ahead_bytes,
    )
