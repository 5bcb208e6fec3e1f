"""The registry: every scenario, in the order of the report."""

from __future__ import annotations

from ..streams import Terms
from . import routes
from .beside_kafka import KAFKA_SCENARIOS as KAFKA_SCENARIOS
from .closed_loop import ClosedLoop
from .cluster import CLUSTER_SCENARIOS
from .cluster_group import CLUSTER_GROUP_SCENARIOS
from .connections import Churn, IdleConnections
from .group import GROUP_SCENARIOS
from .latency import Latency, StreamLatency
from .order import ORDER_SCENARIOS
from .perf_test import PerfTest
from .queues import Backlog, ManyQueues
from .scenario import Scenario, at_least
from .searched import Searched
from .spark import SPARK_SCENARIOS
from .spark_read import SPARK_READ_SCENARIOS
from .spark_stream import SPARK_STREAM_SCENARIOS
from .startup import Startup
from .stream import DistinctReplay, Replay, SuperStream
from .throughput import Throughput
from .transactions import TRANSACTION_SCENARIOS
from .waiting import WAITING_SCENARIOS
from .watched import Watched

CONFIRM_WINDOW = 1_000
PREFETCH = 500
#: Messages that wait for a consumer with a prefetch of one: enough that there is always one.
PREFETCH_1_AHEAD = 200

TRANSIENT, OTHER, LARGE = at_least(6), at_least(4), at_least(1)

SCENARIOS: tuple[Scenario, ...] = (
    Throughput("transient-16", "transient, auto-ack, 16 B", TRANSIENT, routes.one_queue(16), quick=False),
    Throughput("transient-128", "transient, auto-ack, 128 B", TRANSIENT, routes.one_queue(128)),
    Throughput(
        "transient-1k", "transient, auto-ack, 1 KiB", TRANSIENT, routes.one_queue(1 << 10), quick=False
    ),
    Throughput(
        "transient-16k", "transient, auto-ack, 16 KiB", LARGE, routes.one_queue(16 << 10), quick=False
    ),
    Throughput("transient-1m", "transient, auto-ack, 1 MiB", LARGE, routes.one_queue(1 << 20), quick=False),
    Throughput(
        "confirms",
        "transient, confirms, window 1000",
        OTHER,
        routes.one_queue(128),
        Terms(None, CONFIRM_WINDOW),
    ),
    Throughput(
        "durable",
        "durable, persistent, confirms, acks one by one, prefetch 500",
        OTHER,
        routes.durable_queue,
        Terms(PREFETCH, CONFIRM_WINDOW),
    ),
    Throughput(
        "prefetch-1",
        "transient, acks one by one, prefetch 1",
        at_least(1),
        routes.one_queue(128),
        Terms(1, ahead=PREFETCH_1_AHEAD),
        quick=False,
    ),
    Throughput(
        "prefetch-500",
        "transient, acks one by one, prefetch 500",
        OTHER,
        routes.one_queue(128),
        Terms(PREFETCH),
        quick=False,
    ),
    Throughput(
        "prefetch-none",
        "transient, acks one by one, no prefetch limit",
        OTHER,
        routes.one_queue(128),
        Terms(0),
        quick=False,
    ),
    Throughput("topic-1000", "topic exchange, 1,000 bindings", OTHER, routes.topic),
    Throughput("headers-100", "headers exchange, 100 bindings", OTHER, routes.headers),
    Throughput("fanout-10", "fanout to 10 queues, 10 consumers", OTHER, routes.fanout),
    Throughput("four-by-four", "4 publishers, 4 queues, 4 consumers", OTHER, routes.four_queues, quick=False),
    Throughput("distinct-headers", "transient, all headers different", OTHER, routes.distinct_headers),
    Throughput(
        "ids",
        "transient, auto-ack, a message-id in each",
        OTHER,
        routes.with_ids(recorded=False, durable=False),
        quick=False,
    ),
    Throughput(
        "ids-recorded",
        "the same, in a queue with x-message-status",
        OTHER,
        routes.with_ids(recorded=True, durable=False),
        quick=False,
    ),
    Throughput(
        "durable-ids",
        "durable, persistent, confirms, acks one by one, a message-id in each",
        OTHER,
        routes.with_ids(recorded=False, durable=True),
        Terms(PREFETCH, CONFIRM_WINDOW),
        quick=False,
    ),
    Throughput(
        "durable-ids-recorded",
        "the same, in a queue with x-message-status",
        OTHER,
        routes.with_ids(recorded=True, durable=True),
        Terms(PREFETCH, CONFIRM_WINDOW),
        quick=False,
    ),
    Latency(5_000, quick=True),
    Latency(20_000, quick=False),
    PerfTest(
        "perf-test", "PerfTest, 100 producers with 1 unconfirmed each, 100 consumers", 100, 1, at_least(1.3)
    ),
    PerfTest("perf-test-1", "PerfTest, 1 producer with 100 unconfirmed, 1 consumer", 1, 100, at_least(3)),
    ClosedLoop(1, "transient"),
    ClosedLoop(1, "durable"),
    ClosedLoop(100, "transient"),
    ClosedLoop(100, "durable"),
    ClosedLoop(100, "quorum"),
    ClosedLoop(1_000, "transient"),
    ClosedLoop(1_000, "durable"),
    ClosedLoop(1_000, "quorum"),
    Churn(),
    IdleConnections(),
    ManyQueues(),
    Backlog(),
    *ORDER_SCENARIOS,
    *WAITING_SCENARIOS,
    Replay(),
    DistinctReplay(),
    SuperStream(),
    StreamLatency(),
    *GROUP_SCENARIOS,
    Startup(),
    Watched(),
    Searched(),
    *CLUSTER_SCENARIOS,
    *CLUSTER_GROUP_SCENARIOS,
    ClosedLoop(100, "transient", nodes=3),
    ClosedLoop(100, "durable", nodes=3),
    ClosedLoop(1_000, "transient", nodes=3),
    ClosedLoop(1_000, "durable", nodes=3),
    ClosedLoop(1, "quorum", nodes=3),
    ClosedLoop(100, "quorum", nodes=3),
    ClosedLoop(200, "quorum", nodes=3),
    ClosedLoop(1_000, "quorum", nodes=3),
    *TRANSACTION_SCENARIOS,
    *SPARK_SCENARIOS,
    *SPARK_READ_SCENARIOS,
    *SPARK_STREAM_SCENARIOS,
)
