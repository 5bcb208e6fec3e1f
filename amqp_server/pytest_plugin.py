"""Fixtures for pytest; a failing test also shows the logs of its brokers.

pytest loads this module in every run where mqd is installed, so it imports nothing of mqd before a fixture is
requested.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from amqp_server.testing import Broker, Cluster, Vhost

#: Bytes of one broker's log that are shown for a failed test.
SHOWN_MAX = 32 * 1024
#: A thread of the broker writes its log, a little later than the answers to clients: the log is complete when
#: it has not grown for QUIET_S. The fixture waits for at most COMPLETE_MAX_S, because a broker may log
#: without end.
QUIET_S, COMPLETE_MAX_S = 0.2, 2.0


class Watched:
    """The brokers of the fixtures, and the sizes of their logs when the test began."""

    def __init__(self) -> None:
        self.brokers: dict[Broker, int] = {}

    def begin(self) -> None:
        for broker in self.brokers:
            self.brokers[broker] = len(broker.log())

    def new_lines(self) -> Iterator[tuple[str, str]]:
        for broker, seen in self.brokers.items():
            text = _complete_log(broker)[seen:]
            if len(text) > SHOWN_MAX:
                text = f"[{len(text) - SHOWN_MAX} characters before this]\n{text[-SHOWN_MAX:]}"
            if text:
                yield f"log of mqd {broker.name}", text


def _complete_log(broker: Broker) -> str:
    text = broker.log()
    deadline = time.monotonic() + COMPLETE_MAX_S
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        before, text = text, broker.log()
        if text == before:
            break
    return text


_watched = pytest.StashKey[Watched]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_watched] = Watched()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.stash[_watched].begin()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    uses = any(name in ("mqd", "mqd_cluster") for name in getattr(item, "fixturenames", ()))
    if report.failed and uses:
        report.sections += item.config.stash[_watched].new_lines()


@pytest.fixture(scope="session")
def mqd_options() -> dict[str, Any]:
    """Options of the broker, by the names in its TOML file. Override this fixture in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def mqd_cluster_options() -> dict[str, Any]:
    """Options of each node of the cluster. Override this fixture in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def mqd(request: pytest.FixtureRequest, mqd_options: dict[str, Any]) -> Iterator[Broker]:
    """A broker that starts when the first test requests it, and serves all tests of this process."""
    from amqp_server.testing import start

    with start(**mqd_options) as broker:
        watched = request.config.stash[_watched].brokers
        watched[broker] = 0
        yield broker
        del watched[broker]


@pytest.fixture
def mqd_vhost(request: pytest.FixtureRequest, mqd: Broker) -> Iterator[Vhost]:
    """An empty virtual host for this test, deleted with its content afterwards."""
    _revive(mqd)
    with mqd.vhost(request.node.name) as vhost:
        yield vhost
        _revive(mqd)


def _revive(mqd: Broker) -> None:
    """Restart the broker if a test has stopped it, so that the next test finds it running."""
    if mqd.running:
        mqd.resume()
    else:
        mqd.start()


@pytest.fixture(scope="session")
def _mqd_nodes(request: pytest.FixtureRequest, mqd_cluster_options: dict[str, Any]) -> Iterator[Cluster]:
    from amqp_server.testing import start_cluster

    with start_cluster(**mqd_cluster_options) as cluster:
        watched = request.config.stash[_watched].brokers
        watched |= dict.fromkeys(cluster, 0)
        yield cluster
        for node in cluster:
            del watched[node]


@pytest.fixture
def mqd_cluster(request: pytest.FixtureRequest, _mqd_nodes: Cluster) -> Iterator[Cluster]:
    """Three running and connected nodes, and an empty virtual host for this test, used by
    `mqd_cluster.url(node)`.
    """
    with _mqd_nodes.vhost(request.node.name):
        yield _mqd_nodes
