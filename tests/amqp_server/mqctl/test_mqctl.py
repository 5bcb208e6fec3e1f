"""`mqctl` against a running mqd: the whole way through HTTP, the API, and the broker behind it."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.build import BUILD
from amqp_server.config import VERSION
from amqp_server.mqctl.main import main
from conformance_tests.patience import patient

from .conftest import Addresses, Mqctl, Outcome


@contextmanager
def channel(
    mqd: Addresses, vhost: str = "/", user: str = "guest", password: str = "guest"
) -> Iterator[BlockingChannel]:
    host, _, port = mqd.amqp.rpartition(":")
    login = pika.PlainCredentials(user, password)
    connection = pika.BlockingConnection(patient(pika.ConnectionParameters(host, int(port), vhost, login)))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def ok(outcome: Outcome) -> Outcome:
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome


def test_users(mqd: Addresses, mqctl: Mqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(mqctl("add_user", "ann", "secret"))
    assert mqctl("add_user", "ann", "secret") == (70, "", 'Error: User "ann" already exists\n')
    ok(mqctl("set_user_tags", "ann", "management", "monitoring"))
    assert ["ann", "[management, monitoring]"] in ok(mqctl("list_users")).rows
    assert ok(mqctl("authenticate_user", "ann", "secret")).out == "Success\n"
    assert mqctl("authenticate_user", "ann", "wrong").code == 65
    monkeypatch.setattr("sys.stdin", io.StringIO("typed\n"))
    ok(mqctl("change_password", "ann"))
    assert mqctl("authenticate_user", "ann", "secret").code == 65
    ok(mqctl("authenticate_user", "ann", "typed"))
    assert mqctl("change_password", "ann", "").code == 65
    assert mqctl("--user", "ann", "--password", "typed", "list_users").code == 77
    ok(mqctl("delete_user", "ann"))
    for command in (("delete_user", "ann"), ("set_user_tags", "ann"), ("change_password", "ann", "x")):
        assert mqctl(*command) == (67, "", 'Error: User "ann" does not exist\n')


def test_default_queue_type_of_a_vhost(mqd: Addresses, mqctl: Mqctl) -> None:
    ok(mqctl("add_vhost", "replicated", "--default-queue-type", "quorum"))
    ok(mqctl("set_permissions", "-p", "replicated", "guest", ".*", ".*", ".*"))
    with channel(mqd, "replicated") as ch:
        ch.queue_declare("durable", durable=True)
        ch.queue_declare("transient")
    rows = ok(mqctl("-q", "list_queues", "-p", "replicated", "name", "type")).rows
    assert sorted(rows) == [["durable", "quorum"], ["transient", "classic"]]
    assert mqctl("add_vhost", "other", "--default-queue-type", "stream").code != 0
    ok(mqctl("delete_vhost", "replicated"))


def test_vhosts_and_permissions_count_for_clients(mqd: Addresses, mqctl: Mqctl) -> None:
    ok(mqctl("add_vhost", "/of bob"))
    ok(mqctl("add_vhost", "/of bob"))
    ok(mqctl("add_user", "bob", "secret"))
    refused = pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="refused for user 'bob'")
    with refused, channel(mqd, "/of bob", "bob", "secret"):
        pass
    ok(mqctl("set_permissions", "-p", "/of bob", "bob", "^b", "", ".*"))
    assert ok(mqctl("list_permissions", "-p", "/of bob")).rows == [
        ["user", "configure", "write", "read"],
        ["bob", "^b", "", ".*"],
    ]
    assert ok(mqctl("-q", "list_user_permissions", "bob")).rows == [["/of bob", "^b", "", ".*"]]
    with channel(mqd, "/of bob", "bob", "secret") as ch:
        ch.queue_declare("b1")
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker, match="queue 'q' in vhost '/of bob' refused"
        ):
            ch.queue_declare("q")
    ok(mqctl("clear_permissions", "-p", "/of bob", "bob"))
    assert ok(mqctl("list_permissions", "-p", "/of bob")).out == ""
    assert mqctl("set_permissions", "-p", "/of bob", "bob", "(", "", "").code == 65
    assert mqctl("set_permissions", "-p", "nope", "bob", "", "", "").code == 69
    assert mqctl("set_permissions", "nobody", "", "", "").code == 67
    ok(mqctl("delete_vhost", "/of bob"))
    ok(mqctl("delete_user", "bob"))
    assert mqctl("delete_vhost", "/of bob") == (69, "", "Error: Virtual host '/of bob' does not exist\n")


def test_topology_and_messages(mqctl: Mqctl) -> None:
    ok(mqctl("declare_queue", "t q/1", "-a", "x-max-length=5", "-a", "x-overflow=reject-publish"))
    ok(mqctl("declare_exchange", "tx", "topic"))
    ok(mqctl("declare_exchange", "tf", "fanout", "--transient", "--auto-delete"))
    ok(mqctl("declare_binding", "tx", "t q/1", "a.#"))
    ok(mqctl("declare_binding", "tx", "tf", "b", "--to", "exchange", "-a", "k=[1]"))
    (row,) = ok(mqctl("-q", "list_queues", "name", "messages", "durable", "arguments")).rows
    assert row[:3] == ["t q/1", "0", "true"]
    assert json.loads(row[3]) == {"x-max-length": 5, "x-overflow": "reject-publish"}
    bindings = ok(mqctl("list_bindings")).rows
    assert ["tx", "exchange", "t q/1", "queue", "a.#", "{}"] in bindings
    assert ["tx", "exchange", "tf", "exchange", "b", '{"k": [1]}'] in bindings
    assert ["tx", "topic"] in ok(mqctl("list_exchanges")).rows

    assert (
        ok(mqctl("publish", "tx", "a.b", "héllo", "-P", "message_id=7", "-P", 'headers={"n": 1}')).out
        == "routed\n"
    )
    assert ok(mqctl("publish", "tx", "zz", "lost")).out == "not routed\n"
    assert ok(mqctl("publish", "", "t q/1", "second")).out == "routed\n"
    assert ok(mqctl("-q", "get", "t q/1", "--requeue")).rows[0][-1] == "héllo"
    first, second = ok(mqctl("-q", "get", "t q/1", "-n", "9")).rows
    assert first[:4] == ["tx", "a.b", "1", "true"]
    assert json.loads(first[4]) == {"headers": {"n": 1}, "message_id": "7"}
    assert second[:4] == ["", "t q/1", "0", "false"]
    assert ok(mqctl("get", "t q/1")).out == ""

    ok(mqctl("publish", "", "t q/1", "x"))
    assert mqctl("delete_queue", "--if-empty", "t q/1").code == 65
    ok(mqctl("purge_queue", "t q/1"))
    ok(mqctl("delete_binding", "tx", "tf", "b", "--to", "exchange", "-a", "k=[1]"))
    assert mqctl("delete_binding", "tx", "tf", "b", "--to", "exchange").code == 69
    ok(mqctl("delete_queue", "--if-empty", "--if-unused", "t q/1"))
    ok(mqctl("delete_exchange", "tx"))
    assert ok(mqctl("list_queues")).out == ""


def test_refusals_are_the_brokers_own(mqctl: Mqctl) -> None:
    assert "expected integer, got longstr" in mqctl("declare_queue", "bad", "-a", "x-message-ttl=abc").err
    assert "contains reserved prefix 'amq.*'" in mqctl("declare_queue", "amq.mine").err
    assert "unknown exchange type 'nope'" in mqctl("declare_exchange", "bad", "nope").err
    assert mqctl("declare_queue", "x" * 256).code == 65
    assert mqctl("purge_queue", "nope") == (69, "", "Error: Queue not found: nope\n")
    assert mqctl("delete_queue", "nope").code == 69
    assert mqctl("publish", "nope", "k", "x").code == 69
    assert ok(mqctl("list_queues")).out == ""


def test_dead_letters_of_rejected_messages(mqctl: Mqctl) -> None:
    ok(mqctl("declare_queue", "dl"))
    ok(
        mqctl(
            "declare_queue", "source", "-a", "x-dead-letter-exchange=", "-a", "x-dead-letter-routing-key=dl"
        )
    )
    ok(mqctl("publish", "", "source", "x"))
    ok(mqctl("get", "source", "--reject"))
    (row,) = ok(mqctl("-q", "get", "dl")).rows
    death = json.loads(row[4])["headers"]["x-death"][0]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", "source", 1)
    for queue in ("dl", "source"):
        ok(mqctl("delete_queue", queue))


def test_clients_are_seen_and_closed(mqd: Addresses, mqctl: Mqctl) -> None:
    with channel(mqd) as ch:
        ch.queue_declare("seen", exclusive=True)
        ch.basic_qos(prefetch_count=7)
        got: list[bytes] = []
        ch.basic_consume(
            "seen",
            lambda *delivery: got.append(delivery[3]),
            consumer_tag="ctag",
            arguments={"x-priority": 3},
        )
        ok(mqctl("publish", "", "seen", "hello"))
        ch.connection.process_data_events(5)
        assert got == [b"hello"]
        (connection,) = ok(mqctl("-q", "list_connections", "name", "user", "vhost", "channels", "state")).rows
        assert connection[1:] == ["guest", "/", "1", "running"]
        name = connection[0]
        assert ok(mqctl("-q", "list_channels")).rows == [[f"{name} (1)", "guest", "1", "1"]]
        consumers = ok(mqctl("-q", "list_consumers")).rows
        assert consumers == [["seen", f"{name} (1)", "ctag", "true", "7", "true", '{"x-priority": 3}']]
        queues = ok(
            mqctl("-q", "list_queues", "name", "exclusive", "owner_pid", "messages_unacknowledged")
        ).rows
        assert queues == [["seen", "true", name, "1"]]
        assert "cannot obtain exclusive access" in mqctl("purge_queue", "seen").err
        ok(mqctl("close_connection", name, "time to go"))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED - time to go"):
            ch.connection.process_data_events(5)
    assert mqctl("close_connection", name, "again").code == 69
    with channel(mqd) as ch:
        ok(mqctl("close_all_connections", "maintenance"))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance"):
            ch.connection.process_data_events(5)
    assert ok(mqctl("list_connections")).out == ""


def test_status_says_how_mqd_was_built(mqctl: Mqctl) -> None:
    assert ok(mqctl("status")).out.splitlines()[0] == f"mqd {VERSION}, {BUILD}"


def test_memory_alarm(mqd: Addresses, mqctl: Mqctl) -> None:
    ok(mqctl("declare_queue", "alarm"))
    ok(mqctl("set_vm_memory_high_watermark", "0.0000001"))
    try:
        assert "alarms mem_alarm" in ok(mqctl("status")).out
        assert "publishers are blocked: low on memory" in mqctl("publish", "", "alarm", "x").err
    finally:
        ok(mqctl("set_vm_memory_high_watermark", "0.6"))
    assert "alarms none" in ok(mqctl("status")).out
    ok(mqctl("set_vm_memory_high_watermark", "absolute", "4GiB"))
    ok(mqctl("publish", "", "alarm", "x"))
    ok(mqctl("set_vm_memory_high_watermark", "0.6"))
    for wrong in (["0"], ["7"], ["much"], ["absolute", "much"], ["0.5", "0.6"]):
        assert mqctl("set_vm_memory_high_watermark", *wrong).code in (64, 65)
    ok(mqctl("delete_queue", "alarm"))


def test_requests_at_the_same_time_as_clients(mqd: Addresses, mqctl: Mqctl) -> None:
    """Management's own session must not disturb a client's turn."""
    count = 200
    with channel(mqd) as ch:
        ch.queue_declare("busy", durable=True)
        ch.confirm_delivery()
        done = threading.Event()

        def publish() -> None:
            for number in range(count):
                ch.basic_publish("", "busy", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        while not done.is_set():
            ok(mqctl("list_queues"))
            ok(mqctl("get", "busy", "--requeue"))
        thread.join()
    got: list[str] = []
    while rows := ok(mqctl("-q", "get", "busy", "-n", "50")).rows:
        got += [row[-1] for row in rows]
    assert got == [str(number) for number in range(count)]
    ok(mqctl("delete_queue", "busy"))


def test_usage_errors(mqctl: Mqctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert mqctl("frobnicate") == (64, "", "Error: No such command 'frobnicate'.\n")
    assert mqctl("add_user").code == 64
    assert mqctl("list_queues", "bogus").err.startswith(
        "Error: Info key(s) bogus are not supported; there are: name,"
    )
    assert mqctl("declare_queue", "q", "-a", "nonsense").code == 65
    assert "Lists queues" in ok(mqctl("list_queues", "--help")).out


@pytest.mark.parametrize(
    ("url", "code"), [("ftp://x", 64), ("http://127.0.0.1:1", 69), ("http://127.0.0.1:x", 64)]
)
def test_unreachable_broker(capsys: pytest.CaptureFixture[str], url: str, code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--url", url, "list_queues"])
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith("Error: ")


def test_slow_and_broken_requests_hurt_nobody(mqd: Addresses, mqctl: Mqctl) -> None:
    host, _, port = mqd.http.rpartition(":")
    held = []
    for sent in (
        b"",
        b"GET /api/who",
        b"\xff" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000,
    ):
        sock = socket.create_connection((host, int(port)), 5)
        sock.sendall(sent)
        held.append(sock)
    ok(mqctl("list_queues"))
    for sock in held:
        sock.close()
    ok(mqctl("list_queues"))
