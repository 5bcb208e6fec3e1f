"""Takes the samples: at intervals it reads every connection, channel, queue and exchange of this node, in
slices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from amqp_server.broker.traffic import COUNTERS, Traffic
from amqp_server.connection.session import Session
from amqp_server.management.request.time_slices import Rest
from amqp_server.management.statistics.history import Histories, Totals
from persistence.own_process import open_files

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.channel import Channel
    from amqp_server.resources import ResourceWatch
    from exchanges.router import Exchange
    from persistence.commits.commit import Commit

log = logging.getLogger("mqd.management")

LENGTHS = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS = ("recv_oct", "send_oct")
#: The fields in the order of Traffic.values, then the sum of all deliveries.
TRAFFIC = (*COUNTERS, "deliver_get")
#: The fields in the order of Ended.churn.
CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
FIGURES = ("mem_used", "disk_free", "fd_used", "sockets_used", "io_sync_count", "io_write_count")

CHANNEL_FIELDS = TRAFFIC
EXCHANGE_FIELDS = ("publish_in", "publish_out")
QUEUE_FIELDS = (*LENGTHS, *TRAFFIC)
VHOST_FIELDS = (*LENGTHS, *OCTETS, *TRAFFIC)
NODE_FIELDS = (*LENGTHS, *OCTETS, *TRAFFIC, *CHURN, *FIGURES)

#: A sample takes at most this share of the time between two samples; if it takes longer, samples are taken
#: less often.
SHARE_MAX = 0.01
#: Unused queues that one step passes over.
UNUSED_AT_ONCE = 32
_NO_TRAFFIC = Traffic()
_ZEROS = (0,) * len(TRAFFIC)


def traffic_values(traffic: Traffic) -> tuple[int, ...]:
    """Return the values of TRAFFIC."""
    delivered = traffic.deliver + traffic.deliver_no_ack + traffic.get + traffic.get_no_ack
    return (*traffic.values(), delivered)


def channel_values(channel: Channel) -> tuple[int, ...]:
    return traffic_values(channel.counted())


def queue_values(queue: Queue) -> tuple[int, ...]:
    """Return the values of QUEUE_FIELDS: lengths of the whole queue, and what clients of this node did."""
    host = queue.host
    ready, unacked, traffic = host.ready_count, host.unacked_count, queue.traffic
    counted = _ZEROS if traffic is None else traffic_values(traffic)
    return (ready + unacked + host.delayed_count, ready, unacked, queue.published, *counted[1:])


def exchange_values(exchange: Exchange) -> tuple[int, ...]:
    return (exchange.published_in, exchange.published_out)


def figures(broker: Broker, resources: ResourceWatch, commits: Commit) -> tuple[int, ...]:
    """Return the values of FIGURES."""
    syncs = commits.syncs.count
    return (
        resources.memory_bytes,
        resources.disk_free_bytes,
        open_files(),
        len(broker.sessions),
        syncs,
        syncs,
    )


class Sum:
    """Adds up values of objects."""

    def __init__(self, width: int) -> None:
        self.values = [0] * width

    def add(self, at: int, values: tuple[int, ...]) -> None:
        own = self.values
        for index, value in enumerate(values, at):
            if value:
                own[index] += value


class Sampler:
    """Samples the objects of a node; its histories are empty until the first sample."""

    def __init__(
        self,
        broker: Broker,
        figures: Callable[[], tuple[int, ...]],
        *,
        interval_s: float,
        bytes_max: int,
    ) -> None:
        """`figures` returns the values of FIGURES."""
        self._broker = broker
        self.figures = figures
        self.interval_s = interval_s
        self.histories = Histories(bytes_max, interval_s)
        #: Values of VHOST_FIELDS in the last sample; their histories have the vhosts' names as keys.
        self.vhosts: dict[str, tuple[int, ...]] = {}
        self.node = Totals(interval_s, len(NODE_FIELDS))
        #: Time of the last sample, s of the loop's thread.
        self.took_s = 0.0

    async def run(self, rest: Rest) -> None:
        while True:
            await self.sample(rest)
            await trio.sleep(max(self.interval_s, self.took_s / SHARE_MAX))

    async def sample(self, rest: Rest = trio.lowlevel.checkpoint) -> None:
        """Sample all objects once; `rest` is called between two short steps."""
        clock = self._broker.clock
        now_ms = clock.monotonic_ms()
        ahead_ms = clock.wall_ms() - now_ms
        self.took_s = 0.0
        histories = self.histories
        histories.timeline.advance(now_ms, ahead_ms)
        # Closed objects are read first, so that an object that closes during the sample counts once and not
        # twice.
        sums = {name: self._ended_of(name) for name in list(self._broker.vhosts)}
        node = Sum(len(NODE_FIELDS))
        ended = self._broker.counts.ended
        node.add(len(LENGTHS), (ended.received_bytes, ended.sent_bytes, *traffic_values(ended.traffic)))
        await self._do(self._objects(sums, node), rest)
        self._note(node)
        before, zeros = self.vhosts, (0,) * len(VHOST_FIELDS)
        self.vhosts = {
            name: _risen(before.get(name, zeros), sum_.values, len(LENGTHS))
            for name, sum_ in sums.items()
            if any(sum_.values)
        }
        for name, values in self.vhosts.items():
            histories.record(name, values)
        await self._do(histories.forget_gone(), rest)
        node.add(len(NODE_FIELDS) - len(CHURN) - len(FIGURES), ended.churn())
        node.add(len(NODE_FIELDS) - len(FIGURES), self.figures())
        stop = len(NODE_FIELDS) - len(FIGURES)
        self.node.record(now_ms, _risen(self.node.values, node.values, len(LENGTHS), stop), ahead_ms)

    def _note(self, node: Sum) -> None:
        counts, start, traffic = self._broker.counts, len(LENGTHS) + len(OCTETS), Traffic()
        traffic.resume(node.values[start : start + len(COUNTERS)])
        counts.counted.traffic(traffic)
        counts.counted.churn(counts.ended)

    def _ended_of(self, name: str) -> Sum:
        vhost, sum_ = self._broker.vhosts[name], Sum(len(VHOST_FIELDS))
        octets = (vhost.received_bytes, vhost.sent_bytes)
        sum_.add(len(LENGTHS), (*octets, *traffic_values(vhost.traffic)))
        return sum_

    async def _do(self, steps: Iterator[None], rest: Rest) -> None:
        began = time.perf_counter()
        for _ in steps:
            self.took_s += time.perf_counter() - began
            await rest()
            began = time.perf_counter()
        self.took_s += time.perf_counter() - began

    def _objects(self, sums: dict[str, Sum], node: Sum) -> Iterator[None]:
        """Sample the objects, and yield after each one."""
        record = self.histories.record
        at = len(LENGTHS)
        for session in self._broker.sessions:
            if not isinstance(session, Session) or session.vhost is None or not session.is_open:
                continue
            vhost = sums.get(session.vhost.name)
            octets = (session.incoming.received_bytes, session.outbox.sent_bytes)
            record(session, octets)
            node.add(at, octets)
            if vhost is not None:
                vhost.add(at, octets)
            for channel in list(session.channels.values()):
                if channel.closed:
                    continue
                values = channel_values(channel)
                record(channel, values)
                node.add(at + len(OCTETS), values)
                if vhost is not None:
                    vhost.add(at + len(OCTETS), values)
                yield
            yield
        for name, sum_ in sums.items():
            topology = self._broker.vhosts.get(name)
            if topology is None:
                continue
            for number, queue in enumerate(list(topology.queues.values())):
                if queue.deleted:
                    continue
                if _never_used(queue) and self.histories.get(queue) is None:
                    # Thousands of unused queues should cost almost nothing.
                    if number % UNUSED_AT_ONCE == 0:
                        yield
                    continue
                values = queue_values(queue)
                record(queue, values)
                sum_.add(0, values[:at])
                node.add(0, values[:at])
                yield
            for exchange in list(topology.router.exchanges()):
                record(exchange, exchange_values(exchange))
                yield


def _never_used(queue: Queue) -> bool:
    if queue.published or queue.traffic is not None:
        return False
    host = queue.host
    return not (host.ready_count or host.unacked_count or host.delayed_count)


def _risen(before: tuple[int, ...], now: list[int], start: int, stop: int | None = None) -> tuple[int, ...]:
    """Return these values; counters (from `start` to `stop`) never fall below the values before: a channel
    may have closed between two samples.
    """
    counts = [max(old, new) for old, new in zip(before[start:stop], now[start:stop], strict=True)]
    return (*now[:start], *counts, *(now[stop:] if stop is not None else ()))
