"""A node with workers, as its clients and its operator meet it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import free_ports

from ...reliability.node import Node, run_once

WORKERS = 3
DURABLE = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with workers(tmp_path, WORKERS) as node:
        yield node


@contextmanager
def workers(directory: Path, count: int | str, *options: str) -> Iterator[Node]:
    with Node(directory, "--workers", str(count), *options) as node:
        yield node


def connect(node: Node) -> BlockingConnection:
    return BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", node.port, connection_attempts=20, retry_delay=0.2)
    )


@contextmanager
def channels(node: Node, count: int) -> Iterator[list[BlockingChannel]]:
    """Channels in confirm mode, each with its own connection."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            connection = connect(node)
            stack.callback(partial(close, connection))
            channel = connection.channel()
            channel.confirm_delivery()
            found.append(channel)
        yield found


def close(connection: BlockingConnection) -> None:
    # Its worker, or its node, may have ended.
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def get(node: Node, path: str) -> Any:
    answer = httpx.get(
        f"http://127.0.0.1:{node.http}/api/{path}", auth=("guest", "guest"), timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def put(node: Node, path: str) -> None:
    answer = httpx.put(
        f"http://127.0.0.1:{node.http}/api/{path}", auth=("guest", "guest"), timeout=PATIENCE_S
    )
    assert answer.is_success, answer.text


def running(node: Node) -> dict[str, int]:
    """Return the processes of the workers that answer for themselves."""
    return {row["name"]: int(row["os_pid"]) for row in get(node, "nodes") if row["running"]}


def homes(node: Node) -> dict[str, str]:
    return {row["name"]: row["node"] for row in get(node, "queues")}


def worker_of(node: Node, channel: BlockingChannel) -> str:
    """Return the worker that serves a client."""
    port = channel.connection._impl._transport._sock.getsockname()[1]
    rows = {row["peer_port"]: row["node"] for row in get(node, "connections")}
    return str(rows[port])


def pids(node: Node, count: int = WORKERS) -> dict[str, int]:
    """Return the processes of the workers, once so many of them answer for themselves."""
    found: dict[str, int] = {}

    def answer() -> bool:
        found.clear()
        found.update(running(node))
        return len(found) >= count

    until(f"{count} workers answer", answer)
    return found


def declare_everywhere(
    node: Node, opened: Sequence[BlockingChannel], kind: str = "classic"
) -> dict[str, str]:
    """Let each client declare a queue of its own; return the homes."""
    for number, channel in enumerate(opened):
        channel.queue_declare(f"{kind}{number}", durable=True, arguments={"x-queue-type": kind})
    return homes(node)


def take(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    start = {"x-stream-offset": "first"} if "stream" in queue else None
    for method, _, body in channel.consume(queue, arguments=start, inactivity_timeout=PATIENCE_S):
        assert method is not None, f"{len(found)} of {count} came"
        found.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def until(what: str, holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if holds():
                return
        except (httpx.HTTPError, pika.exceptions.AMQPError, AssertionError, KeyError):
            pass
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@contextmanager
def one_at_each(node: Node, count: int = WORKERS) -> Iterator[dict[str, BlockingChannel]]:
    """A channel at each worker. Mostly these are the first connections; a busy machine spreads them less."""
    with ExitStack() as stack:
        found: dict[str, BlockingChannel] = {}

        def another() -> bool:
            (channel,) = stack.enter_context(channels(node, 1))
            found.setdefault(worker_of(node, channel), channel)
            return len(found) == count

        until("each worker has a client", another)
        yield found


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_clients_go_where_their_queues_are(node: Node, kind: str) -> None:
    with one_at_each(node) as opened:
        # New queues are where their clients are.
        found = declare_everywhere(node, [*opened.values()] * 2, kind)
        assert [*found.values()] == [*opened] * 2
        with channels(node, 2 * WORKERS) as publishing, channels(node, 2 * WORKERS) as consuming:
            for number, channel in enumerate(publishing):
                # Nobody can tell from this one where the client belongs; its confirm has number 1.
                channel.basic_publish("", "nowhere", b"")
                for count in range(20):
                    channel.basic_publish("", f"{kind}{number}", b"%d" % count, DURABLE, mandatory=True)
                assert worker_of(node, channel) == found[f"{kind}{number}"]
            for number, channel in enumerate(consuming):
                channel.basic_qos(prefetch_count=7)
                assert take(channel, f"{kind}{number}", 20) == [b"%d" % count for count in range(20)]
                assert worker_of(node, channel) == found[f"{kind}{number}"]
            # All are counted, wherever they are.
            assert len(get(node, "connections")) == get(node, "overview")["object_totals"]["connections"]


def test_a_worker_is_killed(node: Node) -> None:
    with one_at_each(node) as opened:
        for name, channel in opened.items():
            channel.queue_declare(f"of {name}", durable=True)
            for count in range(50):
                channel.basic_publish("", f"of {name}", b"%d" % count, DURABLE, mandatory=True)
        assert homes(node) == {f"of {name}": name for name in opened}
        for name in ("n1/1", "n1"):
            before = pids(node)
            os.kill(before[name], signal.SIGKILL)
            # Clients of other workers notice nothing.
            opened["n1/2"].basic_publish("", "of n1/2", b"meanwhile", DURABLE, mandatory=True)
            until("it is back", lambda name=name, before=before: pids(node)[name] != before[name])
            assert {**pids(node), name: 0} == {**before, name: 0}
            with pytest.raises(pika.exceptions.AMQPError):
                opened[name].basic_publish("", f"of {name}", b"lost", DURABLE)
            with channels(node, 1) as (fresh,):
                assert take(fresh, f"of {name}", 50) == [b"%d" % count for count in range(50)]
                # New queues can be declared, whichever worker was away.
                fresh.queue_declare(f"after {name}", durable=True)
        left = [b"%d" % count for count in range(50)] + [b"meanwhile"] * 2
        assert take(opened["n1/2"], "of n1/2", 52) == left
    assert "worker n1/1 has ended by SIGKILL: it is started again" in node.log()


def test_the_node_is_killed_and_has_all_that_was_confirmed(node: Node) -> None:
    for kind in ("classic", "quorum"):
        with channels(node, WORKERS) as opened:
            for number, channel in enumerate(opened):
                name = f"{kind}{number}"
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
                for count in range(20):
                    channel.basic_publish("", name, b"%d" % count, DURABLE, mandatory=True)
    ended = pids(node)
    # The parent alone is killed, and its workers end with it.
    node.kill()
    node.start()
    assert not {*ended.values()} & {*pids(node).values()}
    with channels(node, 1) as (channel,):
        for kind in ("classic", "quorum"):
            for number in range(WORKERS):
                assert len(take(channel, f"{kind}{number}", 20)) == 20


def test_the_number_of_workers_changes(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        # A node of one process has the data of the first worker.
        with channels(node, 1) as (channel,):
            for name, kind in (("old", "classic"), ("old quorum", "quorum"), ("old stream", "stream")):
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
                channel.basic_publish("", name, b"kept", DURABLE, mandatory=True)
            for kind in ("classic", "quorum"):
                arguments = {"x-queue-type": kind, "x-delayed": True}
                channel.queue_declare(f"later {kind}", durable=True, arguments=arguments)
                later = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
                channel.basic_publish("", f"later {kind}", b"in an hour", later, mandatory=True)
        assert node.stop() == 0
        for count in (2, 4):
            node.set_more_options("--workers", str(count))
            node.start()
            assert len(pids(node, count)) == count
            with channels(node, count) as opened:
                for number, channel in enumerate(opened):
                    name = f"{count} {number}"
                    channel.queue_declare(name, durable=True)
                    channel.basic_publish("", name, b"kept", DURABLE, mandatory=True)
            assert node.stop() == 0
        for wanted in ("1", "3"):
            code, _, said = run_once(["--data-dir", str(node.data), "--workers", wanted])
            assert (code, "has the queues of 4 workers" in said) == (1, True), said
        node.set_more_options("--workers", "auto")
        node.start()
        assert len(pids(node, 4)) >= 4
        with channels(node, 1) as (channel,):
            channel.basic_qos(prefetch_count=10)
            for name in ("old", "old quorum", "old stream", "2 0", "2 1", "4 0", "4 1", "4 2", "4 3"):
                assert take(channel, name, 1) == [b"kept"], name
            for kind in ("classic", "quorum"):
                assert channel.basic_get(f"later {kind}")[0] is None
                # What waits is not lost, either.
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not empty"):
                    channel.connection.channel().queue_delete(f"later {kind}", if_empty=True)


def test_a_member_of_a_cluster_does_not_start_without_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret that is long enough for a cluster")
    secret.chmod(0o600)
    (port,) = free_ports(1)
    cluster = ("--peers", f"n1=127.0.0.1:{port}", "--cluster-secret-file", str(secret))
    with Node(tmp_path, *cluster) as node:
        assert node.stop() == 0
        code, _, said = run_once(["--data-dir", str(node.data), "--workers", "2"])
        assert (code, "belongs to node 'n1' of a cluster" in said) == (1, True), said
        # It goes back: there is nothing of a second worker.
        node.start()


def test_a_worker_that_ends_again_and_again_is_left_down(tmp_path: Path) -> None:
    with workers(tmp_path, 2, "--worker-restarts-max", "1") as node, one_at_each(node, 2) as opened:
        stays = opened["n1"]
        stays.queue_declare("stays", durable=True)
        os.kill(pids(node, 2)["n1/1"], signal.SIGKILL)
        until("it serves again", lambda: "worker n1/1 serves again" in node.log())
        os.kill(pids(node, 2)["n1/1"], signal.SIGKILL)
        until("it is left down", lambda: "so it is left down" in node.log())
        stays.basic_publish("", "stays", b"x", DURABLE, mandatory=True)
        with channels(node, 2) as later:
            assert [worker_of(node, channel) for channel in later] == ["n1", "n1"]
        assert node.stop() == 0


def memory_limits(node: Node) -> list[int]:
    return [row["mem_limit"] for row in get(node, "nodes")]


def test_limits_are_the_nodes(tmp_path: Path) -> None:
    with workers(tmp_path, WORKERS, "--connections-max", "5") as node, channels(node, 5):
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port))
        assert len({*memory_limits(node)}) == 1
        node.mqctl("set_vm_memory_high_watermark", "absolute", "3000000000")
        until("all have it", lambda: memory_limits(node) == [3_000_000_000] * WORKERS)


def test_the_queues_of_all_workers_are_on_the_publishers_node(node: Node) -> None:
    with one_at_each(node) as opened:
        first, *others = opened.values()
        first.exchange_declare("near", "x-local-random", durable=True)
        for number, channel in enumerate(others):
            channel.queue_declare(f"near{number}", durable=True)
            channel.queue_bind(f"near{number}", "near", "")
        for channel in opened.values():
            # One of two queues each time, so after so many each has some.
            for _ in range(40):
                channel.basic_publish("near", "", b"x", DURABLE, mandatory=True)
        counts = [
            first.queue_declare(f"near{number}", passive=True).method.message_count for number in range(2)
        ]
        assert sum(counts) == 40 * WORKERS and min(counts) > 20


def test_nobody_else_reads_its_files(node: Node) -> None:
    for path in (node.data, node.data / "workers", node.data / "workers/1"):
        assert path.stat().st_mode & 0o777 == 0o700, path
    assert (node.data / "workers/links.secret").stat().st_mode & 0o777 == 0o600


def test_operators_see_one_node(node: Node) -> None:
    with channels(node, WORKERS):
        node.mqctl("set_log_level", "debug")
        node.mqctl("set_disk_free_limit", "1MiB")
        for name in ("n1", "n1%2F1", "n1%2F2"):
            options = {row["name"]: row["value"] for row in get(node, f"nodes/{name}/environment")["options"]}
            assert (options["log_level"], options["disk_free_min_bytes"]) == ("debug", 1 << 20)
            assert (options["node"], options["workers"]) == ("n1", str(WORKERS))
        node.mqctl("drain")
        until("clients are told to go", lambda: not get(node, "connections"))
        with pytest.raises(pika.exceptions.AMQPError):
            BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port))
        # A worker that starts again goes on as the others do.
        before = pids(node)["n1/2"]
        os.kill(before, signal.SIGKILL)
        until("it is back", lambda: pids(node)["n1/2"] != before)
        assert [row["being_drained"] for row in get(node, "nodes")] == [True] * WORKERS
        options = {row["name"]: row["value"] for row in get(node, "nodes/n1%2F2/environment")["options"]}
        assert (options["log_level"], options["disk_free_min_bytes"]) == ("debug", 1 << 20)
        node.mqctl("revive")
        with one_at_each(node) as later:
            assert set(later) == {"n1", "n1/1", "n1/2"}
        node.mqctl("stop")
        until("all of it ends", lambda: not node.running)
    assert node.log().count("has ended") == 1


def test_no_worker_serves_before_the_definitions_are_loaded(tmp_path: Path) -> None:
    hashed = base64.b64encode(b"salt" + hashlib.sha256(b"salt" + b"secret").digest()).decode()
    queues = [f"q{number}" for number in range(500)]
    definitions = {
        "users": [{"name": "app", "password_hash": hashed, "tags": ""}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "app", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{"name": name, "vhost": "/", "durable": True, "auto_delete": False} for name in queues],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    (port,) = free_ports(1)
    options = ("--load-definitions", str(file), "--amqp", f"127.0.0.1:{port}")
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, credentials=pika.PlainCredentials("app", "secret")
    )
    node = Node(tmp_path, "--workers", str(WORKERS), *options)
    node.launch()
    try:
        with ExitStack() as stack:

            def served() -> bool:
                with suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
                    connection = BlockingConnection(parameters)
                    stack.callback(partial(close, connection))
                    connection.channel().queue_declare(queues[-1], passive=True)
                    return True
                return False

            while not served():
                time.sleep(0.01)
            for _ in range(2 * WORKERS):
                assert served()
        node.ready()
    finally:
        node.kill()


def test_a_node_is_up_when_all_its_workers_are(node: Node) -> None:
    node.mqctl("await_online_nodes", "1")
    with pytest.raises(AssertionError, match="fewer than 2 nodes were up"):
        node.mqctl("await_online_nodes", "2", "--timeout", "0.1")
    stopped = pids(node)["n1/1"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(AssertionError, match="fewer than 1 nodes were up"):
            node.mqctl("await_online_nodes", "1", "--timeout", "0.1")
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_node_is_drained_when_all_its_workers_are(tmp_path: Path) -> None:
    with workers(tmp_path, 2, "--drain-connections-per-s", "10") as node, ExitStack() as stack:
        opened = stack.enter_context(one_at_each(node, 2))
        opened["n1"].connection.close()
        other = opened["n1/1"]
        other.queue_declare("there", durable=True)
        for channel in stack.enter_context(channels(node, 20)):
            # They go to the second worker.
            channel.basic_publish("", "there", b"", DURABLE, mandatory=True)
        assert Counter(row["node"] for row in get(node, "connections"))["n1/1"] > 20
        node.mqctl("drain")
        assert get(node, "connections") == []


def test_the_object_store_of_a_node_has_the_streams_of_all_workers(tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    options = (
        "--stream-remotes",
        f"far={far.as_uri()}",
        "--stream-flush-ms",
        "20",
        "--stream-flush-bytes",
        "4096",
    )
    arguments = {
        "x-queue-type": "stream",
        "x-stream-remote": "far",
        "x-stream-local-max-length-bytes": 100_000,
        "x-stream-max-segment-size-bytes": 65_536,
    }
    with workers(tmp_path, 2, *options) as node, one_at_each(node, 2) as opened:
        for number, channel in enumerate(opened.values()):
            name = f"stream{number}"
            channel.queue_declare(name, durable=True, arguments=arguments)
            for _ in range(200):
                channel.basic_publish("", name, os.urandom(2_000), DURABLE, mandatory=True)
        until("both are uploaded", lambda: len([*far.iterdir()]) == 2 and len([*far.rglob("*.segment")]) >= 6)
        told = node.mqctl("remote", "check")
        assert all(f"stream{number}\t" in told for number in range(2)), told
        assert "belong to no stream" not in told
        for place in far.iterdir():
            (place / f"{3:020}-{7:020}-aa.segment").write_bytes(b"orphan")
        assert "2 orphans were deleted" in node.mqctl("remote", "check", "--delete-orphans")


def options_of(node: Node, name: str) -> dict[str, object]:
    rows = get(node, f"nodes/{quote(name, safe='')}/environment")["options"]
    return {row["name"]: row["value"] for row in rows}


def test_a_worker_that_did_not_answer_is_set_as_the_others_are(node: Node) -> None:
    stopped = pids(node)["n1/2"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        node.mqctl("set_log_level", "debug")
        node.mqctl("set_disk_free_limit", "1MiB")
        node.mqctl("set_vm_memory_high_watermark", "absolute", "3000000000")
        put(node, "nodes/n1/drain")
        # Its link counts as dead now: whatever it was asked by it is lost.
        until("the worker counts as down", lambda: len(running(node)) == WORKERS - 1)
    finally:
        os.kill(stopped, signal.SIGCONT)
    until("it is drained", lambda: [row["being_drained"] for row in get(node, "nodes")] == [True] * WORKERS)
    found = options_of(node, "n1/2")
    assert (found["log_level"], found["disk_free_min_bytes"]) == ("debug", 1 << 20)
    assert found["memory_limit"] == options_of(node, "n1")["memory_limit"]
    assert memory_limits(node) == [3_000_000_000] * WORKERS


def test_a_client_is_not_handed_to_a_worker_that_stands_still(node: Node) -> None:
    with one_at_each(node) as opened:
        for name, channel in opened.items():
            channel.queue_declare(f"of {name}", durable=True)
        stopped = pids(node)["n1/2"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            until("the worker counts as down", lambda: len(running(node)) == WORKERS - 1)
            parameters = pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=2)
            with BlockingConnection(parameters) as connection:
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is down or inaccessible"):
                    connection.channel().queue_declare("of n1/2", passive=True)
                # The same client goes on with what the others have.
                channel = connection.channel()
                channel.confirm_delivery()
                channel.basic_publish("", "of n1", b"", DURABLE, mandatory=True)
        finally:
            os.kill(stopped, signal.SIGCONT)


def test_a_worker_that_starts_again_has_the_configuration_that_was_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('disk_free_min_bytes = 2000000\nlog_level = "info"\n')
    with workers(tmp_path, 2, "--config", str(file)) as node:
        file.write_text('disk_free_min_bytes = 1000000\nlog_level = "warning"\n')
        os.kill(node.pid, signal.SIGHUP)
        for name in ("n1", "n1/1"):
            until("it is reloaded", lambda name=name: options_of(node, name)["log_level"] == "warning")
        before = pids(node, 2)["n1/1"]
        os.kill(before, signal.SIGKILL)
        until("it is back", lambda: pids(node, 2)["n1/1"] != before)
        found = options_of(node, "n1/1")
        assert (found["log_level"], found["disk_free_min_bytes"]) == ("warning", 1_000_000)


def test_a_start_that_fails_says_so_once(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as node:
        code, _, said = run_once(
            ["--data-dir", str(tmp_path / "other"), "--workers", "2", "--amqp", f"127.0.0.1:{node.port}"]
        )
        assert (code, said.count("Is another broker running there?")) == (1, 1), said
        code, _, said = run_once(["--data-dir", str(node.data), "--workers", "2", "--amqp", "127.0.0.1:0"])
        assert code == 1 and "in use by process" in said
        with channels(node, 1) as (channel,):
            channel.queue_declare("serves", durable=True)
