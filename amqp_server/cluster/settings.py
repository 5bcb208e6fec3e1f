"""The options of links and of replication, made from the configuration."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from amqp_server.cluster.errors import ClusterError
from amqp_server.config import MIB, Config
from amqp_server.connection.sockets.tls import (
    PEMFile,
    TLSFileError,
    file_stamps,
    load_authorities,
    load_certificate,
)
from amqp_server.secret_files import SecretFileError, read_secret
from persistence.own_process import SHORT
from persistence.replica_logs.record import ENTRY_BYTES_MAX
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.links.ports import LinkOptions

if TYPE_CHECKING:
    from quorum_queue.links.mesh import Mesh

logger = logging.getLogger("mqd.cluster")


def secret(config: Config) -> bytes:
    path = config.cluster_secret_file
    try:
        found = read_secret("cluster_secret_file", path).strip()
    except SecretFileError as error:
        raise ClusterError(str(error)) from None
    if len(found) < 16:
        raise ClusterError(
            f"the cluster's secret in {path} has {len(found)} bytes, it must have at least 16. Create one "
            "with `head -c 32 /dev/urandom | base64`, and give all nodes the same file"
        )
    return found


def tls(config: Config) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return contexts for both ends of a link: each presents its certificate and requires the other's.

    Raises ClusterError.
    """
    if not config.cluster_tls_cert_file:
        return None
    certificate = PEMFile("cluster-tls-cert-file", config.cluster_tls_cert_file)
    key = PEMFile("cluster-tls-key-file", config.cluster_tls_key_file)
    authorities = PEMFile("cluster-tls-ca-file", config.cluster_tls_ca_file)
    # Trust no authority but the cluster's own.
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    try:
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            load_authorities(context, authorities)
            load_certificate(context, certificate, key)
    except (TLSFileError, SecretFileError) as error:
        raise ClusterError(f"the certificates for links can't be used: {error}") from None
    return server, client


class LinksTls:
    """The TLS contexts of the links, made again when their files have changed: later links get the new
    certificate.
    """

    def __init__(self, config: Config, mesh: Mesh) -> None:
        self._config = config
        self._mesh = mesh
        self._stamps = self._read_stamps()

    def _read_stamps(self) -> list[tuple[int, int, int] | None]:
        config = self._config
        return file_stamps(
            config.cluster_tls_cert_file, config.cluster_tls_key_file, config.cluster_tls_ca_file
        )

    def reload(self) -> None:
        """Read the files again if they have changed. If they cannot be used, keep the current contexts."""
        if not self._config.cluster_tls_cert_file:
            return
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        before, self._stamps = self._stamps, stamps
        try:
            self._mesh.use_tls(tls(self._config))
        except OSError as error:
            if error.errno not in SHORT:
                raise
            # No file can be opened now: try again the next time.
            self._stamps = before
            logger.error("the certificate for links can't be read at the moment: %s", error)
        except ClusterError as error:
            logger.error("the new certificate for links can't be used, so links keep the old one: %s", error)
        else:
            logger.info("new links use the certificate that is now in %s", self._config.cluster_tls_cert_file)


#: An entry of the largest size, with small ones beside it, is one frame.
FRAME_BYTES_MIN = ENTRY_BYTES_MAX + 8 * MIB
#: While a large frame leaves, other frames wait for it, and perhaps another large one.
QUEUE_BYTES_MIN = 2 * FRAME_BYTES_MIN


def link_options(config: Config) -> LinkOptions:
    return LinkOptions(
        frame_bytes_max=max(config.cluster_frame_bytes_max, FRAME_BYTES_MIN),
        queue_bytes_max=max(config.cluster_queue_bytes_max, QUEUE_BYTES_MIN),
        read_bytes=config.receive_bytes,
        read_s=config.turn_ms / 1000,
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
        unsent_bytes_max=max(config.cluster_queue_bytes_max, QUEUE_BYTES_MIN) // 2,
        transfer_timeout_ms=config.transfer_timeout_ms,
        node_down_ms=config.node_down_ms,
        disk_stall_ms=config.disk_stall_ms,
        change_timeout_ms=config.change_timeout_ms,
        read_index_timeout_ms=config.read_index_timeout_ms,
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
