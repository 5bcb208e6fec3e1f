"""Another broker of the tested kind, started with its own options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from conformance_tests.broker import Broker, OwnBroker
from conformance_tests.ports import HOST


class Place(NamedTuple):
    """`host:port` of AMQP and of the management API."""

    amqp: str
    http: str


@contextmanager
def beside(
    broker: Broker, options: Sequence[str], plugins: Sequence[str], settings: Sequence[str] = ()
) -> Iterator[Place]:
    """`options` are for mqd; plugins and configuration lines are for RabbitMQ."""
    if isinstance(broker, OwnBroker):
        own = OwnBroker(options)
        try:
            yield Place(*(url.partition("@")[2].rstrip("/") for url in (own.url, own.http_url)))
        finally:
            own.stop()
        return
    # Only the judge of RabbitMQ needs benchmarks.
    from benchmarks.installation import Installation
    from conformance_tests.rabbitmq import MANAGEMENT, JudgedRabbitMQ

    installation = Installation(broker.rabbitmq_root)
    if broker.product != "RabbitMQ" or installation.version != broker.version:
        pytest.skip("needs a broker of its own, with options that it is started with")
    rabbitmq = JudgedRabbitMQ((MANAGEMENT, *plugins), installation)
    rabbitmq.settings = tuple(settings)
    try:
        rabbitmq.start()
        yield Place(f"{HOST}:{rabbitmq.port}", f"{HOST}:{rabbitmq.http_port}")
    finally:
        rabbitmq.close()
