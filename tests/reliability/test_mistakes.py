"""The commonest mistakes of people who start a node, operate it or connect to it, each with the text that
they get: it names what is wrong, and what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pika
import pika.exceptions
import pytest

from amqp_server.startup.options import command_line
from amqp_server.testing import Broker, start
from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import free_ports
from tests.reliability.node import Node, run_once, wait_until

#: What people type as the command line, or have in the environment (NAME=VALUE first); {file} is a TOML
#: file with the second text; and a part of the answer.
TYPED: list[tuple[str, str, str]] = [
    ("--ampq 127.0.0.1:5673", "", "no option '--ampq': did you mean '--amqp'?"),
    ("--port 5673", "", "no option '--port': in mqd it is '--amqp'"),
    ("--vm-memory-high-watermark 0.5", "", "in mqd it is '--memory-limit'"),
    ("--amqp 5673", "", "'5673' is not allowed; it must be host:port such as 127.0.0.1:5672"),
    ("--amqp localhost", "", "it must be host:port such as 127.0.0.1:5672"),
    ("--amqp 127.0.0.1:99999", "", "it must be host:port such as 127.0.0.1:5672"),
    ("--amqp ::1:5672", "", "it must be host:port such as 127.0.0.1:5672"),
    ("--metrics 9090", "", "it must be host:port such as 127.0.0.1:5672, or empty"),
    ("--memory-limit 60%", "", "an amount of bytes such as 2GiB, or a share of the memory such as 0.6"),
    ("--disk-free-min-bytes 1.5GB", "", "as a whole number with or without a unit, such as 1536MiB"),
    ("--heartbeat-s 60s", "", "'60s' is not allowed; it must be 0 to 65535 s"),
    ("--log-level verbose", "", "it must be debug, info, warning or error"),
    ("--log-level warn", "", "did you mean 'warning'?"),
    ("--http-page yes", "", "a switch takes no value"),
    ("start", "", "'start' is no option: mqd is started by its name alone"),
    ("--node 'my node'", "", "it must be 1 to 64 letters, digits, '-', '_' or '.'"),
    ("--data-dir ''", "", "it must be a text that is not empty"),
    ("--default-vhost", "", "requires an argument"),
    ("--config /no/such/mqd.toml", "", "/no/such/mqd.toml: No such file or directory"),
    ("--peers n1", "", "it must be a list of name=host:port, with each name once"),
    ("--peers n2=10.0.0.2:25672", "", "it must be a list that contains this node, n1"),
    ("--peers n1=10.0.0.1:25672", "", "it must be given if there are peers"),
    ("--cluster-secret geheim", "", "did you mean '--cluster-secret-file'?"),
    ("--amqps 127.0.0.1:5671", "", "it must be empty unless tls_cert_file and tls_key_file are given"),
    ("--auth-backends ldap", "", "it must be internal, http, or both, each once"),
    ("--reset-administrator ann", "", "it must be empty unless default_password_file is given"),
    ("--config {file}", '[listeners]\namqp = "127.0.0.1:1"\n', "all options stand at the top of the file"),
    ("--config {file}", "listeners.tcp.default = 5672\n", "in mqd 'listeners' is 'amqp'"),
    ("--config {file}", "vm_memory_high_watermark = 0.5\n", "in mqd it is 'memory_limit'"),
    ("--config {file}", 'memroy_limit = "1GB"\n', "did you mean 'memory_limit'?"),
    ("--config {file}", "loopback_users = none\n", "Invalid value (at line 1, column 18)"),
    ("--config {file}", 'heartbeat_s = "sixty"\n', "--heartbeat-s (in {file}): 'sixty' is not allowed"),
    ("--config {file}", 'http_page = "yes"\n', "http_page must be true or false"),
    ("--config {file}", "amqp = 5672\n", "--amqp (in {file}): 5672 is not allowed"),
    ("MQD_HEARTBEAT_S=soon", "", "--heartbeat-s (MQD_HEARTBEAT_S in the environment): 'soon' is not allowed"),
    ("MQD_HTTP_PAGE=maybe", "", "a switch must be true or false"),
    ("MQD_AMPQ=127.0.0.1:5673", "", "is not an option and is ignored; the nearest option is MQD_AMQP"),
    ("RABBITMQ_DEFAULT_USER=ann", "", "is RabbitMQ's and is ignored; mqd reads MQD_DEFAULT_USER"),
]


@pytest.mark.parametrize(("typed", "content", "said"), TYPED, ids=[row[0] + row[1] for row in TYPED])
def test_mistyped(
    typed: str,
    content: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text(content)
    words = [word.replace("{file}", str(file)) for word in shlex.split(typed)]
    if re.match("[A-Z_]+=", typed):
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        command_line(lambda config, reread: 0)(words)
    err = capsys.readouterr().err
    assert said.replace("{file}", str(file)) in err
    assert err.count("\n") == 1 and err.startswith("mqd: ")


class Place(NamedTuple):
    """Where mistakes are made: a directory of files, and a port that is taken."""

    path: Path
    port: int

    def file(self, name: str, content: str = "", mode: int = 0o600) -> Path:
        path = self.path / name
        path.write_text(content)
        path.chmod(mode)
        return path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield Place(tmp_path, taken.getsockname()[1])


def certificate(place: Place) -> list[str]:
    cert, key = place.path / "cert.pem", place.path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ]
        + ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return ["--tls-cert-file", str(cert), "--tls-key-file", str(key)]


def full_directory(place: Place) -> list[str]:
    (place.path / "photos").mkdir()
    (place.path / "photos" / "cat.jpg").touch()
    return ["--data-dir", str(place.path / "photos")]


def foreign_store(place: Place) -> list[str]:
    (place.path / "old" / "main").mkdir(parents=True)
    (place.path / "old" / "main" / "data.mdb").write_text("garbage")
    return ["--data-dir", str(place.path / "old")]


TLS = ("--amqps", "127.0.0.1:0")
Options = Callable[[Place], list[str]]
#: Mistakes that end the start, by what somebody did.
ENDS: dict[str, tuple[Options, str]] = {
    "port taken": (
        lambda at: ["--amqp", f"127.0.0.1:{at.port}"],
        "Is another broker running there? Choose another port with --amqp, such as 127.0.0.1:",
    ),
    "port of the page taken": (
        lambda at: ["--http", f"127.0.0.1:{at.port}"],
        "Is another broker running there? Choose another port with --http",
    ),
    "name that does not resolve": (
        lambda at: ["--amqp", "no.such.host.invalid:5672"],
        "The name 'no.such.host.invalid' does not resolve: give --amqp an address of this machine",
    ),
    "address of another machine": (
        lambda at: ["--amqp", "192.0.2.1:5672"],
        "This machine has no such address: 0.0.0.0:5672 listens on all that it has (--amqp)",
    ),
    "file as data directory": (
        lambda at: ["--data-dir", str(at.file("data.db"))],
        "data.db is a file, not a directory",
    ),
    "something else's data": (foreign_store, "is damaged: it was cut off"),
    "certificate that is not there": (
        lambda at: [*TLS, "--tls-cert-file", "/no/cert.pem", "--tls-key-file", str(at.file("key.pem"))],
        "--tls-cert-file /no/cert.pem: No such file or directory",
    ),
    "certificate and key exchanged": (
        lambda at: [*TLS, *_exchanged(certificate(at))],
        "holds no certificate in PEM format",
    ),
    "key that others may read": (
        lambda at: [*TLS, *_open_key(certificate(at))],
        "it holds a secret; chmod o= ",
    ),
    "password file that others may read": (
        lambda at: ["--default-password-file", str(at.file("password", "x", 0o644))],
        "it holds a secret; chmod o= ",
    ),
    "definitions that are not there": (
        lambda at: ["--load-definitions", "/no/definitions.json"],
        "load_definitions: /no/definitions.json: No such file or directory",
    ),
    "definitions cut off": (
        lambda at: ["--load-definitions", str(at.file("d.json", '{"users": [],\n "queues": ['))],
        "failed_to_parse_json: the text ends too early",
    ),
    "definitions with a comma too many": (
        lambda at: ["--load-definitions", str(at.file("d.json", '{"users": [],\n "queues": [],}'))],
        "failed_to_parse_json: line 2, column 15",
    ),
    "short secret": (
        lambda at: [
            "--peers",
            f"n1=127.0.0.1:{free_ports(1)[0]}",
            "--cluster-secret-file",
            str(at.file("s", "short")),
        ],
        "it must have at least 16",
    ),
}


def _exchanged(options: list[str]) -> list[str]:
    cert, key = options[1], options[3]
    os.chmod(cert, 0o600)
    return ["--tls-cert-file", key, "--tls-key-file", cert]


def _open_key(options: list[str]) -> list[str]:
    os.chmod(options[3], 0o644)
    return options


@pytest.mark.parametrize("what", ENDS)
def test_a_start_that_ends(what: str, place: Place) -> None:
    options, said = ENDS[what]
    usual = ["--data-dir", str(place.path / "data"), "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    code, out, err = run_once([*usual, *options(place)])
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("mqd: ") and said in last


def test_a_port_without_permission(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from amqp_server.connection.sockets.listener import ListenError, bind

    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ListenError, match=r"Ports below 1024 need a permission .* a higher one with --amqp"):
        bind("amqp", "127.0.0.1:567")


def test_a_port_that_is_taken_is_told_before_the_data_is_read(place: Place) -> None:
    with Node(place.path) as node:
        node.mqctl("declare_queue", "kept")
    code, _, err = run_once(["--data-dir", str(node.data), "--amqp", f"127.0.0.1:{place.port}", "--http", ""])
    assert code == 1 and "Is another broker running there?" in err
    assert "recovered" not in err


#: Mistakes that a node starts with, and the warning in its log.
WARNS: dict[str, tuple[Options, str]] = {
    "TLS files without a TLS listener": (
        certificate,
        "tls_cert_file and tls_key_file given, but no amqps: there is no TLS listener. Add --amqps",
    ),
    "directory of something else": (
        full_directory,
        "is new to mqd, but not empty: it has 'cat.jpg'. Is it the right one (--data-dir)?",
    ),
    "tiny memory limit": (
        lambda at: ["--memory-limit", "1000000"],
        "memory_limit is 1000000 bytes in force, and a node without clients takes about 32 MiB",
    ),
    "memory limit above the machine": (
        lambda at: ["--memory-limit", "900000GiB"],
        "the system may end the node before the alarm is raised",
    ),
    "disk limit above the disk": (
        lambda at: ["--disk-free-min-bytes", "1000000GiB"],
        "publishers will always be blocked",
    ),
}


@pytest.mark.parametrize("what", WARNS)
def test_a_start_with_a_warning(what: str, place: Place) -> None:
    options, said = WARNS[what]
    with Node(place.path, *options(place)) as node:
        wait_until(what, lambda: said in node.log())
        line = next(line for line in node.log().splitlines() if said in line)
        assert " WARNING " in line


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start() as started:
        yield started


#: What people type behind `mqctl`, the exit code, and a part of the answer.
MQCTL = [
    ("list_queue", 64, "did you mean 'list_queues'?"),
    ("list_queues nam", 64, "did you mean 'name'?"),
    ("list_queues -p nosuch", 69, "Virtual host 'nosuch' does not exist"),
    ("delete_queue nosuch", 69, "no queue 'nosuch' in vhost '/'"),
    ("--password wrong list_users", 77, "Login failed for user 'guest' at "),
    ("--url 127.0.0.1:15672 list_users", 64, "it must be http://host:port or https://"),
    ("--url http://127.0.0.1:1 list_users", 69, "no answer from http://127.0.0.1:1"),
    ("set_permissions guest .* .*", 64, "Missing argument 'READ'"),
    ("set_permissions nobody .* .* .*", 67, 'User "nobody" does not exist'),
    ("set_policy limits .* max-length=5", 65, 'the definition is not JSON, such as {"max-length": 5}'),
    ("declare_queue q -a x-queue-type=quorom", 65, "unsupported queue type 'quorom'"),
    ("delete_user guest", 65, "is the last administrator"),
    ("set_vm_memory_high_watermark 70", 64, "LIMIT must be a share above 0 and up to 1"),
]


@pytest.mark.parametrize(("typed", "code", "said"), MQCTL, ids=[row[0] for row in MQCTL])
def test_mistyped_commands(broker: Broker, typed: str, code: int, said: str) -> None:
    words = shlex.split(typed)
    if "--url" not in words:
        words = ["--url", broker.http_url, *words]
    from tests.reliability.node import command

    done = subprocess.run([command("mqctl"), *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr


def _queue(
    arguments: dict[str, object],
) -> Callable[[pika.adapters.blocking_connection.BlockingChannel], object]:
    return lambda channel: channel.queue_declare("mistake", durable=True, arguments=arguments)


#: What a client does, and the text with which its channel is closed.
CLIENTS: dict[str, tuple[Callable[[pika.adapters.blocking_connection.BlockingChannel], object], str]] = {
    "publish to an exchange that is not there": (
        lambda channel: (channel.confirm_delivery(), channel.basic_publish("nosuch", "", b"x")),
        "NOT_FOUND - no exchange 'nosuch' in vhost '/'",
    ),
    "consume from a queue that is not there": (
        lambda channel: channel.basic_consume("nosuch", print),
        "NOT_FOUND - no queue 'nosuch' in vhost '/'",
    ),
    "declare a queue otherwise": (
        lambda channel: (channel.queue_declare("twice"), channel.queue_declare("twice", durable=True)),
        "inequivalent arg 'durable' for queue 'twice' in vhost '/'",
    ),
    "misspelt type of queue": (_queue({"x-queue-type": "quorom"}), "unsupported queue type 'quorom'"),
    "length limit as a text": (_queue({"x-max-length": "5"}), "invalid arg 'x-max-length'"),
    "reserved name": (
        lambda channel: channel.queue_declare("amq.mine"),
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "delivery acked twice": (
        lambda channel: (channel.basic_ack(7), channel.queue_declare("later")),
        "PRECONDITION_FAILED - unknown delivery tag 7",
    ),
}


@pytest.mark.parametrize("what", CLIENTS)
def test_mistakes_of_clients(broker: Broker, what: str) -> None:
    act, said = CLIENTS[what]
    connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
    try:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            act(connection.channel())
        assert said in str(closed.value.reply_text)
    finally:
        connection.close()


def test_there_are_sixty() -> None:
    assert sum(map(len, (TYPED, ENDS, WARNS, MQCTL, CLIENTS))) >= 60
