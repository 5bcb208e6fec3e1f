"""Shovels between running brokers: the messages that arrive, the status, and a faulty other side."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
import trustme
from pamqp import base, commands, exceptions, frame
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.testing.api import Api, ApiError
from amqp_server.testing.broker import Broker, Vhost, start
from conformance_tests.expect import eventually

CANARY = "canary-of-a-password"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start(shovel_reconnect_min_ms=20, shovel_connect_timeout_s=2.0, loopback_users="guest") as broker:
        broker.api("PUT", "/api/users/ann", {"password": CANARY, "tags": "policymaker"})
        yield broker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate for localhost, its key, and the certificate of its authority."""
    directory, authority = tmp_path_factory.mktemp("authority"), trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(directory / "cert"))
    issued.private_key_pem.write_to_path(str(directory / "key"))
    (directory / "key").chmod(0o600)
    authority.cert_pem.write_to_path(str(directory / "ca"))
    return directory


@pytest.fixture(scope="module")
def other(authority: Path) -> Iterator[Broker]:
    """Another broker, which listens with TLS, too."""
    files = {"tls_cert_file": str(authority / "cert"), "tls_key_file": str(authority / "key")}
    with start(amqps="127.0.0.1:0", **files) as other:
        yield other


@pytest.fixture
def vhost(broker: Broker) -> Iterator[Vhost]:
    with broker.vhost("shovels") as vhost:
        yield vhost


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("a", durable=True)
    channel.queue_declare("b", durable=True)
    yield channel
    if connection.is_open:
        connection.close()


def local(vhost: Vhost, user: str = "") -> str:
    return f"amqp://{user}/{quote(vhost.name, safe='')}"


def shovel(vhost: Vhost, name: str = "s", **changes: Any) -> None:
    value: dict[str, Any] = {
        "src-uri": local(vhost),
        "src-queue": "a",
        "dest-uri": local(vhost),
        "dest-queue": "b",
    }
    value |= {"reconnect-delay": 0.05} | {key.replace("_", "-"): each for key, each in changes.items()}
    value = {key: each for key, each in value.items() if each is not None}
    vhost.broker.api("PUT", f"/api/parameters/shovel/{quote(vhost.name, safe='')}/{name}", {"value": value})


def status(vhost: Vhost, name: str = "s") -> dict[str, Any]:
    told = vhost.broker.api("GET", f"/api/shovels/{quote(vhost.name, safe='')}/{name}")
    assert isinstance(told, dict)
    return told


def parameter(vhost: Vhost) -> dict[str, Any]:
    told = vhost.broker.api("GET", f"/api/parameters/shovel/{quote(vhost.name, safe='')}/s")["value"]
    assert isinstance(told, dict)
    return told


def connections(vhost: Vhost) -> set[str]:
    rows = vhost.broker.api("GET", f"/api/vhosts/{quote(vhost.name, safe='')}/connections")
    return {row["name"] for row in rows}


def publish(channel: BlockingChannel, wanted: list[bytes]) -> None:
    """Publish in one transaction, which is quick."""
    channel = channel.connection.channel()
    channel.tx_select()
    for body in wanted:
        channel.basic_publish("", "a", body, pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    channel.close()


def there(vhost: Vhost) -> list[str]:
    return [row["name"] for row in vhost.api("GET", "shovels")]


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Take all messages of the queue."""
    found: list[bytes] = []
    left = count(channel, queue)
    if left:
        for _, _, body in channel.consume(queue, auto_ack=True):
            found.append(body)
            if len(found) == left:
                break
        channel.cancel()
    return found


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_arrive_whole_and_once(vhost: Vhost, channel: BlockingChannel, mode: str) -> None:
    told = pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        priority=3,
        message_id="m",
        user_id="guest",
        headers={"h": [1, {"a": "b"}]},
    )
    sent = [b"%d" % number for number in range(120)] + [b"", bytes(300_000)]
    for body in sent:
        channel.basic_publish("", "a", body, told)
    shovel(vhost, ack_mode=mode, src_prefetch_count=50)
    eventually(lambda: count(channel, "b") == len(sent))
    _, properties, body = channel.basic_get("b", auto_ack=True)
    assert body == sent[0] and properties == told
    assert bodies(channel, "b") == sent[1:]
    eventually(lambda: count(channel, "a") == 0)
    found = status(vhost)
    assert found.pop("timestamp") and found == {
        "node": "n1",
        "name": "s",
        "vhost": vhost.name,
        "type": "dynamic",
        "state": "running",
        "blocked_status": "running",
        "src_uri": local(vhost),
        "dest_uri": local(vhost),
        "src_protocol": "amqp091",
        "dest_protocol": "amqp091",
        "src_queue": "a",
        "dest_queue": "b",
        "remaining": "unlimited",
        "remaining_unacked": "unlimited",
        "pending": 0,
        "forwarded": len(sent),
    }
    # Messages published from now on follow.
    channel.basic_publish("", "a", b"later", told)
    eventually(lambda: bodies(channel, "b") == [b"later"])
    assert channel.basic_get("a")[0] is None


def test_exchanges_at_both_ends(vhost: Vhost, channel: BlockingChannel) -> None:
    shovel(
        vhost,
        src_queue=None,
        src_exchange="amq.topic",
        src_exchange_key="k.#",
        dest_queue=None,
        dest_exchange="amq.fanout",
        dest_add_forward_headers=True,
    )
    channel.queue_bind("b", "amq.fanout")
    eventually(lambda: status(vhost)["state"] == "running")
    channel.basic_publish("amq.topic", "k.1", b"one")
    channel.basic_publish("amq.topic", "other", b"two")
    eventually(lambda: count(channel, "b") == 1)
    method, properties, _ = channel.basic_get("b", auto_ack=True)
    assert (method.exchange, method.routing_key) == ("amq.fanout", "k.1")
    (entry,) = properties.headers["x-shovelled"]
    assert entry["shovel-name"] == "s" and entry["src-exchange-key"] == "k.#" and "dest-queue" not in entry
    # The shovel's exclusive queue goes with it.
    vhost.broker.api("DELETE", f"/api/shovels/vhost/{quote(vhost.name, safe='')}/s")
    eventually(lambda: len(vhost.api("GET", "queues")) == 2)


@pytest.mark.parametrize(("after", "moved"), [("queue-length", 10), (7, 7), (0, 0)])
def test_a_shovel_ends_after_its_messages(
    vhost: Vhost, channel: BlockingChannel, after: object, moved: int
) -> None:
    for number in range(10):
        channel.basic_publish("", "a", b"%d" % number)
    shovel(vhost, src_delete_after=after, src_prefetch_count=3)
    eventually(lambda: there(vhost) == [])
    assert bodies(channel, "b") == [b"%d" % number for number in range(moved)]
    assert bodies(channel, "a") == [b"%d" % number for number in range(moved, 10)]


@pytest.mark.parametrize("target", ["b", "nowhere"])
def test_a_shovel_ends_when_its_time_is_over(vhost: Vhost, channel: BlockingChannel, target: str) -> None:
    """Whether it has ever run, or only failed."""
    publish(channel, [b"m"])
    shovel(vhost, dest_queue=target, dest_predeclared=True, src_delete_after_duration=1)
    eventually(lambda: there(vhost) == [])
    assert count(channel, "b" if target == "b" else "a") == 1


def test_a_new_definition_has_its_own_time(vhost: Vhost, channel: BlockingChannel) -> None:
    shovel(vhost, src_delete_after_duration=1)
    shovel(vhost, src_delete_after_duration=3_600)
    shovel(vhost, name="t", src_delete_after_duration=1)
    eventually(lambda: len(there(vhost)) == 1)
    assert status(vhost)["state"] in ("starting", "running")


def test_a_paused_queue_gets_its_messages_later(vhost: Vhost, channel: BlockingChannel) -> None:
    place = f"/api/queues/{quote(vhost.name, safe='')}/b"
    vhost.broker.api("PUT", f"{place}/pause", {"publishes": True})
    shovel(vhost)
    publish(channel, [b"%d" % number for number in range(5)])
    eventually(lambda: status(vhost)["state"] == "running")
    assert count(channel, "b") == 0
    vhost.broker.api("PUT", f"{place}/resume")
    eventually(lambda: count(channel, "b") == 5)
    assert count(channel, "a") == 0


def test_a_name_can_be_used_again(vhost: Vhost, channel: BlockingChannel) -> None:
    for number in range(5):
        channel.basic_publish("", "a", b"%d" % number)
        shovel(vhost, src_delete_after="queue-length")
        eventually(lambda: there(vhost) == [])
    assert bodies(channel, "b") == [b"%d" % number for number in range(5)]


def test_the_destination_has_an_alarm(vhost: Vhost, channel: BlockingChannel, other: Broker) -> None:
    other.api("PUT", "/api/nodes/n1/memory-limit", {"limit": "1MiB"})
    # The alarm blocks clients that publish, so it blocks the shovel at its first message.
    shovel(vhost, dest_uri=other.url(), src_prefetch_count=10)
    eventually(lambda: status(vhost)["state"] in ("running", "blocked"))
    publish(channel, [b"%d" % number for number in range(100)])
    eventually(lambda: status(vhost)["state"] == "blocked")
    assert status(vhost)["pending"] <= 10 and status(vhost)["forwarded"] == 0
    other.api("PUT", "/api/nodes/n1/memory-limit", {"limit": "64GiB"})
    eventually(lambda: status(vhost)["forwarded"] == 100)


def test_queues_are_made_and_what_has_no_queue_waits(vhost: Vhost, channel: BlockingChannel) -> None:
    shovel(vhost, src_queue="new", dest_queue="other", dest_queue_args={"x-queue-type": "quorum"})
    eventually(lambda: status(vhost)["state"] == "running")
    assert vhost.api("GET", "queues/other")["type"] == "quorum" and vhost.api("GET", "queues/new")["durable"]
    channel.queue_delete("other")
    channel.basic_publish("", "new", b"not lost")
    eventually(lambda: status(vhost)["forwarded"] == 1)
    assert bodies(channel, "other") == [b"not lost"]


def test_a_destination_that_refuses(vhost: Vhost, channel: BlockingChannel) -> None:
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for number in range(5):
        channel.basic_publish("", "a", b"%d" % number)
    shovel(vhost, dest_queue="full")
    eventually(lambda: count(channel, "full") == 2)
    found: list[bytes] = []

    def all_came() -> bool:
        found.extend(bodies(channel, "full"))
        return len(found) == 5

    eventually(all_came)
    assert sorted(found) == [b"%d" % number for number in range(5)]


def test_restart_and_change_and_delete(vhost: Vhost, channel: BlockingChannel) -> None:
    shovel(vhost)
    eventually(lambda: status(vhost)["state"] == "running")
    path = f"/api/shovels/vhost/{quote(vhost.name, safe='')}"
    names = connections(vhost)
    vhost.broker.api("DELETE", f"{path}/s/restart")
    eventually(lambda: len(found := connections(vhost)) == 3 and len(found & names) == 1)
    shovel(vhost, dest_queue="c")
    eventually(lambda: status(vhost).get("dest_queue") == "c")
    channel.basic_publish("", "a", b"x")
    eventually(lambda: count(channel, "c") == 1)
    (found,) = vhost.broker.api("GET", f"{path}/s")
    assert found["forwarded"] == 1
    vhost.broker.api("DELETE", f"{path}/s")
    assert there(vhost) == []
    eventually(lambda: len(connections(vhost)) == 1)
    for method, more in (("DELETE", ""), ("DELETE", "/restart"), ("GET", "")):
        with pytest.raises(ApiError, match="404"):
            vhost.broker.api(method, f"{path}/s{more}")


def test_the_next_uri_is_taken_and_a_broker_that_comes_back(
    vhost: Vhost, channel: BlockingChannel, other: Broker
) -> None:
    at = other.url()
    shovel(vhost, dest_uri=["amqp://guest:guest@127.0.0.1:1", at], dest_queue="there", src_prefetch_count=100)
    eventually(lambda: status(vhost)["state"] == "running")
    wanted = [b"%d" % number for number in range(1_600)]
    publish(channel, wanted[:1_000])
    eventually(lambda: status(vhost)["forwarded"] > 100)
    other.kill()
    eventually(lambda: status(vhost)["state"] in ("terminated", "starting"))
    publish(channel, wanted[1_000:])
    other.start()
    eventually(lambda: count(channel, "a") == 0, 30)
    eventually(lambda: status(vhost)["pending"] == 0)
    connection = pika.BlockingConnection(pika.URLParameters(at))
    # Each message is there once. Messages that were confirmed when the shovel was killed may be there twice.
    assert set(bodies(connection.channel(), "there")) == set(wanted)
    connection.close()


def test_a_node_that_is_killed_goes_on(broker: Broker, vhost: Vhost, other: Broker) -> None:
    """Nothing is lost if the shovel's node dies: delivery is at least once."""
    source = pika.BlockingConnection(pika.URLParameters(other.url())).channel()
    source.queue_declare("a", durable=True)
    wanted = [b"%d" % number for number in range(1_000)]
    publish(source, wanted)
    shovel(vhost, src_uri=other.url(), src_prefetch_count=20)
    eventually(lambda: status(vhost)["forwarded"] > 50)
    broker.kill()
    broker.start()
    eventually(lambda: count(source, "a") == 0, 30)
    eventually(lambda: status(vhost)["pending"] == 0)
    connection = pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))
    assert set(bodies(connection.channel(), "b")) == set(wanted)
    connection.close()


@contextmanager
def listening(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A broker of another kind: it calls `talk` for each connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            with sock, suppress(OSError):
                talk(sock)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"amqp://bob:{CANARY}@127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


def rubbish(sock: socket.socket) -> None:
    sock.sendall(b"\x00" * 100_000)
    sock.recv(1)


def silence(sock: socket.socket) -> None:
    while sock.recv(1_000):
        pass


def an_end(sock: socket.socket) -> None:
    sock.recv(8)


def an_endless_handshake(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"\x08\x00\x00\x00\x00\x00\x00\xce" * 1_000)


def a_huge_frame(sock: socket.socket) -> None:
    sock.sendall(b"\x01\x00\x00\xff\xff\xff\xff")
    sock.recv(8)
    while sock.recv(1_000):
        pass


@pytest.mark.parametrize(
    ("talk", "why"),
    [
        (rubbish, "not an AMQP frame"),
        (silence, "no answer in time"),
        (an_end, "the connection to the .* is lost"),
        (an_endless_handshake, "no answer in time"),
        (a_huge_frame, "a frame of 4294967303 bytes"),
    ],
)
def test_a_hostile_broker_hurts_nobody(
    vhost: Vhost, channel: BlockingChannel, talk: Callable[[socket.socket], None], why: str
) -> None:
    with listening(talk) as at:
        shovel(vhost, src_uri=at + "?connection_timeout=300")
        seen: list[str] = []

        def told() -> bool:
            seen.append(status(vhost).get("reason", ""))
            # Meanwhile the node serves other clients.
            channel.basic_publish("", "b", b"x")
            return re.search(why, seen[-1]) is not None

        eventually(told)
        vhost.broker.api("DELETE", f"/api/shovels/vhost/{quote(vhost.name, safe='')}/s")
    assert not any(CANARY in text for text in seen)


def test_passwords_are_nowhere(broker: Broker, vhost: Vhost, channel: BlockingChannel) -> None:
    at = f"amqp://bob:{CANARY}@127.0.0.1:{broker.port}"
    shovel(vhost, src_uri=at, dest_uri=["amqp://", at])
    eventually(lambda: status(vhost)["state"] == "terminated")
    shown = [
        broker.api("GET", path) for path in ("/api/shovels", "/api/parameters", "/api/parameters/shovel")
    ]
    shown += [vhost.api("GET", "shovels"), parameter(vhost), broker.log()]
    with pytest.raises(ApiError) as raised:
        shovel(vhost, src_uri=at + "/a/b", nope=1)
    assert CANARY not in repr(shown) + str(raised.value)
    # A file for imports must have the passwords; only administrators get it.
    (kept,) = [
        each for each in broker.api("GET", "/api/definitions")["parameters"] if each["vhost"] == vhost.name
    ]
    assert kept["value"]["src-uri"] == at
    broker.api("POST", "/api/definitions", {"parameters": [kept]})
    assert status(vhost)["name"] == "s"


class TestRights:
    @pytest.fixture
    def ann(self, broker: Broker, vhost: Vhost) -> Iterator[Api]:
        path = f"/api/permissions/{quote(vhost.name, safe='')}/ann"
        broker.api("PUT", path, {"configure": "", "write": ".*", "read": "^a$"})
        api = Api(broker.host, broker.http_port, "ann", CANARY)
        yield api
        api.close()

    def put(self, api: Api, vhost: Vhost, **changes: Any) -> None:
        value = {"src-uri": local(vhost), "src-queue": "a", "dest-uri": local(vhost), "dest-queue": "b"}
        value |= {key.replace("_", "-"): each for key, each in changes.items()}
        api.ask("PUT", f"/api/parameters/shovel/{quote(vhost.name, safe='')}/s", {"value": value})

    def test_a_policymakers_shovel_has_no_more_rights(
        self, vhost: Vhost, channel: BlockingChannel, ann: Api
    ) -> None:
        channel.basic_publish("", "a", b"mine")
        self.put(ann, vhost)
        eventually(lambda: bodies(channel, "b") == [b"mine"])
        assert status(vhost)["src_uri"] == local(vhost)
        value = parameter(vhost)
        assert value["src-uri"] == local(vhost, "ann@")
        # The user ann may not read queue b.
        self.put(ann, vhost, src_queue="b", dest_queue="a")
        eventually(lambda: "ACCESS_REFUSED" in status(vhost).get("reason", ""))
        assert "access to queue 'b'" in status(vhost)["reason"]

    def test_nobody_elses_name_or_vhost(self, vhost: Vhost, ann: Api) -> None:
        for changes, why in (
            ({"src_uri": local(vhost, "guest@")}, "may not set a shovel that acts as user"),
            ({"dest_uri": "amqp://"}, 'user "ann" may not connect to vhost "/"'),
            ({"dest_uri": "amqp:///nowhere"}, 'vhost "nowhere" of '),
        ):
            with pytest.raises(ApiError, match="400") as raised:
                self.put(ann, vhost, **changes)
            assert why in str(raised.value).replace("\\", "")

    def test_a_password_is_checked(self, vhost: Vhost, channel: BlockingChannel, ann: Api) -> None:
        self.put(ann, vhost, src_uri=local(vhost, "guest:wrong@"))
        eventually(lambda: "Login was refused" in status(vhost).get("reason", ""))
        self.put(ann, vhost, src_uri=local(vhost, "guest:guest@"))
        eventually(lambda: status(vhost)["state"] == "running")

    def test_who_may_not(self, broker: Broker, vhost: Vhost, ann: Api) -> None:
        shovel(vhost)
        quoted = quote(vhost.name, safe="")
        broker.api("PUT", "/api/users/eve", {"password": "p", "tags": "monitoring"})
        broker.api("PUT", f"/api/permissions/{quoted}/eve", {"configure": ".*", "write": ".*", "read": ".*"})
        eve = Api(broker.host, broker.http_port, "eve", "p")
        with pytest.raises(ApiError, match="401"):
            self.put(eve, vhost)
        for path in (f"/api/shovels/vhost/{quoted}/s", f"/api/shovels/vhost/{quoted}/s/restart"):
            with pytest.raises(ApiError, match="401"):
                eve.ask("DELETE", path)
        assert [row["name"] for row in eve.ask("GET", f"/api/shovels/{quoted}")] == ["s"]
        with pytest.raises(ApiError, match="401"):
            ann.ask("GET", "/api/shovels")
        eve.close()


def test_tls_and_hosts(authority: Path, other: Broker) -> None:
    listeners = other.api("GET", "/api/overview")["listeners"]
    port = next(row["port"] for row in listeners if row["protocol"] == "amqp/ssl")
    limits = {"shovel_tls_ca_file": str(authority / "ca"), "shovel_hosts": "localhost,10.0.0.0/8"}
    with start(shovel_reconnect_min_ms=20, **limits) as own, own.vhost("tls") as vhost:
        at = f"amqps://guest:guest@localhost:{port}"
        shovel(vhost, src_queue="a", dest_uri=at)
        eventually(lambda: status(vhost)["state"] == "running")
        assert status(vhost)["dest_uri"] == f"amqps://localhost:{port}"
        for more, why in (
            ("?server_name_indication=other", "certificate can't be trusted"),
            (f"?cacertfile={authority / 'ca'}", "must be in the directory of shovel_tls_directory"),
        ):
            shovel(vhost, dest_uri=at + more)
            eventually(lambda: why in status(vhost).get("reason", ""))  # noqa: B023
        shovel(vhost, dest_uri=at.replace("amqps", "amqp"))
        eventually(lambda: status(vhost)["state"] == "terminated")
        with pytest.raises(ApiError, match="may not connect to 127.0.0.1"):
            shovel(vhost, dest_uri=f"amqp://127.0.0.1:{port}")


def taking_nothing(kept: ExitStack, sock: socket.socket) -> None:
    """Let a shovel begin, and then read nothing more; its connection stays open."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    answers: dict[type[base.Frame], tuple[int, base.Frame]] = {
        commands.Connection.StartOk: (0, commands.Connection.Tune(2_047, 131_072, 0)),
        commands.Connection.Open: (0, commands.Connection.OpenOk()),
        commands.Channel.Open: (1, commands.Channel.OpenOk()),
        commands.Queue.Declare: (1, commands.Queue.DeclareOk("x", 0, 0)),
        commands.Confirm.Select: (1, commands.Confirm.SelectOk()),
    }
    start_ = commands.Connection.Start(0, 9, {}, "PLAIN", "en_US")
    # The protocol header.
    sock.recv(8, socket.MSG_WAITALL)
    sock.sendall(frame.marshal(start_, 0))
    data = b""
    heard: object = None
    while not isinstance(heard, commands.Confirm.Select):
        more = sock.recv(4_096)
        if not more:
            return
        data += more
        while data:
            try:
                size, _, method = frame.unmarshal(data)
            except exceptions.UnmarshalingException:
                break
            data, heard = data[size:], method
            if isinstance(method, base.Frame) and type(method) in answers:
                channel, answer = answers[type(method)]
                sock.sendall(frame.marshal(answer, channel))
    kept.enter_context(sock.dup())


def test_shovels_to_a_server_that_takes_nothing_share_their_memory() -> None:
    """They end, and give their messages back; another shovel moves its messages meanwhile."""
    mib = 1 << 20
    limits = {"shovels_bytes_max": 4 * mib, "shovel_bytes_max": 4 * mib, "unfinished_timeout_s": 1.0}
    queues = [f"q{number}" for number in range(12)]
    with (
        ExitStack() as kept,
        listening(partial(taking_nothing, kept)) as uri,
        start(shovel_reconnect_min_ms=100, **limits) as broker,
        broker.vhost("stuck") as vhost,
        pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection,
    ):
        channel = connection.channel()
        channel.exchange_declare("all", "fanout")
        for name in ("a", "b", *queues):
            channel.queue_declare(name, durable=True)
        for name in queues:
            channel.queue_bind(name, "all")
        channel.confirm_delivery()
        for _ in range(8):
            channel.basic_publish("all", "", b"x" * mib)
        for name in queues:
            shovel(vhost, name, src_queue=name, dest_uri=uri, dest_queue="x", reconnect_delay=1)
        eventually(lambda: "shovels_bytes_max" in broker.log())
        wanted = [b"%d" % number for number in range(50)]
        publish(channel, wanted)
        shovel(vhost, "healthy")
        eventually(lambda: count(channel, "b") == 50)
        assert bodies(channel, "b") == wanted
        for name in queues:
            broker.api("DELETE", f"/api/parameters/shovel/{quote(vhost.name, safe='')}/{name}")
        for name in queues:
            eventually(lambda name=name: count(channel, name) == 8)  # type: ignore[misc]
