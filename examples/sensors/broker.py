"""The two ends of the pipeline, with pika."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pika

from examples.sensors.names import AVERAGES, EXCHANGE, READINGS
from examples.sensors.readings import Average, Reading

POLL_S = 0.1


def set_up(url: str) -> None:
    """Declare everything that the pipeline needs, because the connector declares nothing. Delete leftovers of
    an earlier run.
    """
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for queue in (READINGS, AVERAGES):
            channel.queue_declare(queue, durable=True)
            channel.queue_purge(queue)
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        channel.queue_bind(AVERAGES, EXCHANGE, "average.#")


def publish(url: str, sent: Sequence[Reading], per_second: float) -> None:
    """Publish with confirms, at this rate, or as fast as possible if the rate is 0."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        began = time.monotonic()
        for number, reading in enumerate(sent):
            at = datetime.fromtimestamp(reading.at_s, UTC).isoformat(timespec="milliseconds")
            body = json.dumps({"sensor": reading.sensor, "at": at, "value": reading.value}).encode()
            properties = pika.BasicProperties(
                content_type="application/json", delivery_mode=2, message_id=f"{reading.sensor}-{at}"
            )
            channel.basic_publish("", READINGS, body, properties, mandatory=True)
            if per_second and (ahead_s := number / per_second - (time.monotonic() - began)) > 0:
                connection.sleep(ahead_s)


def collect(url: str, queue: str, count: int, within_s: float) -> list[Average]:
    """Wait for so many averages, and read all of them; they stay in the queue."""
    deadline = time.monotonic() + within_s
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        while channel.queue_declare(queue, passive=True).method.message_count < count:
            if time.monotonic() > deadline:
                break  # the comparison reports missing ones
            connection.sleep(POLL_S)
        found = []
        while (got := channel.basic_get(queue))[0] is not None:
            found.append(_average(json.loads(got[2])))
        # Unacked messages return to the queue when the connection ends.
        return found


def _average(body: dict[str, object]) -> Average:
    start = datetime.fromisoformat(str(body["start"]))
    return Average(
        str(body["sensor"]), int(start.timestamp()), float(str(body["average"])), int(str(body["count"]))
    )
