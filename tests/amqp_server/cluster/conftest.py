"""One cluster for all tests here that leave it as they found it. Before each test all its nodes run again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.amqp_server.cluster.ring import Ring
from tests.amqp_server.cluster.simulation.cluster import by_hand

#: Short intervals where tests wait for them to pass. The time for a change allows for a slow machine.
OPTIONS = ("--change-timeout-ms", "30000", "--rebalance-ms", "300", "--node-down-ms", "500")
#: Small segments, written soon.
SMALL = ("--stream-flush-ms", "50", "--stream-flush-bytes", "65536")
#: Options that most of the tests do not need.
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A cluster for the tests of one module, whose streams have small segments."""
    with Ring(tmp_path_factory.mktemp("streams"), *OPTIONS, *SMALL) as started:
        yield started
        for name, node in started.nodes.items():
            assert "Traceback" not in node.log(), (name, node.log()[-6000:])


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Ring]:
    """A cluster of the test's own, not started."""
    made = Ring(tmp_path, *OPTIONS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def hand(quiet: None) -> Iterator[None]:
    """For simulated nodes in tests without random faults, whose log nobody wants to read."""
    with by_hand():
        yield
