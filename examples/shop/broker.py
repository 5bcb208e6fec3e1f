"""The two ends of the pipeline, with pika."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pika

from examples.shop.names import ORDERS, ORDERS_PARTITIONS, REVENUE, REVENUE_PARTITIONS
from examples.shop.orders import Order, Total

PREFETCH = 1_000
#: A stream that has been silent for so long has no more messages.
QUIET_S = 0.5
TRANSACTION = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def set_up(url: str) -> None:
    """Declare everything that the pipeline needs, because the connector declares nothing. Delete leftovers of
    an earlier run.
    """
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        _super_stream(channel, ORDERS, ORDERS_PARTITIONS, {})
        table = {
            "x-stream-compaction": "key",
            # Only full segments are compacted, and this table is small.
            "x-stream-max-segment-size-bytes": 50_000,
            "x-deduplication": True,
        }
        _super_stream(channel, REVENUE, REVENUE_PARTITIONS, table)


def _super_stream(channel: Any, name: str, partitions: int, arguments: dict[str, object]) -> None:
    channel.exchange_delete(name)
    channel.exchange_declare(
        name, "x-super-stream", durable=True, arguments={"x-partitions": partitions, **arguments}
    )


def publish(url: str, sent: Sequence[Order]) -> None:
    """Publish the orders; all orders of a product go to one partition."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.tx_select()
        for first in range(0, len(sent), TRANSACTION):
            for order in sent[first : first + TRANSACTION]:
                at = (_EPOCH + timedelta(milliseconds=order.at_ms)).isoformat(timespec="milliseconds")
                body = json.dumps({"product": order.product, "at": at, "cents": order.cents}).encode()
                properties = pika.BasicProperties(
                    content_type="application/json", message_id=f"order-{order.number}"
                )
                channel.basic_publish(ORDERS, order.product, body, properties)
            channel.tx_commit()


def table(url: str) -> list[Total]:
    """Read the table as any client can: the last message of a key is the valid one."""
    rows: dict[str, bytes] = {}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for number in range(REVENUE_PARTITIONS):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            first = {"x-stream-offset": "first"}
            deliveries = channel.consume(f"{REVENUE}-{number}", arguments=first, inactivity_timeout=QUIET_S)
            for method, _, body in deliveries:
                if method is None:
                    break
                channel.basic_ack(method.delivery_tag)
                rows[method.routing_key] = body
    return [_total(json.loads(body)) for body in rows.values()]


def _total(row: dict[str, Any]) -> Total:
    start = datetime.fromisoformat(row["start"])
    return Total(row["product"], int(start.timestamp()), row["orders"], row["cents"])
