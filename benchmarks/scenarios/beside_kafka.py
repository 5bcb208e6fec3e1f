"""mqd's streams and transactions beside Kafka, each with its own clients: `--brokers mqd,kafka`.

Kafka acknowledges what the kernel has, and its topics may be told to sync each batch; mqd confirms what is on
the disk. Clients of both run on the machine of the broker, so that rates hold for both together; the CPU is
the broker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from .. import maven
from ..brokers import Broker
from ..client import Connection
from ..clock import percentiles
from ..frames import message
from ..kafka import Kafka
from ..pump import Pace
from ..settled import Settled
from ..streams import properties
from .latency import STREAM_RATE, clocked
from .scenario import CPU_US, RSS_MIB, Bar, Figure, Figures, Scenario, at_least, at_most
from .stream import STREAM, append, replay
from .transactions import SIZE, Moves

MIB = 1 << 20
APPENDED_BYTES, WARM_BYTES = 256 * MIB, 32 * MIB
#: Java's virtual machine compiles code that runs often; before that its clients are slow.
WARM_S = 5.0


class BesideKafka(Scenario):
    quick = False

    def missing(self) -> str | None:
        return maven.missing()


class Append(BesideKafka):
    def __init__(self, size: int, *, synced: bool) -> None:
        """`size` of a message, bytes; `synced`: Kafka's topic syncs before it acknowledges, as mqd does."""
        self.name = f"kafka-append-{size}{'-synced' if synced else ''}"
        self.title = f"a stream or topic, {size} B, one producer, {'Kafka syncs, too' if synced else 'Kafka as it comes'}"
        self.figures = (
            Figure("append", "append msg/s", at_least(1)),
            Figure("replay", "replay msg/s", at_least(1)),
            Figure("replay_cpu_us", "replay, broker CPU µs", at_most(1)),
        )
        self._size = size
        self._synced = synced

    def run(self, broker: Broker, pace: Pace) -> Figures:
        count = int(APPENDED_BYTES / self._size * pace.share)
        warm = int(WARM_BYTES / self._size * pace.share)
        cpu = broker.cpu_seconds()
        if isinstance(broker, Kafka):
            before, append_rate, replay_rate, after = self._kafka(broker, warm, count)
        else:
            before, append_rate, replay_rate, after = self._mqd(broker, warm, count)
        total = warm + count
        return {
            "append": append_rate,
            "replay": replay_rate,
            "replay_cpu_us": (after - before) / total * 1e6,
            # With what comes before the measured part, also for mqd: Kafka's program does both at once.
            CPU_US: (before - cpu) / total * 1e6,
            RSS_MIB: broker.rss_bytes() / MIB,
        }

    def _kafka(self, broker: Kafka, warm: int, count: int) -> tuple[float, float, float, float]:
        topic = _new_name()
        broker.topics(topic, synced=self._synced)
        appended = broker.produced(topic, warm + count, warm, self._size)
        between = broker.cpu_seconds()
        return between, appended, broker.consumed(topic, warm + count), broker.cpu_seconds()

    def _mqd(self, broker: Broker, warm: int, count: int) -> tuple[float, float, float, float]:
        total, messages = warm + count, [message("", STREAM, b"b" * self._size, properties())]
        with Connection(broker.port) as connection:
            connection.queue(STREAM, durable=True, **{"x-queue-type": "stream"})
            connection.confirms()
            settled = Settled(total)
            append(connection, settled, warm, messages)
            appended = append(connection, settled, total, messages)
            between = broker.cpu_seconds()
            replayed = replay(broker, 1, total, messages)
            after = broker.cpu_seconds()
            connection.delete_queue(STREAM)
        return between, count / appended, total / replayed, after


class Latency(BesideKafka):
    name = "kafka-latency"
    title = f"a stream or topic, 128 B, at {STREAM_RATE:,} msg/s, acknowledged"
    figures = (
        Figure("delivery_p50_ms", "delivery p50 ms", at_most(1)),
        Figure("delivery_p99_ms", "delivery p99 ms", at_most(1)),
        Figure("confirm_p99_ms", "confirm p99 ms"),
    )

    def run(self, broker: Broker, pace: Pace) -> Figures:
        seconds = pace.run_s * 2
        if isinstance(broker, Kafka):
            broker.topics(topic := _new_name())
            return _loaded(broker, "latency", WARM_S, seconds, topic, STREAM_RATE)
        warm, total = int(STREAM_RATE * WARM_S), int(STREAM_RATE * (WARM_S + seconds))
        clock, cpu = clocked(broker, "stream", total)
        figures = percentiles("delivery", clock.delivered[warm:]) | percentiles(
            "confirm", clock.confirmed[warm:]
        )
        return figures | {CPU_US: cpu / total * 1e6, RSS_MIB: broker.rss_bytes() / MIB}


class Transactions(BesideKafka):
    """mqd acks the messages of one durable queue and publishes to another; Kafka's clients commit offsets of
    a topic with what they append to another.
    """

    def __init__(self, clients: int, bar: Bar) -> None:
        self.name = f"kafka-transactions-{clients}"
        self.title = f"consume-publish transactions of {SIZE} messages, 128 B, {clients} clients"
        self.figures = (Figure("rate", "messages/s", bar),)
        self._clients = clients
        self._mqd = Moves(self.name, self.title, bar, clients // 2)

    def run(self, broker: Broker, pace: Pace) -> Figures:
        if not isinstance(broker, Kafka):
            return self._mqd.run(broker, pace)
        topics = _new_name()
        broker.topics(f"{topics}-0", f"{topics}-1", partitions=self._clients // 2)
        return _loaded(broker, "transactions", WARM_S, pace.run_s, topics, self._clients, SIZE)


def _new_name() -> str:
    """A restart instead would make the virtual machine compile Kafka anew."""
    return f"bench-{uuid4().hex[:8]}"


def _loaded(broker: Kafka, *arguments: object) -> Figures:
    cpu = {}

    def began() -> None:
        cpu["began"] = broker.cpu_seconds()

    def ended(count: int) -> None:
        cpu[CPU_US] = (broker.cpu_seconds() - cpu.pop("began")) / count * 1e6

    figures = broker.loaded(*arguments, began=began, ended=ended)
    return figures | cpu | {RSS_MIB: broker.rss_bytes() / MIB}


KAFKA_SCENARIOS: Sequence[Scenario] = (
    Append(128, synced=False),
    Append(128, synced=True),
    Append(1024, synced=False),
    Append(1024, synced=True),
    Latency(),
    Transactions(2, at_least(1)),
    Transactions(16, at_least(1)),
)
