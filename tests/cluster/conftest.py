"""A cluster for a test: mqd, or RabbitMQ if `MQD_TEST_CLUSTER=rabbitmq` says so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.chaos import BROKERS
from tests.cluster.nodes import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with BROKERS[os.environ.get("MQD_TEST_CLUSTER", "mqd")]() as started:
        yield started
