"""One cluster for all tests here that leave it as they found it: its nodes run again, whatever was done to
them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.amqp_server.cluster.ring import Ring
from tests.amqp_server.cluster.simulation.cluster import by_hand

#: Quick where tests wait for what these are for. A change takes as long as a slow machine needs.
OPTIONS = ("--change-timeout-ms", "30000", "--rebalance-ms", "300", "--node-down-ms", "500")
#: What most of the tests have no need of.
EVENTS = ("--event-exchange-vhost", "/")


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with Ring(tmp_path_factory.mktemp("ring"), *OPTIONS, *EVENTS) as started:
        yield started
        for name, node in started.nodes.items():
            if node.running:
                assert node.stop() == 0, node.log()[-3000:]
            assert "Traceback" not in node.log(), (name, node.log()[-6000:])


@pytest.fixture
def ring(running: Ring) -> Ring:
    running.heal()
    return running


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Ring]:
    """A cluster of the test's own, not started."""
    made = Ring(tmp_path, *OPTIONS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def hand() -> Iterator[None]:
    """For simulated nodes to which nothing happens by chance, and whose log nobody wants to read."""
    logging.disable(logging.CRITICAL)
    with by_hand():
        yield
    logging.disable(logging.NOTSET)
