"""Tasks whose broker dies, moves, blocks publishers, or speaks TLS."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

from conformance_tests.ports import free_port
from spark_sink.client.errors import AmqpError, Blocked, ChannelClosed, ConnectFailed
from spark_sink.options import sink_options
from spark_sink.sink.target import Mechanism
from spark_sink.sink.task import Plan, Task, write
from tests.reliability.node import Node
from tests.spark_sink.peer import Peer

QUEUE = "out"
ROWS, BATCH = 6_000, 500
TASK = Task("query", 1, 0)
HEARTBEAT_S = 1
LOW, HIGH = "0.00001", "0.6"


def url_of(*ports: int) -> str:
    return "amqp://guest:guest@" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/"


def plan(
    url: str, mechanism: Mechanism = "confirm", tls: Mapping[str, str] | None = None, **options: str
) -> Plan:
    given = {"url": url, "routingKey": QUEUE, "maxInFlight": "1000", "delivery": mechanism}
    return Plan(sink_options(given | options | dict(tls or {})), mechanism, None)


def batches(events: dict[int, Callable[[], Any]]) -> Iterator[Any]:
    """Batches of rows; before the batch with a given number, an event happens."""
    for start in range(0, ROWS, BATCH):
        if event := events.get(start // BATCH):
            event()
        yield pa.record_batch({"value": [str(number) for number in range(start, start + BATCH)]})


def expected() -> set[bytes]:
    return {str(number).encode() for number in range(ROWS)}


def declare(url: str) -> None:
    with Peer(url) as peer:
        peer.channel.queue_declare(QUEUE, durable=True)


def test_what_was_not_confirmed_is_sent_again_after_a_kill(tmp_path: Path) -> None:
    port = free_port()
    with Node(tmp_path, "--amqp", f"127.0.0.1:{port}") as node:
        declare(url_of(port))

        def restart() -> None:
            node.kill()
            threading.Thread(target=node.start).start()

        assert write(plan(url_of(port)), TASK, batches({3: restart, 8: restart})).rows == ROWS
        with Peer(url_of(port)) as peer:
            taken = peer.take(QUEUE, ROWS)
    assert {body for _, _, body in taken} == expected()
    assert len({properties.message_id for _, properties, _ in taken}) == ROWS


def test_the_next_host_takes_over(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Node(tmp_path / "a") as first, Node(tmp_path / "b") as second:
        both = (first, second)
        for node in both:
            declare(url_of(node.port))
        write(plan(url_of(first.port, second.port)), TASK, batches({6: first.kill}))
        first.start()
        found: Counter[bytes] = Counter()
        for node in both:
            with Peer(url_of(node.port)) as peer:
                assert peer.count(QUEUE) > BATCH
                found += peer.bodies(QUEUE)
    assert found.keys() == expected()


def test_a_transaction_does_not_move_but_fails_and_leaves_nothing(tmp_path: Path) -> None:
    port = free_port()
    with Node(tmp_path, "--amqp", f"127.0.0.1:{port}") as node:
        declare(url_of(port))

        def restart() -> None:
            node.kill()
            node.start()

        with pytest.raises(AmqpError, match="connection to 127.0.0.1:.* was lost"):
            write(plan(url_of(port), "ledger"), TASK, batches({5: restart}))
        assert write(plan(url_of(port), "ledger"), TASK, batches({})).rows == ROWS
        with Peer(url_of(port)) as peer:
            assert peer.bodies(QUEUE, ROWS) == Counter(expected())


def test_a_broker_that_is_gone_for_good(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        declare(url_of(node.port))
        with pytest.raises(ConnectFailed, match=r"cannot connect to the broker .*Connection refused"):
            write(plan(url_of(node.port), confirmTimeoutMs="3000"), TASK, batches({6: node.kill}))


def test_heartbeats_go_on_while_spark_computes(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        declare(url_of(node.port))

        def compute() -> None:
            # Longer than a broker waits for a silent client. A test can't wait for an event here, because
            # nothing happens.
            time.sleep(4 * HEARTBEAT_S)

        one = plan(url_of(node.port), heartbeat=str(HEARTBEAT_S), confirmTimeoutMs="3000")
        assert write(one, TASK, batches({6: compute})).rows == ROWS
        with Peer(url_of(node.port)) as peer:
            # All on one connection: a message that was sent twice would be here twice.
            assert peer.bodies(QUEUE, ROWS) == Counter(expected())


def test_a_host_that_is_silent_is_left_for_the_next(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Node(tmp_path / "a") as first, Node(tmp_path / "b") as second:
        for node in (first, second):
            declare(url_of(node.port))
        url = url_of(first.port, second.port)
        stop = partial(os.kill, first.pid, signal.SIGSTOP)
        write(plan(url, heartbeat=str(HEARTBEAT_S), confirmTimeoutMs="30000"), TASK, batches({6: stop}))
        os.kill(first.pid, signal.SIGCONT)
        found: Counter[bytes] = Counter()
        for node in (first, second):
            with Peer(url_of(node.port)) as peer:
                found += peer.bodies(QUEUE, BATCH)
    assert found.keys() == expected()


def test_a_body_that_the_broker_finds_too_long(tmp_path: Path) -> None:
    long = pa.record_batch({"value": pa.array([b"x" * (17 << 20)], pa.binary())})
    with Node(tmp_path, "--message-bytes-max", str(16 << 20)) as node:
        declare(url_of(node.port))
        with pytest.raises(ChannelClosed, match=r"message size .*column value.*maxMessageBytes"):
            write(plan(url_of(node.port), maxMessageBytes=str(20 << 20)), TASK, [long])


@pytest.mark.parametrize("mechanism", ["confirm", "ledger"])
def test_a_broker_that_blocks_publishers(tmp_path: Path, mechanism: Mechanism) -> None:
    with Node(tmp_path) as node:
        declare(url_of(node.port))
        node.mqctl("set_vm_memory_high_watermark", LOW)
        with pytest.raises(Blocked, match="blocks publishers and .* low on memory. Free its memory"):
            write(plan(url_of(node.port), mechanism, confirmTimeoutMs="3000"), TASK, batches({}))
        node.mqctl("set_vm_memory_high_watermark", HIGH)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("tls")
    ours, theirs = trustme.CA(), trustme.CA()
    server, client = ours.issue_cert("127.0.0.1"), ours.issue_cert("client@example.org")
    files = {name: directory / f"{name}.pem" for name in ("ca", "other", "cert", "key", "mine", "mykey")}
    ours.cert_pem.write_to_path(files["ca"])
    theirs.cert_pem.write_to_path(files["other"])
    server.cert_chain_pems[0].write_to_path(files["cert"])
    server.private_key_pem.write_to_path(files["key"])
    files["key"].chmod(0o600)
    client.cert_chain_pems[0].write_to_path(files["mine"])
    client.private_key_pem.write_to_path(files["mykey"])
    return files


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory: pytest.TempPathFactory, authority: dict[str, Path]) -> Iterator[str]:
    port = free_port()
    files = [f"--tls-{name}-file={authority[name]}" for name in ("cert", "key", "ca")]
    directory = tmp_path_factory.mktemp("mqd")
    with Node(directory, f"--amqps=127.0.0.1:{port}", "--tls-client-certificate", *files) as node:
        declare(url_of(node.port))
        yield f"amqps://guest:guest@127.0.0.1:{port}/"


def test_tls_with_a_certificate_of_the_clients_own(tls_url: str, authority: dict[str, Path]) -> None:
    options = {
        "tls.caFile": authority["ca"],
        "tls.certFile": authority["mine"],
        "tls.keyFile": authority["mykey"],
    }
    url = {name: str(value) for name, value in options.items()}
    assert write(plan(tls_url, tls=url), TASK, batches({})).rows == ROWS


def test_a_certificate_that_nobody_trusts(tls_url: str, authority: dict[str, Path]) -> None:
    for trusted in ({"tls.caFile": str(authority["other"])}, {}):
        with pytest.raises(
            ConnectFailed, match=r"TLS: .*certificate verify failed.*see the options tls\.caFile"
        ):
            write(plan(tls_url, tls=trusted, confirmTimeoutMs="2000"), TASK, batches({}))


def test_a_client_without_the_certificate_that_is_asked_for(tls_url: str, authority: dict[str, Path]) -> None:
    with pytest.raises(ConnectFailed):
        write(
            plan(tls_url, tls={"tls.caFile": str(authority["ca"])}, confirmTimeoutMs="2000"),
            TASK,
            batches({}),
        )
