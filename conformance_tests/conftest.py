"""The fixtures of the suite, and the list of known differences between brokers."""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import uuid4

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests import examples, not_judged
from conformance_tests.api import Api
from conformance_tests.broker import SYSTEM, Broker, ForeignBroker, OwnBroker
from conformance_tests.features import Features
from conformance_tests.patience import brief, open_connection, patient
from conformance_tests.wire import RawClient

examples.choose()

HERE = Path(__file__).parent
DEVIATIONS: list[dict[str, str]] = tomllib.loads((HERE / "deviations.toml").read_text()).get("deviation", [])
LIST = "test_deviations.py"
#: More than the time of one wait that fails.
TEST_S = 120
BROKER = pytest.StashKey[Broker]()

Connect = Callable[..., pika.BlockingConnection]
Name = Callable[[str], str]
Ctl = Callable[..., str]
Raw = Callable[..., RawClient]
Alarm = Callable[[bool], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--amqp-url", default=None, help="the broker to judge; without it the suite starts mqd")
    group.addoption(
        "--complete",
        action="store_true",
        help="that broker has all that the suite asks for; without it, tests of plugins that it lacks are skipped",
    )
    group.addoption("--http-url", default=None, help="its management API, http://user:password@host:port")
    group.addoption("--ctl", default=None, help="its control command, e.g. 'rabbitmqctl -n rabbit@localhost'")
    group.addoption(
        "--rabbitmq-root",
        type=Path,
        default=SYSTEM,
        help="the root directory in which that RabbitMQ is installed",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_exchange_type(kind): an exchange type that a broker may lack")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """The last table of a run: a successful run also says what it did not test."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    # Deselected tests were not requested, and the list of deviations does not test a broker.
    ours = [report for report in skipped if f"{HERE.name}/" in report.nodeid and LIST not in report.nodeid]
    if lines := not_judged.table(not_judged.reasons(ours)):
        terminalreporter.section("not judged")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    url = pytestconfig.getoption("--amqp-url")
    ctl, http_url = pytestconfig.getoption("--ctl"), pytestconfig.getoption("--http-url")
    root = pytestconfig.getoption("--rabbitmq-root")
    broker: Broker = ForeignBroker(url, ctl, http_url, root) if url else OwnBroker()
    pytestconfig.stash[BROKER] = broker
    yield broker
    broker.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before all fixtures: replaces the broker if the last test killed it."""
    if BROKER in item.config.stash:
        item.config.stash[BROKER].check_alive()


COLLECTED: list[str] = []  # node ids of this run, those deselected too


def pytest_itemcollected(item: pytest.Item) -> None:
    COLLECTED.append(item.nodeid)


def relative_id(nodeid: str) -> str:
    return nodeid.rpartition("conformance_tests/")[2]


def deviation_of(nodeid: str, broker: Broker) -> dict[str, str] | None:
    """The entry of deviations.toml for this test on this broker, if there is one."""
    identity = f"{broker.product}-{broker.version}".lower()
    for entry in DEVIATIONS:
        same = identity == entry["broker"] or identity.startswith(
            (entry["broker"] + "-", entry["broker"] + ".")
        )
        if same and fnmatchcase(relative_id(nodeid), entry["test"]):
            return entry
    return None


@pytest.fixture(scope="session")
def features(broker: Broker) -> Features:
    return Features(broker.url)


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest, broker: Broker, features: Features) -> None:
    """Skips tests that need a missing plugin. Our own mqd has to have everything."""
    if request.config.getoption("--complete") or not request.config.getoption("--amqp-url"):
        return
    for mark in request.node.iter_markers("needs_exchange_type"):
        if reason := features.lacks_exchange_type(*mark.args):
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def _deviation(request: pytest.FixtureRequest, broker: Broker) -> Iterator[None]:
    entry = deviation_of(request.node.nodeid, broker)
    if entry is None:
        yield
        return
    # Strict: when the broker no longer differs, the entry has to be removed.
    mark = pytest.mark.xfail(strict=True, reason=f"{entry['what']}: {entry['reason']}")
    request.node.add_marker(mark)
    with brief():
        yield


@pytest.fixture
def url(broker: Broker) -> str:
    return broker.url


@pytest.fixture
def ctl(broker: Broker) -> Ctl:
    if not broker.has_ctl:
        pytest.skip("needs a control command (--ctl) for the broker behind --amqp-url")
    return broker.ctl


@pytest.fixture
def api(broker: Broker) -> Api:
    if not broker.http_url:
        pytest.skip("needs the management API (--http-url) of the broker behind --amqp-url")
    return Api(broker.http_url)


@pytest.fixture
def memory_alarm(ctl: Ctl) -> Iterator[Alarm]:
    """Raises and clears the alarm; it is clear again when the test is over."""

    def alarm(on: bool) -> None:
        ctl("set_vm_memory_high_watermark", "0.0000001" if on else "0.6")

    yield alarm
    alarm(False)


@pytest.fixture
def name(broker: Broker) -> Iterator[Name]:
    """Unique names; queues and exchanges of these names are deleted when the test is over."""
    names: list[str] = []

    def make(prefix: str = "q") -> str:
        names.append(f"{prefix}-{uuid4().hex[:12]}")
        return names[-1]

    yield make
    if names:
        delete_named(broker.url, names)


def delete_named(url: str, names: list[str]) -> None:
    connection = open_connection(url)
    try:
        channel = connection.channel()
        for each in names:
            for delete in ("queue_delete", "exchange_delete"):
                try:
                    getattr(channel, delete)(each)
                except pika.exceptions.ChannelClosedByBroker:
                    channel = connection.channel()
    finally:
        connection.close()


@pytest.fixture
def connect(url: str, name: Name) -> Iterator[Connect]:
    """Opens connections with pika: `connect(user=, password=, vhost=, heartbeat=, client_properties=, …)`."""
    connections: list[pika.BlockingConnection] = []

    def make(
        *, user: str | None = None, password: str | None = None, vhost: str | None = None, **parameters: Any
    ) -> pika.BlockingConnection:
        wanted = patient(pika.URLParameters(url))
        if user is not None:
            wanted.credentials = pika.PlainCredentials(user, password if password is not None else user)
        if vhost is not None:
            wanted.virtual_host = vhost
        for key, value in parameters.items():
            setattr(wanted, key, value)
        connections.append(pika.BlockingConnection(wanted))
        return connections[-1]

    yield make
    for connection in connections:
        with suppress(pika.exceptions.AMQPError, OSError):
            if connection.is_open:
                connection.close()


@pytest.fixture
def ch(connect: Connect) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def raw(url: str, name: Name) -> Iterator[Raw]:
    """Raw clients, handshake done and channel 1 open; `raw(handshake=False)` only connects,
    `raw(channel=None)` opens none.

    All other arguments are those of `RawClient.handshake`; `url=` goes elsewhere than the broker's own.
    """
    clients: list[RawClient] = []

    def make(
        *,
        handshake: bool = True,
        channel: int | None = 1,
        url: str = url,
        client: dict[str, Any] | None = None,
        **kw: Any,
    ) -> RawClient:
        made = RawClient(url, **(client or {}))
        clients.append(made)
        if handshake:
            made.handshake(**kw)
            if channel is not None:
                made.open_channel(channel)
        return made

    yield make
    for made in clients:
        made.close()
