"""mqd serves the metrics that RabbitMQ's Grafana boards query, with the names and labels of their queries."""

from __future__ import annotations

import pytest
from prometheus_client import Metric

from amqp_server.management.statistics import metrics_text

from ..connection.node import Peer
from .conftest import ManagedNode
from .test_metrics import peer, scrape

__all__ = ["peer"]

pytestmark = pytest.mark.trio


def named(text: str) -> frozenset[str]:
    return frozenset(f"rabbitmq_{name}" for name in text.split())


#: Metrics of both Overview boards.
COMMON = named(
    """
    build_info channels channels_closed_total channels_opened_total connections connections_closed_total
    connections_opened_total disk_space_available_bytes global_messages_acknowledged_total
    global_messages_confirmed_total global_messages_delivered_consume_auto_ack_total
    global_messages_delivered_consume_manual_ack_total global_messages_delivered_get_auto_ack_total
    global_messages_delivered_get_manual_ack_total global_messages_get_empty_total
    global_messages_received_confirm_total global_messages_received_total global_messages_redelivered_total
    global_messages_routed_total global_messages_unroutable_dropped_total
    global_messages_unroutable_returned_total identity_info process_resident_memory_bytes queue_messages_ready
    queue_messages_unacked queues queues_created_total queues_declared_total queues_deleted_total
    resident_memory_limit_bytes
    """
)
OVERVIEW = {
    "3.10": COMMON
    | named(
        """
        channel_consumers consumers process_max_fds process_max_tcp_sockets process_open_fds
        process_open_tcp_sockets
        """
    ),
    "4.2": COMMON
    | named(
        """
        disk_space_available_limit_bytes erlang_uptime_seconds global_consumers
        global_messages_delivered_total global_publishers message_size_bytes_bucket message_size_bytes_count
        message_size_bytes_sum process_max_fds process_open_fds
        """
    ),
}
QUORUM_QUEUES = {
    "3.10": named(
        """
        identity_info raft_entry_commit_latency_seconds raft_log_commit_index raft_log_last_written_index
        raft_log_snapshot_index raft_term_total
        """
    ),
    "4.2": named(
        """
        identity_info raft_commit_index raft_commit_latency_seconds raft_last_written_index raft_log_commit_index
        raft_log_last_written_index raft_log_snapshot_index raft_snapshot_index raft_term
        """
    ),
}
#: Metrics of both Stream boards, which add up only samples with the label `protocol="stream"`, and the errors
#: of that protocol.
STREAM = named(
    """
    global_consumers global_messages_confirmed_total global_messages_delivered_total
    global_messages_received_total global_publishers identity_info
    """
)
#: To time each entry would cost something for each message; see docs/monitoring.md.
NOT_SERVED = named("raft_commit_latency_seconds raft_entry_commit_latency_seconds")
LABELS = {
    # Each query joins on this metric, and takes the node's name from it.
    "rabbitmq_identity_info": {"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"},
    "rabbitmq_build_info": {"rabbitmq_version", "erlang_version"},
    "rabbitmq_global_messages_received_total": {"protocol"},
    "rabbitmq_message_size_bytes_bucket": {"protocol", "le"},
    "rabbitmq_global_messages_delivered_total": {"protocol", "queue_type"},
}


def sampled(families: list[Metric]) -> dict[str, set[str]]:
    """Return the labels by the name of the sample."""
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
@pytest.mark.parametrize("board", OVERVIEW.values(), ids=OVERVIEW.keys())
async def test_overview(node: ManagedNode, peer: Peer, path: str, board: frozenset[str]) -> None:
    found = sampled(await scrape(node, path))
    assert board - NOT_SERVED - found.keys() == set()
    for name in LABELS.keys() & board:
        assert LABELS[name] <= found[name], name


async def test_stream(node: ManagedNode, peer: Peer) -> None:
    found = sampled(await scrape(node, "/metrics"))
    assert STREAM - found.keys() == set()


@pytest.mark.parametrize("board", QUORUM_QUEUES.values(), ids=QUORUM_QUEUES.keys())
async def test_quorum_queues(board: frozenset[str]) -> None:
    """test_metrics.py checks their values: these metrics exist in a cluster only."""
    assert board - NOT_SERVED - set(metrics_text.names()) == set()


async def test_what_is_not_served_is_on_a_board() -> None:
    boards = frozenset[str]().union(*OVERVIEW.values(), *QUORUM_QUEUES.values())
    assert boards - set(metrics_text.names()) == NOT_SERVED
