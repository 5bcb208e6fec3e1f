"""One Spark session and one broker of each kind for all tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from benchmarks.installation import HERE
from conformance_tests.rabbitmq import JudgedRabbitMQ
from tests.reliability.node import Node
from tests.spark_sink import session
from tests.spark_sink.peer import Peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEST_S = 360
Name = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The first test with a session waits for a JVM, and Spark for processes that a busy machine starts
        # late.
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("spark")
    started = session.start(directory)
    warm_up(started, directory)
    yield started
    started.stop()


def warm_up(spark: SparkSession, directory: Path) -> None:
    """Run a batch and a stream through Python workers, so that no test pays for a first start."""
    assert spark.sparkContext.parallelize(range(2), 2).map(str).collect() == ["0", "1"]
    (directory / "in").mkdir()
    (directory / "in" / "0.txt").write_text("0")
    lines = spark.readStream.schema("value string").text(str(directory / "in")).repartition(2)
    writer = lines.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(TEST_S)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object store `archive` of the node."""
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Node]:
    """A real mqd."""
    with Node(tmp_path_factory.mktemp("mqd"), "--stream-remotes", f"archive=file://{archive}") as node:
        yield node


@pytest.fixture(scope="session")
def judged() -> Iterator[JudgedRabbitMQ]:
    """A RabbitMQ for the tests, if Debian's rabbitmq-server is installed."""
    if not HERE.exists:
        pytest.skip(HERE.lack)
    broker = JudgedRabbitMQ()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def rabbitmq(judged: JudgedRabbitMQ) -> int:
    """Its port."""
    return judged.port


@pytest.fixture(scope="session")
def rabbitmq_http(judged: JudgedRabbitMQ) -> int:
    """The port of its management API."""
    if not judged.http_port:
        pytest.skip("it has no management API")
    return judged.http_port


@pytest.fixture(scope="session")
def mqd_url(node: Node) -> str:
    return f"amqp://guest:guest@127.0.0.1:{node.port}/"


@pytest.fixture(params=["mqd", "rabbitmq"])
def url(request: pytest.FixtureRequest) -> str:
    """Each broker in turn."""
    if request.param == "mqd":
        node: Node = request.getfixturevalue("node")
        return f"amqp://guest:guest@127.0.0.1:{node.port}/"
    port: int = request.getfixturevalue("rabbitmq")
    return f"amqp://guest:guest@127.0.0.1:{port}/"


@pytest.fixture
def peer(url: str) -> Iterator[Peer]:
    """A stock client for the tests, on the broker of `url`."""
    with Peer(url) as peer:
        yield peer


@pytest.fixture
def mqd_peer(mqd_url: str) -> Iterator[Peer]:
    with Peer(mqd_url) as peer:
        yield peer


@pytest.fixture
def name() -> Name:
    def make(prefix: str = "q") -> str:
        return f"{prefix}-{uuid4().hex[:12]}"

    return make
