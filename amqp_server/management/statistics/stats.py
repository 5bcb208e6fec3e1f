"""Counters, lengths and their rates as RabbitMQ's management API shows them: next to X there is X_details."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from amqp_server.broker.traffic import COUNTERS, Traffic
from amqp_server.management.request.columns import ABSENT, Absent, Read, Row
from amqp_server.management.statistics.history import Chart, Details, Range, Series, asked
from amqp_server.management.statistics.sampler import (
    CHURN,
    EXCHANGE_FIELDS,
    FIGURES,
    LENGTHS,
    NODE_FIELDS,
    OCTETS,
    QUEUE_FIELDS,
    TRAFFIC,
    VHOST_FIELDS,
    Sampler,
    channel_values,
    exchange_values,
    queue_values,
    traffic_values,
)

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.channel.channel import Channel
    from amqp_server.connection.session import Session
    from exchanges.router import Exchange

PUBLISHED = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVERED = ("ack", "deliver", "deliver_get", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver")


class Stats:
    """The statistics for one request, with the samples that its query asks for."""

    def __init__(self, sampler: Sampler, query: Mapping[str, str]) -> None:
        self._sampler = sampler
        self._histories = sampler.histories
        self._ranges = {
            name: asked(query, name) for name in ("lengths", "msg_rates", "data_rates", "node_stats")
        }
        self._lengths = self._chart("lengths")
        self._messages = self._chart("msg_rates")
        self._octets = self._chart("data_rates")
        #: Details of a queue without samples, and what is shown of one that nobody has used.
        self._none = self._lengths.of(None, _QUEUE_FIELDS)
        self._unused: tuple[Details | Absent, ...] = (*self._lengths.of(None, range(len(LENGTHS))), ABSENT)

    def _chart(self, name: str) -> Chart:
        range_ = self._ranges[name]
        return Chart(None if range_ is None else self._histories.timeline.places(range_))

    def _series(self, of: object) -> Series | None:
        return self._histories.get(of)

    # -- of one object ---------------------------------------------------------------------------------------

    def queue(self, queue: Queue) -> tuple[Details | Row | Absent, ...]:
        """Return the details of LENGTHS, and the counters of what clients of this node did with the queue,
        absent if they did nothing.
        """
        series, traffic = self._histories.series.get(queue), queue.traffic
        if series is None and traffic is None and not queue.published:
            return self._unused
        lengths = (
            self._none
            if series is None and self._lengths.is_plain
            else (self._lengths.of(series, _QUEUE_FIELDS))
        )
        if traffic is None and not queue.published:
            return (*lengths[:3], ABSENT)
        details = (
            lengths
            if self._messages.is_plain and self._lengths.is_plain
            else (self._messages.of(series, _QUEUE_FIELDS))
        )
        counts: Row = {}
        if queue.published:
            counts["publish"], counts["publish_details"] = queue.published, details[_PUBLISH]
        if traffic is not None:
            values = traffic_values(traffic)
            if any(values[at] for _, _, at, _ in _OF_DELIVERIES):
                for name, name_of_details, at, field in _OF_DELIVERIES:
                    counts[name], counts[name_of_details] = values[at], details[field]
        return (*lengths[:3], counts or ABSENT)

    def message_stats_of(self, queue: Queue) -> Row | None:
        """Return the counters of what clients of this node did with the queue, None if they did nothing."""
        told = self.queue(queue)[3] if queue.published or queue.traffic is not None else ABSENT
        return None if isinstance(told, Absent) else told

    def part_of_queue(self, path: Sequence[str]) -> Read | None:
        """Return a function that reads a counter or a rate of what `queue` makes, None for others: a sort
        reads it of all queues, and should not make all of it.
        """
        if path[0] == "message_stats":
            return self._counted(path[1:])
        length = path[0].removesuffix("_details")
        if length in LENGTHS and list(path) == [f"{length}_details", "rate"]:
            return self._rate(QUEUE_FIELDS.index(length))
        return None

    def _counted(self, path: Sequence[str]) -> Read | None:
        """Return a function that reads a counter of `message_stats`, or its rate."""
        name = path[0].removesuffix("_details") if path else ""
        if name not in ("publish", *DELIVERED):
            return None
        field = QUEUE_FIELDS.index(name)
        value: Read
        if list(path) == [name]:
            value = lambda queue: queue_values(queue)[field]  # noqa: E731
        elif list(path) == [f"{name}_details", "rate"]:
            value = self._rate(field)
        else:
            return None
        if name == "publish":
            return lambda queue: value(queue) if queue.published else None
        return lambda queue: value(queue) if _has_delivered(queue) else None

    def _rate(self, field: int) -> Read:
        get = self._histories.get

        def rate(queue: Queue) -> float:
            series = get(queue)
            return 0.0 if series is None else series.rate_alone(field)

        return rate

    def connection(self, session: Session) -> tuple[int, Details, int, Details]:
        """Return the octets received and sent, each with its details."""
        received, sent = self._octets.of(self._series(session), range(len(OCTETS)))
        return session.incoming.received_bytes, received, session.outbox.sent_bytes, sent

    def channel(self, channel: Channel) -> Row:
        """Return the counters of a channel, none if it did nothing."""
        return self._message_stats(self._series(channel), TRAFFIC, channel_values(channel), PUBLISHED)

    def exchange(self, exchange: Exchange) -> Row:
        """Return the counters of an exchange, none if nothing was published."""
        values = exchange_values(exchange)
        if not any(values):
            return {}
        return self._of(self._messages, self._series(exchange), EXCHANGE_FIELDS, values, EXCHANGE_FIELDS)

    def vhost(self, name: str) -> Row:
        """Return the vhost's counts at the last sample."""
        values = self._sampler.vhosts.get(name, (0,) * len(VHOST_FIELDS))
        series = self._series(name)
        row = self._of(self._lengths, series, VHOST_FIELDS, values, LENGTHS)
        row |= self._of(self._octets, series, VHOST_FIELDS, values, OCTETS)
        told = self._message_stats(series, VHOST_FIELDS, values, PUBLISHED)
        return row | {"message_stats": told} if told else row

    def _of(
        self,
        chart: Chart,
        series: Series | None,
        fields: Sequence[str],
        values: Sequence[int],
        names: Sequence[str],
    ) -> Row:
        row: Row = {}
        places = [fields.index(name) for name in names]
        for name, place, details in zip(names, places, chart.of(series, places), strict=True):
            row[name], row[f"{name}_details"] = values[place], details
        return row

    def _message_stats(
        self, series: Series | None, fields: Sequence[str], values: Sequence[int], published: Sequence[str]
    ) -> Row:
        """Return counters of publishes and those of deliveries, each group only if one of its counters is not
        zero.
        """
        names = [
            name
            for group in (published, DELIVERED)
            if any(values[fields.index(each)] for each in group)
            for name in group
        ]
        return self._of(self._messages, series, fields, values, names)

    # -- of the node -----------------------------------------------------------------------------------------

    def _details(self, name: str, range_: str) -> Row:
        return self._sampler.node.details(NODE_FIELDS.index(name), self._ranges[range_])

    def _totals(self, names: Sequence[str], values: Mapping[str, int], range_: str) -> Row:
        row: Row = {}
        for name in names:
            row[name] = values[name]
            row[f"{name}_details"] = self._details(name, range_)
        return row

    def queue_totals(self, values: Mapping[str, int]) -> Row:
        return self._totals(LENGTHS, values, "lengths")

    def message_stats(self, traffic: Traffic) -> Row:
        values = dict(zip(TRAFFIC, traffic_values(traffic), strict=True))
        names = [
            name for group in (PUBLISHED, DELIVERED) if any(values[each] for each in group) for name in group
        ]
        return self._totals(names, values, "msg_rates")

    def churn(self, values: Mapping[str, int]) -> Row:
        return self._totals(CHURN, values, "msg_rates")

    @staticmethod
    def counted_before(words: Sequence[int]) -> tuple[Row, Row]:
        """Return the counters of messages, and the churn, of a process that is down."""
        traffic = Traffic()
        traffic.resume(words[: len(COUNTERS)])
        shown = (
            zip(TRAFFIC, traffic_values(traffic), strict=True),
            zip(CHURN, words[len(COUNTERS) :], strict=True),
        )
        messages, churn = ({name: value for name, value in each if value} for each in shown)
        still = {"rate": 0.0}
        return (
            messages | {f"{name}_details": still for name in messages},
            churn | {f"{name}_details": still for name in churn},
        )

    def figures(self, values: Mapping[str, int]) -> Row:
        return self._totals(FIGURES, values, "node_stats")


def _has_delivered(queue: Queue) -> bool:
    values = queue_values(queue)
    return any(values[field] for field in _DELIVERED_FIELDS)


_QUEUE_FIELDS = range(len(QUEUE_FIELDS))
_PUBLISH = QUEUE_FIELDS.index("publish")
#: The names of a counter and of its details, and its places in TRAFFIC and in QUEUE_FIELDS.
_OF_DELIVERIES = [
    (name, f"{name}_details", TRAFFIC.index(name), QUEUE_FIELDS.index(name)) for name in DELIVERED
]
_DELIVERED_FIELDS = [QUEUE_FIELDS.index(name) for name in DELIVERED]


def merged(rows: Iterable[Row]) -> Row:
    """Add up the counts of several nodes. Samples are added if they have the same age: nodes do not take
    theirs at the same time, and their clocks may differ.
    """
    total: Row = {}
    for row in rows:
        for name, value in row.items():
            present = total.get(name)
            if present is None:
                total[name] = value
            elif name == "samples":
                total[name] = _samples(present, value)
            elif isinstance(value, dict):
                total[name] = merged((present, value))
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                total[name] = present + value
    return total


def _samples(one: list[Row], other: list[Row]) -> list[Row]:
    """Add the samples of another node, the newest first in both. The timestamps are those of `one`."""
    if not one or not other:
        return one or other
    newest, newest_other = one[0]["timestamp"], other[0]["timestamp"]
    found: list[Row] = []
    at = 0
    for each in one:
        age_ms = newest - each["timestamp"]
        while at + 1 < len(other) and newest_other - other[at + 1]["timestamp"] <= age_ms:
            at += 1
        found.append({"sample": each["sample"] + other[at]["sample"], "timestamp": each["timestamp"]})
    return found


__all__ = ["Range", "Stats", "merged"]
