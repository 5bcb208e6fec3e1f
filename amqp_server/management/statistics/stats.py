"""Counters, lengths and their rates as RabbitMQ's management API shows them: next to X there is X_details."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amqp_server.broker.traffic import Traffic
from amqp_server.management.statistics.history import Chart, Range, Series, asked
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

Row = dict[str, Any]
#: Reads a column of an object.
Read = Callable[[Any], Any]

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

    def _chart(self, name: str) -> Chart:
        range_ = self._ranges[name]
        return Chart(None if range_ is None else self._histories.timeline.places(range_))

    def _series(self, of: object) -> Series | None:
        return self._histories.get(of)

    # -- of one object ---------------------------------------------------------------------------------------

    def queue(self, queue: Queue) -> Row:
        series, values = self._series(queue), queue_values(queue)
        row = self._of(self._lengths, series, QUEUE_FIELDS, values, LENGTHS)
        told = self._message_stats(series, QUEUE_FIELDS, values, ("publish",))
        return row | {"message_stats": told} if told else row

    def queue_column(self, path: Sequence[str]) -> Read | None:
        """Return a function that reads one of the columns that `queue` makes, None if there is no such
        column.

        A sort reads the column of all queues, so the usual columns are read without making the whole row.
        """
        if path[0] == "message_stats":
            counted = self._counted(path[1:])
            return counted or (lambda queue: at(self.queue(queue), path))
        length = path[0].removesuffix("_details")
        if length not in LENGTHS or length == path[0]:
            return None
        if list(path[1:]) == ["rate"]:
            return self._rate(QUEUE_FIELDS.index(length))
        return lambda queue: at(self.queue(queue), path)

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

    def connection(self, session: Session) -> Row:
        values = (session.incoming.received_bytes, session.outbox.sent_bytes)
        return self._of(self._octets, self._series(session), OCTETS, values, OCTETS)

    def channel(self, channel: Channel) -> Row:
        told = self._message_stats(self._series(channel), TRAFFIC, channel_values(channel), PUBLISHED)
        return {"message_stats": told} if told else {}

    def exchange(self, exchange: Exchange) -> Row:
        values = exchange_values(exchange)
        if not any(values):
            return {}
        told = self._of(self._messages, self._series(exchange), EXCHANGE_FIELDS, values, EXCHANGE_FIELDS)
        return {"message_stats": told}

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
        names: Iterable[str],
    ) -> Row:
        row: Row = {}
        for name in names:
            at = fields.index(name)
            row[name] = values[at]
            row[f"{name}_details"] = chart.details(series, at)
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

    def figures(self, values: Mapping[str, int]) -> Row:
        return self._totals(FIGURES, values, "node_stats")


def _has_delivered(queue: Queue) -> bool:
    values = queue_values(queue)
    return any(values[field] for field in _DELIVERED_FIELDS)


_DELIVERED_FIELDS = [QUEUE_FIELDS.index(name) for name in DELIVERED]


def at(row: Row, path: Sequence[str]) -> Any:
    """Return the value at a path of a row, None if there is none."""
    value: Any = row
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def put(row: Row, path: Sequence[str], value: Any) -> None:
    """Put a value at a path of a row, unless it is None, or the path leads through a value that is no row."""
    if value is None:
        return
    into: Any = row
    for step in path[:-1]:
        into = into.setdefault(step, {})
        if not isinstance(into, dict):
            return
    into[path[-1]] = value


def merged(rows: Iterable[Row]) -> Row:
    """Add up the counts of several nodes. Samples are added if they are of the same time."""
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
    found = {each["timestamp"]: each["sample"] for each in other}
    return [
        {"sample": each["sample"] + found.get(each["timestamp"], 0), "timestamp": each["timestamp"]}
        for each in one
    ]


__all__ = ["Range", "Stats", "at", "merged", "put"]
