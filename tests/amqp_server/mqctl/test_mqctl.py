"""`mqctl` against a running mqd: the whole way through HTTP, the API, and the broker behind it."""

import fcntl
import io
import json
import os
import pty
import select
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.build import BUILD
from amqp_server.config import VERSION
from amqp_server.mqctl.command import first_sentence
from amqp_server.mqctl.command import mqctl as group
from amqp_server.mqctl.main import main
from amqp_server.mqctl.sections import sections
from conformance_tests.patience import PATIENCE_S, patient
from conformance_tests.ports import free_ports

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


def test_users_are_added_changed_and_deleted(
    mqd: Addresses, mqctl: Mqctl, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    wrong = mqctl("--user", "ann", "--password", "wrong", "list_users")
    assert wrong.code == 77 and wrong.err.startswith(
        "Error: Login failed for user 'ann' at http://127.0.0.1:"
    )
    ok(mqctl("delete_user", "ann"))
    for command in (("delete_user", "ann"), ("set_user_tags", "ann"), ("change_password", "ann", "x")):
        assert mqctl(*command) == (67, "", 'Error: User "ann" does not exist\n')


def test_the_last_administrator_stays_unless_forced(mqctl: Mqctl) -> None:
    for command in (("delete_user", "guest"), ("set_user_tags", "guest", "management")):
        outcome = mqctl(*command)
        assert outcome.code == 65 and "user 'guest' is the last administrator" in outcome.err
    ok(mqctl("add_user", "other", "other"))
    ok(mqctl("set_user_tags", "other", "administrator"))
    ok(mqctl("set_user_tags", "guest", "management"))
    as_other = ("--user", "other", "--password", "other")
    ok(mqctl(*as_other, "set_user_tags", "guest", "administrator"))
    ok(mqctl("set_user_tags", "--force", "other"))
    ok(mqctl("delete_user", "--force", "other"))


def test_password_from_a_file(mqctl: Mqctl, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("guest\n")
    ok(mqctl("--password-file", str(file), "list_users"))
    file.write_text("wrong\n")
    assert mqctl("--password-file", str(file), "list_users").code == 77


def test_mistyped_variable_is_told(mqctl: Mqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQCTL_LIST_QUEUES_VHOST", "/")
    ok(mqctl("list_users"))
    monkeypatch.setenv("MQCTL_PASWORD", "secret value")
    told = mqctl("list_users").err
    assert told == (
        "mqctl: warning: MQCTL_PASWORD in the environment is ignored; the nearest one is MQCTL_PASSWORD\n"
    )


def test_terminal_is_asked_for_the_password_and_does_not_show_it(mqd: Addresses, mqctl: Mqctl) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "amqp_server.mqctl", "--url", f"http://{mqd.http}", "add_user", "typist"]
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            readable, _, _ = select.select([master], [], [], PATIENCE_S)
            assert readable, shown
            shown += os.read(master, 1024)

    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        # The controlling terminal, as in a shell.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    try:
        read_until(b"Password: ")
        os.write(master, b"unseen\n")
        read_until(b"Repeat for confirmation: ")
        os.write(master, b"unseen\n")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)
    assert b"unseen" not in shown
    ok(mqctl("authenticate_user", "typist", "unseen"))
    ok(mqctl("delete_user", "typist"))


def test_default_queue_type_of_a_vhost(mqd: Addresses, mqctl: Mqctl) -> None:
    ok(mqctl("add_vhost", "replicated", "--default-queue-type", "quorum"))
    ok(mqctl("set_permissions", "-p", "replicated", "guest", ".*", ".*", ".*"))
    with channel(mqd, "replicated") as ch:
        ch.queue_declare("durable", durable=True)
        ch.queue_declare("transient")
    rows = ok(mqctl("-q", "list_queues", "-p", "replicated", "name", "type")).rows
    assert sorted(rows) == [["durable", "quorum"], ["transient", "classic"]]
    assert mqctl("add_vhost", "other", "--default-queue-type", "abc").code != 0
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

    waits = ("-P", 'headers={"x-delay": 600000}')
    ok(mqctl("declare_queue", "t later", "-a", "x-delayed=true"))
    ok(mqctl("declare_queue", "t other"))
    for number in "12344":
        ok(mqctl("publish", "", "t later", number, *waits, "-P", f"message_id={number}"))
    assert ok(mqctl("cancel_messages", "t later", "4")).out == "2 messages were cancelled\n"
    gone = mqctl("cancel_messages", "t later", "4")
    assert (gone.code, gone.err) == (69, "Error: no message with this id waits in queue 't later'\n")
    assert ok(mqctl("purge_queue", "t later", "--message-id", "1")).out == "0 messages were purged\n"
    out = ok(mqctl("purge_queue", "t later", "--message-id", "1", "--since", "15m", "--waiting")).out
    assert out == "1 messages were purged\n"
    assert mqctl("purge_queue", "t later", "--waiting").code == 64
    assert mqctl("search", "t later", "--since", "soon", "--waiting").code
    assert ok(mqctl("move", "t later", "t other", "--waiting")).out == "2 messages were moved\n"
    out = ok(mqctl("redrive", "t other", "--waiting")).out
    assert out == "0 messages went back to their queues, 2 stay\n"
    for queue in ("t later", "t other"):
        ok(mqctl("delete_queue", queue))

    ok(mqctl("publish", "", "t q/1", "x"))
    shown = ("list_queues", "state", "deliveries_paused", "publishes_paused", "protected_from_deletion")
    ok(mqctl("pause_queue", "t q/1", "--deliveries"))
    ok(mqctl("enable_queue_protection_from_deletion", "t q/1"))
    assert ok(mqctl("-q", *shown)).rows == [["paused", "true", "false", "true"]]
    assert ok(mqctl("get", "t q/1")).out == ""
    refused = mqctl("delete_queue", "t q/1")
    assert refused.code and "Cannot delete protected queue 't q/1' in vhost '/'" in refused.err
    ok(mqctl("pause_queue", "t q/1"))
    ok(mqctl("resume_queue", "t q/1", "--deliveries"))
    ok(mqctl("disable_queue_protection_from_deletion", "t q/1"))
    assert ok(mqctl("-q", *shown)).rows == [["paused", "false", "true", "false"]]
    ok(mqctl("resume_queue", "t q/1"))
    assert ok(mqctl("-q", *shown)).rows == [["running", "false", "false", "false"]]
    assert mqctl("delete_queue", "--if-empty", "t q/1").code == 65
    ok(mqctl("purge_queue", "t q/1"))
    ok(mqctl("delete_binding", "tx", "tf", "b", "--to", "exchange", "-a", "k=[1]"))
    assert mqctl("delete_binding", "tx", "tf", "b", "--to", "exchange").code == 69
    ok(mqctl("delete_queue", "--if-empty", "--if-unused", "t q/1"))
    ok(mqctl("delete_exchange", "tx"))
    assert ok(mqctl("list_queues")).out == ""


def test_super_streams_are_declared_listed_and_grow(mqctl: Mqctl, tmp_path: Path) -> None:
    arguments = ("-a", "x-partitions=2", "-a", "x-stream-compression=zstd", "-a", "x-stream-compaction=key")
    ok(mqctl("declare_exchange", "orders", "x-super-stream", *arguments))
    columns = ("name", "type", "compression", "compacted_offset")
    assert ok(mqctl("-q", "list_queues", *columns)).rows == [
        [f"orders-{number}", "stream", "zstd", "0"] for number in range(2)
    ]
    ok(mqctl("add_partitions", "orders", "1"))
    rows = ok(mqctl("-q", "list_exchanges", "name", "partitions")).rows
    listed = dict(rows)
    assert (listed["orders"], listed["amq.topic"]) == ("[orders-0, orders-1, orders-2]", "")
    for args, why in (
        (("add_partitions", "orders", "1000"), "{value_out_of_range,1003,1,1000}"),
        (("add_partitions", "amq.direct", "1"), "was not declared with 'x-partitions'"),
        (("delete_queue", "orders-1"), "is a partition of super stream 'orders'"),
    ):
        refused = mqctl(*args)
        assert refused.code == 65 and why in refused.err
    assert mqctl("add_partitions", "nope", "1").code == 69
    assert mqctl("add_partitions", "orders", "0").code == 64
    # Definitions include the partitions that were added later.
    file = str(tmp_path / "definitions.json")
    ok(mqctl("export_definitions", file))
    ok(mqctl("delete_exchange", "orders"))
    for _ in range(2):
        ok(mqctl("import_definitions", file))
    listed = dict(ok(mqctl("-q", "list_exchanges", "name", "partitions")).rows)
    assert listed["orders"] == "[orders-0, orders-1, orders-2]"
    ok(mqctl("delete_exchange", "orders"))
    assert ok(mqctl("list_queues")).out == ""


def test_groups_are_declared_listed_and_reset(mqd: Addresses, mqctl: Mqctl, tmp_path: Path) -> None:
    ok(mqctl("declare_exchange", "orders", "x-super-stream", "-a", "x-partitions=2"))
    arguments = ("-a", "x-queue-type=stream-group", "-a", "x-stream=orders", "-a", "x-stream-offset=first")
    ok(mqctl("declare_queue", "billing", *arguments))
    for number in range(10):
        ok(mqctl("publish", "", f"orders-{number % 2}", "x"))
    columns = ("name", "stream", "state", "members", "partitions", "messages", "messages_unacknowledged")
    listed = ok(mqctl("-q", "list_groups", *columns)).rows
    assert listed == [["billing", "orders", "running", "0", "2", "10", "0"]]
    assert ["billing", "stream-group", "10"] in ok(
        mqctl("-q", "list_queues", "name", "type", "messages")
    ).rows
    with channel(mqd) as member:
        member.basic_qos(prefetch_count=4)
        found = []
        for method, properties, _ in member.consume("billing"):
            found.append((properties.headers["x-stream"], properties.headers["x-stream-offset"]))
            if method.delivery_tag == 3:
                member.basic_ack(3, multiple=True)
                break
        (row,) = ok(mqctl("-q", "list_group_members", "billing")).rows
        assert row[3:] == ["4", "4", "[orders-0, orders-1]"]
        assert ok(mqctl("-q", "list_group_members")).rows == [["billing", *row]]
        rows = ok(mqctl("-q", "list_group_partitions", "billing")).rows
        assert [row[:2] for row in rows] == [["0", "orders-0"], ["1", "orders-1"]]
        assert sum(int(row[4]) for row in rows) == 7 and all(int(row[6]) >= 0 for row in rows)
        refused = mqctl("reset_group", "billing", "--to", "first")
        assert refused.code == 65 and "has 1 members" in refused.err
    rows = ok(mqctl("-q", "reset_group", "billing", "--to", "2", "--dry-run")).rows
    assert [row[2] for row in rows] == ["2", "2"]
    assert ok(mqctl("-q", "list_groups", "messages")).rows == [["7"]]
    for place, left in (("first", 10), ("next", 0), ("-1h", 10), ("3", 4), ("2999-01-01", 0), ("last", 2)):
        ok(mqctl("reset_group", "billing", "--to", place))
        assert ok(mqctl("-q", "list_groups", "messages")).rows == [[str(left)]], place
    rows = ok(mqctl("-q", "reset_group", "billing", "--to", "first", "--partition", "1")).rows
    assert rows == [["orders-1", "4", "0"]]
    assert ok(mqctl("-q", "list_groups", "messages")).rows == [["6"]]
    for args, why in (
        (("--to", "soon"), "expected first, last"),
        (("--to", "first", "--partition", "2"), "has no partition 2"),
    ):
        refused = mqctl("reset_group", "billing", *args)
        assert refused.code == 65 and why in refused.err
    assert mqctl("reset_group", "nope", "--to", "first").code == 69
    # A user that may declare queues, but not read the stream, can't declare a group over it.
    ok(mqctl("add_user", "mia", "pw"))
    ok(mqctl("set_user_tags", "mia", "management"))
    ok(mqctl("set_permissions", "mia", "^mine$", "", ""))
    refused = mqctl("--user", "mia", "--password", "pw", "declare_queue", "mine", *arguments)
    assert refused.code != 0 and "'orders-0' in vhost '/' refused for user 'mia'" in refused.err
    ok(mqctl("delete_user", "mia"))
    # An import makes the group when its streams are there.
    file = str(tmp_path / "definitions.json")
    ok(mqctl("export_definitions", file))
    ok(mqctl("delete_queue", "billing"))
    ok(mqctl("delete_exchange", "orders"))
    ok(mqctl("set_policy", "short", "", '{"expires": 3600000}'))
    ok(mqctl("import_definitions", file))
    assert ok(mqctl("-q", "list_groups", *columns[:2])).rows == [["billing", "orders"]]
    ok(mqctl("clear_policy", "short"))
    ok(mqctl("delete_queue", "billing"))
    ok(mqctl("delete_exchange", "orders"))


def test_offsets_by_name(mqd: Addresses, mqctl: Mqctl) -> None:
    ok(mqctl("declare_queue", "log/1", "-a", "x-queue-type=stream"))
    for number in range(3):
        ok(mqctl("publish", "", "log/1", str(number)))
    list_offsets = ("-q", "list_stream_offsets", "log/1")
    assert ok(mqctl(*list_offsets)).rows == []
    arguments = {"x-stream-offset": "committed", "x-stream-offset-default": "first"}
    with channel(mqd) as reader:
        reader.basic_qos(prefetch_count=10)
        for name in ("re/ports", "audit"):
            for method, _, _ in reader.consume("log/1", arguments=arguments | {"x-group": name}):
                reader.basic_ack(method.delivery_tag)
                break
            reader.cancel()
        reader.basic_consume("log/1", lambda *told: None, arguments=arguments | {"x-group": "re/ports"})
        rows = ok(mqctl(*list_offsets)).rows
        assert [row[:4] for row in rows] == [
            ["audit", "1", "2", "false"],
            ["re/ports", "1", "2", "true"],
        ]
        assert rows[1][4].startswith("127.0.0.1:")
        refused = mqctl("delete_stream_offset", "log/1", "re/ports")
        assert refused.code == 65 and "uses the name 're/ports': stop it" in refused.err
    # A user that may not read the stream may not delete what others have read of it.
    ok(mqctl("add_user", "mia", "pw"))
    ok(mqctl("set_user_tags", "mia", "management"))
    ok(mqctl("set_permissions", "mia", ".*", ".*", "^mine$"))
    refused = mqctl("--user", "mia", "--password", "pw", "delete_stream_offset", "log/1", "audit")
    assert refused.code != 0 and "'log/1' in vhost '/' refused for user 'mia'" in refused.err
    ok(mqctl("set_permissions", "mia", "", "", "^log"))
    ok(mqctl("--user", "mia", "--password", "pw", "delete_stream_offset", "log/1", "audit"))
    ok(mqctl("delete_user", "mia"))
    ok(mqctl("delete_stream_offset", "log/1", "re/ports"))
    assert ok(mqctl(*list_offsets)).rows == []
    absent = mqctl("delete_stream_offset", "log/1", "audit")
    assert absent.code == 69 and "has no offset with the name 'audit'" in absent.err
    ok(mqctl("declare_queue", "plain"))
    for command in (("list_stream_offsets", "plain"), ("delete_stream_offset", "plain", "a")):
        assert "queue 'plain' in vhost '/' is not a stream" in mqctl(*command).err
    for command in (("list_stream_offsets", "nope"), ("delete_stream_offset", "nope", "a")):
        assert mqctl(*command) == (69, "", "Error: no queue 'nope' in vhost '/'\n")
    for name in ("plain", "log/1"):
        ok(mqctl("delete_queue", name))


@pytest.mark.parametrize("name", [".", "..", "a/..", "%2E", "-x"])
def test_names_that_are_no_part_of_a_path(mqctl: Mqctl, name: str) -> None:
    ok(mqctl("declare_queue", "contents"))
    ok(mqctl("declare_queue", "--", name))
    for command in ("purge_queue", "pause_queue", "resume_queue"):
        ok(mqctl(command, "--", name))
    # None of it was meant for a queue that is called like a part of the path.
    assert {row[0] for row in ok(mqctl("-q", "list_queues", "name")).rows} == {name, "contents"}
    ok(mqctl("delete_queue", "--", name))
    ok(mqctl("delete_queue", "contents"))


def test_refusals_are_the_brokers_own(mqctl: Mqctl) -> None:
    assert "expected integer, got longstr" in mqctl("declare_queue", "bad", "-a", "x-message-ttl=abc").err
    assert "contains reserved prefix 'amq.*'" in mqctl("declare_queue", "amq.mine").err
    assert "unknown exchange type 'nope'" in mqctl("declare_exchange", "bad", "nope").err
    assert mqctl("declare_queue", "x" * 256).code == 65
    assert mqctl("purge_queue", "nope") == (69, "", "Error: no queue 'nope' in vhost '/'\n")
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


def test_transactions_are_seen_and_aborted(mqd: Addresses, mqctl: Mqctl) -> None:
    with channel(mqd) as ch:
        ch.queue_declare("moved")
        ch.tx_select()
        ch.basic_publish("", "moved", b"body")
        ch.queue_declare("moved", passive=True)
        columns = ("id", "state", "messages", "acks", "participants", "user", "waiting_for")
        (row,) = ok(mqctl("-q", "list_transactions", *columns)).rows
        assert row[1:] == ["open", "1", "0", "[moved]", "guest", "[]"]
        assert len(ok(mqctl("-q", "list_transactions")).rows) == 1
        ok(mqctl("abort_transaction", row[0], "it blocks the deployment"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            ch.queue_declare("moved", passive=True)
        assert closed.value.reply_code == 406
        assert closed.value.reply_text.endswith(": it blocks the deployment")
        assert ok(mqctl("-q", "list_transactions")).rows == []
        again = mqctl("abort_transaction", row[0])
        assert again.code != 0 and "is open or undecided" in again.err
    ok(mqctl("delete_queue", "moved"))


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


def test_the_memory_watermark_raises_and_clears_the_alarm(mqd: Addresses, mqctl: Mqctl) -> None:
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
    """The management API's own session must not disturb a client's turn."""
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


def test_wrong_usage_is_explained(mqctl: Mqctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert mqctl("frobnicate") == (64, "", "Error: no command 'frobnicate'\n")
    assert mqctl("add_user").code == 64
    assert mqctl("list_queues", "bogus").err.startswith(
        "Error: Info key(s) bogus are not supported; there are: name,"
    )
    assert mqctl("declare_queue", "q", "-a", "nonsense").code == 65
    for what in ((), ("q", "--topology")):
        assert "give either QUEUE or --topology" in mqctl("cluster", "accept-loss", *what).err
    # This node belongs to no cluster.
    assert "give either" not in mqctl("cluster", "accept-loss", "--topology").err
    assert mqctl("cluster", "accept-loss", "--topology").code != 0
    assert "Lists the queues" in ok(mqctl("list_queues", "--help")).out


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["list_queus"], "no command 'list_queus': did you mean 'list_queues'?"),
        (["cluster", "stauts"], "no command 'stauts': did you mean 'status'?"),
        (["list_queues", "--vhsot", "/"], "no option '--vhsot': did you mean '--vhost'?"),
        (["--usr", "guest", "status"], "no option '--usr': did you mean '--user'?"),
        (["--zzz", "status"], "no option '--zzz'"),
        (["--formatter", "jsno", "status"], "'jsno' is not one of: table, json, csv; did you mean 'json'?"),
        (
            ["set_policy", "--apply-to", "queue", "p", "a", "{}"],
            "quorum_queues, streams; did you mean 'queues'?",
        ),
        (["completion", "bahs"], "Invalid value for 'SHELL': 'bahs' is not one of: bash, zsh, fish; did you"),
        (["list_queues", "mesages"], "did you mean 'messages'?"),
    ],
)
def test_misspelt_name_is_told_with_the_right_one(mqctl: Mqctl, args: list[str], text: str) -> None:
    outcome = mqctl(*args)
    assert outcome.code == 64
    assert text in outcome.err
    assert outcome.err.count("\n") == 1


def test_help_has_all_commands_in_sections_with_whole_sentences(mqctl: Mqctl) -> None:
    told = ok(mqctl("--help")).out
    for title, commands in sections(list(group.commands.items())):
        _, found, section = told.partition(f"\n\n{title}:\n")
        assert found
        words = " ".join(section.split("\n\n")[0].split())
        for name, command in commands:
            assert f"{name} {first_sentence(command)}" in words
    assert "..." not in told.partition("\n\n")[2]


def test_texts_are_sentences() -> None:
    def commands(found: click.Command) -> Iterator[click.Command]:
        yield found
        if isinstance(found, click.Group):
            for each in found.commands.values():
                yield from commands(each)

    for command in commands(group):
        assert command.help is not None and command.help[0].isupper()
        assert command.help.endswith((".", '"$(mqctl completion bash)"')), command.name
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help is not None and param.help.endswith("."), (command.name, param.name)


@pytest.mark.parametrize(
    ("url", "code"), [("ftp://x", 64), ("http://127.0.0.1:1", 69), ("http://127.0.0.1:x", 64)]
)
def test_a_broker_that_cannot_be_reached_is_an_error(
    capsys: pytest.CaptureFixture[str], url: str, code: int
) -> None:
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


IN_VHOST = ["list_queues", "list_exchanges", "list_bindings", "list_consumers", "list_permissions"]


@pytest.mark.parametrize("command", IN_VHOST)
def test_a_vhost_that_is_not_there_is_named(mqctl: Mqctl, command: str) -> None:
    for place in ([command, "-p", "no such"], [command, "--vhost=no such", "--formatter", "json"]):
        assert mqctl(*place) == (69, "", "Error: Virtual host 'no such' does not exist\n")


def test_what_is_not_there_is_named(mqctl: Mqctl) -> None:
    told = {
        ("purge_queue", "nope"): "no queue 'nope' in vhost '/'",
        ("purge_queue", "nope", "-p", "away"): "Virtual host 'away' does not exist",
        ("delete_queue", "nope"): "no queue 'nope' in vhost '/'",
        ("pause_queue", "nope"): "no queue 'nope' in vhost '/'",
        ("resume_queue", "nope", "-p", "away"): "Virtual host 'away' does not exist",
        ("enable_queue_protection_from_deletion", "nope"): "no queue 'nope' in vhost '/'",
        ("get", "nope"): "no queue 'nope' in vhost '/'",
        ("declare_queue", "q", "-p", "away"): "Virtual host 'away' does not exist",
        ("delete_exchange", "nope"): "no exchange 'nope' in vhost '/'",
        ("publish", "nope", "k", "x"): "no exchange 'nope' in vhost '/'",
        ("publish", "nope", "k", "x", "-p", "away"): "Virtual host 'away' does not exist",
        ("declare_binding", "nope", "q"): "no exchange 'nope' in vhost '/'",
        ("declare_binding", "amq.topic", "nope"): "no queue 'nope' in vhost '/'",
        ("delete_binding", "amq.topic", "q", "-p", "away"): "Virtual host 'away' does not exist",
        ("retry_failed", "nope"): "no queue 'nope' in vhost '/' has failed on this node",
        ("close_connection", "nope", "why"): "there is no connection nope",
    }
    for command, text in told.items():
        assert mqctl(*command) == (69, "", f"Error: {text}\n"), command


def test_a_vhost_of_others_is_named(mqctl: Mqctl) -> None:
    ok(mqctl("add_user", "eve", "secret"))
    ok(mqctl("set_user_tags", "eve", "management"))
    try:
        for vhost in ("/", "no such"):
            refused = mqctl("--user", "eve", "--password", "secret", "list_queues", "-p", vhost)
            assert refused == (77, "", f"Error: User not authorised to access virtual host '{vhost}'\n")
    finally:
        ok(mqctl("delete_user", "eve"))


def test_the_version_is_printed(mqctl: Mqctl) -> None:
    assert mqctl("--version") == (0, f"mqctl {VERSION}\n", "")
    assert mqctl("version") == (0, f"{VERSION}\n", "")


def test_a_ping_needs_a_node_and_no_login(mqctl: Mqctl) -> None:
    assert mqctl("ping") == (0, "Ping succeeded\n", "")
    assert mqctl("--user", "nobody", "--password", "wrong", "ping").code == 0
    assert mqctl("ping", "--formatter", "json") == (0, '{"message": "Ping succeeded"}\n', "")
    (port,) = free_ports(1)
    down = mqctl("--url", f"http://127.0.0.1:{port}", "ping")
    assert (down.code, down.out) == (69, "")
    assert down.err.startswith(f"Error: no answer from http://127.0.0.1:{port}: ")


def in_json(outcome: Outcome) -> Any:
    return json.loads(ok(outcome).out)


def test_json_has_an_object_for_each_row(mqctl: Mqctl) -> None:
    """As in rabbitmqctl: an array of objects with the names of the columns; the option may stand anywhere."""
    assert in_json(mqctl("list_queues", "--formatter", "json")) == []
    ok(mqctl("declare_queue", "tab\tq", "-a", "x-max-length=5"))
    ok(mqctl("declare_queue", "qq", "-a", "x-queue-type=quorum"))
    try:
        columns = ("name", "messages", "durable", "arguments", "leader", "members")
        rows = [
            {
                "name": "tab\tq",
                "messages": 0,
                "durable": True,
                "arguments": {"x-max-length": 5},
                "leader": None,
                "members": None,
            },
            {
                "name": "qq",
                "messages": 0,
                "durable": True,
                "arguments": {"x-queue-type": "quorum"},
                "leader": "n1",
                "members": ["n1"],
            },
        ]
        assert in_json(mqctl("--formatter", "json", "list_queues", *columns)) == rows
        assert in_json(mqctl("list_queues", "--formatter=json", *columns)) == rows
        assert in_json(mqctl("list_queues", *columns, "-q", "--formatter", "json")) == rows
        ok(mqctl("publish", "", "qq", "é\n"))
        (message,) = in_json(mqctl("--formatter", "json", "get", "qq"))
        assert message["payload"] == "é\n"
    finally:
        for queue in ("tab\tq", "qq"):
            ok(mqctl("delete_queue", queue))
    assert in_json(mqctl("list_users", "--formatter", "json")) == [
        {"user": "guest", "tags": ["administrator"]}
    ]
    assert in_json(mqctl("list_vhosts", "--formatter", "json")) == [{"name": "/"}]
    status = in_json(mqctl("status", "--formatter", "json"))
    assert status["nodes"][0]["name"] == "n1"
    assert status["totals"]["queues"] == 0
    assert in_json(mqctl("authenticate_user", "guest", "guest", "--formatter", "json")) == {
        "message": "Success"
    }
    assert mqctl("list_queues", "--formatter", "xml").code == 64


def test_quiet_may_stand_behind_the_command(mqctl: Mqctl) -> None:
    assert mqctl("list_vhosts", "-q") == mqctl("-q", "list_vhosts") == (0, "/\n", "")


def test_stop_returns_when_the_node_has_stopped(tmp_path: Path) -> None:
    """The node stops in order and tells its clients, and the command returns when the node serves nobody any
    more.
    """
    amqp, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    node = [sys.executable, "-m", "amqp_server.main", "--data-dir", str(tmp_path / "data")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*node, "--amqp", amqp, "--http", http], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("mqd ready ")
        ctl = [sys.executable, "-m", "amqp_server.mqctl", "--url", f"http://{http}"]
        with channel(Addresses(amqp, http)) as ch:
            ch.queue_declare("kept", durable=True)
            done = subprocess.run([*ctl, "stop"], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "Node n1 has stopped\n", "")
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="shutdown"):
                ch.connection.process_data_events(5)
        assert process.wait(PATIENCE_S) == 0
        log_text = (tmp_path / "log").read_text()
        assert "the management API requested that the node stop" in log_text
        assert "Traceback" not in log_text
        done = subprocess.run([*ctl, "ping"], capture_output=True, text=True, check=False)
        assert done.returncode == 69
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("word", "many", "title"),
    [("policy", "policies", "policy"), ("operator_policy", "operator_policies", "operator policy")],
)
def test_policies_are_set_listed_and_cleared(mqctl: Mqctl, word: str, many: str, title: str) -> None:
    ok(mqctl("declare_queue", "limited"))
    ok(mqctl(f"set_{word}", "--priority", "3", "--apply-to", "queues", "p", "^limited$", '{"max-length": 1}'))
    ok(mqctl(f"set_{word}", "q", "^x", '{"max-length": 2}'))
    assert ok(mqctl(f"list_{many}")).rows == [
        ["vhost", "name", "pattern", "apply-to", "definition", "priority"],
        ["/", "p", "^limited$", "queues", '{"max-length": 1}', "3"],
        ["/", "q", "^x", "all", '{"max-length": 2}', "0"],
    ]
    rows = ok(mqctl("-q", "list_queues", "name", word, "effective_policy_definition")).rows
    assert ["limited", "p", '{"max-length": 1}'] in rows
    refused = mqctl(f"set_{word}", "r", "^x", '{"nosuch": 1}')
    assert refused.code == 65
    assert "are not recognised policy settings" in refused.err
    assert '[{<<"nosuch">>,1}]' in refused.err
    assert mqctl(f"set_{word}", "r", "^x", "{").code == 65
    ok(mqctl(f"clear_{word}", "p"))
    ok(mqctl(f"clear_{word}", "q"))
    assert mqctl(f"clear_{word}", "q") == (69, "", f"Error: no {title} 'q' in vhost '/'\n")
    assert ok(mqctl(f"list_{many}")).out == ""
    ok(mqctl("delete_queue", "limited"))


def test_definitions_are_exported_and_imported(mqctl: Mqctl, tmp_path: Path) -> None:
    ok(mqctl("add_vhost", "defined"))
    ok(mqctl("declare_queue", "-p", "defined", "q"))
    file = tmp_path / "definitions.json"
    ok(mqctl("export_definitions", str(file)))
    assert file.stat().st_mode & 0o777 == 0o600
    told = json.loads(file.read_text())
    assert json.loads(ok(mqctl("export_definitions")).out) == told
    ok(mqctl("delete_vhost", "defined"))
    ok(mqctl("import_definitions", str(file)))
    assert ["q", "0"] in ok(mqctl("list_queues", "-p", "defined")).rows
    own = tmp_path / "own.json"
    ok(mqctl("export_definitions", "-p", "defined", str(own)))
    told = json.loads(own.read_text())
    assert [each["name"] for each in told["queues"]] == ["q"]
    told["parameters"] = [{"component": "federation", "name": "s", "value": {}}]
    own.write_text(json.dumps(told))
    outcome = ok(mqctl("import_definitions", "-p", "defined", str(own)))
    assert (
        outcome.out
        == "left out: parameters 's' in vhost 'defined': component federation does not exist in mqd\n"
    )
    own.write_text("{")
    assert mqctl("import_definitions", str(own)).code == 65
    assert mqctl("import_definitions", str(tmp_path / "no")).code == 65
    ok(mqctl("delete_vhost", "defined"))


def test_shovels_are_set_listed_and_deleted(mqctl: Mqctl) -> None:
    ok(mqctl("add_vhost", "shovelled"))
    ok(mqctl("set_permissions", "-p", "shovelled", "guest", ".*", ".*", ".*"))
    ok(mqctl("declare_queue", "-p", "shovelled", "a"))
    uri = "amqp://guest:canary@127.0.0.1:1"
    ok(mqctl("shovel_queues", "-p", "shovelled", uri))
    value = {
        "src-uri": "amqp:///shovelled",
        "src-queue": "a",
        "dest-uri": "amqp:///shovelled",
        "dest-exchange": "x",
    }
    ok(mqctl("set_shovel", "-p", "shovelled", "s", json.dumps(value)))
    shown = ok(mqctl("list_shovels", "--formatter", "json")).out
    assert {row["name"] for row in json.loads(shown)} == {"a", "s"}
    assert ok(mqctl("shovel_status")).out.startswith("name\tvhost\ttype\tstate")
    assert "canary" not in shown + ok(mqctl("list_parameters", "-p", "shovelled")).out
    ok(mqctl("restart_shovel", "-p", "shovelled", "s"))
    assert mqctl("set_shovel", "-p", "shovelled", "s", '{"src-queue": 5}').code == 65
    ok(mqctl("delete_shovel", "-p", "shovelled", "s"))
    for command in ("delete_shovel", "restart_shovel"):
        outcome = mqctl(command, "-p", "shovelled", "s")
        assert (outcome.code, outcome.err) == (69, "Error: there is no shovel 's' in vhost 'shovelled'\n")
    ok(mqctl("delete_shovels", "-p", "shovelled"))
    assert json.loads(ok(mqctl("list_shovels", "--formatter", "json")).out) == []
    ok(mqctl("delete_vhost", "shovelled"))


def test_limits_and_parameters(mqctl: Mqctl) -> None:
    ok(mqctl("add_vhost", "limited"))
    ok(mqctl("set_vhost_limits", "-p", "limited", '{"max-queues": 1, "max-connections": 5}'))
    assert ok(mqctl("-q", "list_vhost_limits", "-p", "limited")).rows == [
        ["limited", '{"max-queues": 1, "max-connections": 5}']
    ]
    assert ["limited", '{"max-queues": 1, "max-connections": 5}'] in ok(
        mqctl("list_vhost_limits", "--global")
    ).rows
    ok(mqctl("declare_queue", "-p", "limited", "a"))
    refused = mqctl("declare_queue", "-p", "limited", "b")
    assert refused.code == 65 and "queue limit in vhost 'limited' (1) is reached" in refused.err
    assert "vhost-limits" in ok(mqctl("list_parameters", "-p", "limited")).out
    ok(mqctl("clear_vhost_limits", "-p", "limited"))
    ok(mqctl("declare_queue", "-p", "limited", "b"))
    assert mqctl("set_vhost_limits", "-p", "limited", '{"odd": 1}').code == 65
    ok(mqctl("add_user", "limited", "x"))
    ok(mqctl("set_user_limits", "limited", '{"max-channels": 3}'))
    assert ok(mqctl("-q", "list_user_limits")).rows == [["limited", '{"max-channels": 3}']]
    ok(mqctl("clear_user_limits", "limited", "all"))
    assert ok(mqctl("-q", "list_user_limits", "--user", "limited")).out == ""
    ok(mqctl("set_permissions", "-p", "limited", "limited", ".*", ".*", ".*"))
    ok(mqctl("set_topic_permissions", "-p", "limited", "limited", "amq.topic", "^a", "^b"))
    assert ok(mqctl("-q", "list_topic_permissions", "-p", "limited")).rows == [
        ["limited", "amq.topic", "^a", "^b"]
    ]
    assert ok(mqctl("-q", "list_user_topic_permissions", "limited")).rows == [
        ["limited", "amq.topic", "^a", "^b"]
    ]
    ok(mqctl("clear_topic_permissions", "-p", "limited", "limited", "amq.topic"))
    assert ok(mqctl("-q", "list_topic_permissions", "-p", "limited")).out == ""
    ok(mqctl("set_global_parameter", "odd", '{"a": [1]}'))
    rows = ok(mqctl("-q", "list_global_parameters")).rows
    assert [row[0] for row in rows] == ["internal_cluster_id", "odd"]
    assert rows[1] == ["odd", '{"a": [1]}']
    ok(mqctl("clear_global_parameter", "odd"))
    assert mqctl("clear_global_parameter", "odd").code == 69
    ok(mqctl("set_parameter", "-p", "limited", "vhost-limits", "limits", '{"max-queues": 7}'))
    ok(mqctl("clear_parameter", "-p", "limited", "vhost-limits", "limits"))
    ok(mqctl("delete_user", "limited"))
    ok(mqctl("delete_vhost", "limited"))


@pytest.mark.parametrize("way", ["ctl", "api"])
def test_definitions_of_rabbitmq(mqd: Addresses, mqctl: Mqctl, way: str) -> None:
    """Definitions of RabbitMQ 3.10.8, one file written by rabbitmqctl export_definitions, one by its
    management API; passwords are "secret".
    """
    lines = ok(mqctl("import_definitions", str(Path(__file__).with_name(f"rabbitmq-3.10.8.{way}.json")))).out
    left_out = [
        f"left out: policies '{name}' in vhost 'orders': {key} does not exist in mqd"
        for name, key in (("mirrored", "ha-mode"), ("mirrored", "ha-sync-mode"), ("only-mirrored", "ha-mode"))
    ]
    if way == "ctl":
        # rabbitmqctl leaves out internal exchanges, but not their bindings.
        left_out.append("left out: bindings 'events' in vhost 'orders': there is no exchange 'auto'")
    assert sorted(lines.splitlines()) == sorted(left_out)
    in_vhost = ("-p", "orders")
    for user in ("md5", "sha512"):
        for _ in range(2):
            ok(mqctl("authenticate_user", user, "secret"))
    ok(mqctl("authenticate_user", "ann", "ann-secret"))
    with channel(mqd, "orders", "md5", "secret"):
        pass
    assert ok(mqctl("-q", "list_user_limits", "--user", "md5")).rows == [["md5", '{"max-channels": 9}']]
    assert ok(mqctl("-q", "list_vhost_limits", *in_vhost)).rows == [["orders", '{"max-queues": 90}']]
    assert ok(mqctl("-q", "list_topic_permissions", *in_vhost)).rows == [
        ["ann", "events", "^a", "^{username}"]
    ]
    rows = ok(
        mqctl("-q", "list_queues", *in_vhost, "name", "type", "policy", "effective_policy_definition")
    ).rows
    assert sorted(rows) == [
        ["classic", "classic", "limits", '{"max-length": 500, "overflow": "reject-publish"}'],
        ["lazy", "classic", "mirrored", '{"max-length": 5}'],
        ["quorum", "quorum", "", '{"max-length": 500}'],
        ["stream", "stream", "", "{}"],
        ["transient", "classic", "", '{"max-length": 500}'],
    ]
    rows = ok(mqctl("-q", "list_bindings", *in_vhost, "source_name", "destination_name", "routing_key")).rows
    assert {tuple(row) for row in rows if row[0]} >= {
        ("events", "classic", "a.#"),
        ("events", "quorum", "é b"),
        ("hash", "lazy", "3"),
    }
    ok(mqctl("delete_vhost", "orders"))
    for user in ("ann", "md5", "sha512", "nobody"):
        ok(mqctl("delete_user", "--force", user))


def test_a_queue_is_explained(mqd: Addresses, mqctl: Mqctl) -> None:
    ok(mqctl("declare_queue", "why", "-a", "x-queue-type=quorum", "-a", "x-max-length=5"))
    ok(mqctl("set_policy", "short", "^why$", '{"expires": 600000}', "--apply-to", "queues"))
    told = ok(mqctl("explain", "queue", "why")).out
    assert "queue 'why' in virtual host '/', type quorum" in told
    assert "leader n1, members n1" in told
    rows = [line.split("\t") for line in told.splitlines()]
    assert ["max-length", "5", "argument"] in rows
    assert ["expires", "600000", "policy 'short'"] in rows
    assert ["overflow", "drop-head", "default"] in rows
    assert any(row[:2] == ["delete if-empty", "queue's log"] for row in rows)
    whole = json.loads(ok(mqctl("--formatter", "json", "explain", "queue", "why")).out)
    assert (whole["type"], whole["copy"], whole["settings_in_force"]) == ("quorum", None, True)
    assert mqctl("explain", "queue", "nothing").code != 0
    ok(mqctl("clear_policy", "short"))
    ok(mqctl("delete_queue", "why"))
