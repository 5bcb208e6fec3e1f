"""An open connection: its end, heartbeats, alarms, and methods that do not belong on channel 0."""

import socket
import struct
import time
from collections.abc import Iterator
from uuid import uuid4

import pamqp.base
import pytest
from pamqp import commands

from conformance_tests.broker import Broker
from conformance_tests.conftest import Alarm, Connect, Ctl, Name, Raw
from conformance_tests.expect import eventually
from conformance_tests.patience import wait_s
from conformance_tests.wire import (
    BODY,
    HEADER,
    HEARTBEAT,
    ClosedByPeer,
    RawClient,
    frame_bytes,
    header_payload,
)

BEAT = frame_bytes(HEARTBEAT, 0, b"")
RUNNING = r"^CHANNEL_ERROR - unexpected method in connection state running$"


# -- the end


def test_close_is_answered(raw: Raw) -> None:
    client = raw()
    client.call(commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk, 0)
    client.expect_nothing_more()


def test_the_client_closes_the_socket(raw: Raw) -> None:
    """After close-ok the broker continues to read and sends nothing: a client may still be writing, or slow
    to close.
    """
    client = raw()
    client.call(commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk, 0)
    for _ in range(5):
        client.send(BEAT * 1000)
        client.send_method(commands.Queue.Declare(exclusive=True))
        client.expect_silence()
    client.socket.shutdown(socket.SHUT_WR)
    client.expect_eof()


def test_the_broker_does_not_wait_for_the_client_for_ever(raw: Raw) -> None:
    """The broker waits for a heartbeat interval at most: for one second if one second was agreed."""
    client = raw(heartbeat=1)
    client.call(commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk, 0)
    began = time.monotonic()
    client.expect_eof()
    assert time.monotonic() - began > 0.9


def test_what_a_connection_held_is_free_at_close_ok(raw: Raw, name: Name) -> None:
    """Whether the client closes its socket or not."""
    other = raw()
    # Often enough to meet a broker that is only nearly always in time.
    for _ in range(20):
        client = raw()
        queue = client.declare(name("q"))
        client.call(commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk, 0)
        other.declare(queue)


def test_close_works_without_any_channel(raw: Raw) -> None:
    client = raw(channel=None)
    client.call(commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk, 0)
    client.expect_nothing_more()


def test_frames_after_close_are_ignored(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Connection.Close(200, "bye", 0, 0), 0)
    client.send_method(commands.Queue.Declare(exclusive=True))
    client.read(commands.Connection.CloseOk, 0)
    client.expect_nothing_more()


def test_frames_after_the_brokers_close_are_ignored_until_close_ok(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Channel.Open())
    client.send_method(commands.Queue.Declare(exclusive=True))
    client.expect_connection_close(504, r"^CHANNEL_ERROR - second 'channel\.open' seen$", answer=False)
    client.send_method(commands.Queue.Declare(exclusive=True))
    client.send_method(commands.Channel.Open(), 2)
    client.expect_silence()
    client.send_method(commands.Connection.CloseOk(), 0)
    client.expect_eof()


def test_close_crossing_the_brokers_close_is_answered(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Channel.Open())
    client.expect_connection_close(504, "second", answer=False)
    client.send_method(commands.Connection.Close(200, "bye", 0, 0), 0)
    client.read(commands.Connection.CloseOk, 0)
    client.expect_nothing_more()


def test_vanished_client_frees_its_exclusive_queue_and_its_messages(
    raw: Raw, name: object, ch: object
) -> None:
    dying, other = raw(), raw()
    queue = f"kept-{uuid4().hex}"
    other.call(
        commands.Queue.Declare(queue=queue, auto_delete=False, exclusive=False), commands.Queue.DeclareOk
    )
    try:
        exclusive = dying.declare()
        dying.publish(b"held", routing_key=queue)
        dying.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
        assert dying.read_content().body == b"held"
        other.call(commands.Basic.Consume(queue=queue, consumer_tag="other"), commands.Basic.ConsumeOk)
        dying.abort()
        back = other.read_content()
        assert (back.body, back.redelivered) == (b"held", True)

        def gone() -> bool:
            asking = raw()
            asking.send_method(commands.Queue.Declare(queue=exclusive, passive=True))
            frame = asking.read_frame()
            return isinstance(frame.method, commands.Channel.Close) and frame.method.reply_code == 404

        eventually(gone)
    finally:
        other.call(commands.Basic.Cancel("other"), commands.Basic.CancelOk)
        other.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)


def test_vanished_client_in_the_middle_of_a_message(raw: Raw) -> None:
    """Half a message is no message."""
    dying, other = raw(), raw()
    queue = f"half-{uuid4().hex}"
    other.call(commands.Queue.Declare(queue=queue, auto_delete=True), commands.Queue.DeclareOk)
    whole = dying.publish_bytes(b"x" * 1000, routing_key=queue)
    dying.send(whole[:-500])
    dying.abort()
    other.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    other.expect_silence()
    other.publish(b"whole", routing_key=queue)
    assert other.read_content().body == b"whole"


@pytest.mark.parametrize("forced", ["close_connection", "close_all_connections"])
def test_forced_close(raw: Raw, ctl: Ctl, broker: Broker, forced: str) -> None:
    if forced == "close_all_connections" and not broker.is_mqd:
        pytest.skip("would close the connections of others who use this broker")
    client = raw()
    if forced == "close_all_connections":
        ctl(forced, "maintenance tonight")
    else:
        port = client.socket.getsockname()[1]
        field = "pid" if not broker.is_mqd else "name"
        rows = (row.split("\t") for row in ctl("list_connections", field, "peer_port").splitlines())
        ctl(forced, next(row[0] for row in rows if row[-1] == str(port)), "maintenance tonight")
    client.expect_connection_close(320, r"^CONNECTION_FORCED - maintenance tonight$", (0, 0))


def test_connections_and_channels_are_listed(raw: Raw, ctl: Ctl) -> None:
    client = raw().open_channel(7)
    port = str(client.socket.getsockname()[1])
    rows = [row.split("\t") for row in ctl("list_connections", "user", "peer_port", "channels").splitlines()]
    assert [row[2] for row in rows if row[:2] == ["guest", port]] == ["2"]
    rows = [row.split("\t") for row in ctl("list_channels", "name", "number", "user").splitlines()]
    assert sorted(row[1] for row in rows if f":{port} " in row[0]) == ["1", "7"]


def test_hostile_connections_leave_nothing_behind(raw: Raw, ctl: Ctl) -> None:
    """Dropped, refused and half-open connections: when they have ended, the broker lists none of them."""
    ports = set()
    for i in range(60):
        client = raw(handshake=i % 3 > 0)
        ports.add(str(client.socket.getsockname()[1]))
        client.send([b"AMQP\0\0", b"garbage" * 10, struct.pack(">BHI", 1, 1, 100000) + b"\0\x32"][i % 3])
        client.abort()

    def gone() -> bool:
        return not ports & {row.strip() for row in ctl("list_connections", "peer_port").splitlines()}

    eventually(gone, 10)


# -- heartbeats


def test_broker_sends_heartbeats_at_the_agreed_rate(raw: Raw) -> None:
    client = raw(heartbeat=2)
    for _ in range(2):
        # A client tolerates two intervals of silence.
        assert client.read_frame(4.0, heartbeats=True).type == HEARTBEAT
        client.send(BEAT)


def test_heartbeats_come_at_half_the_interval(raw: Raw) -> None:
    """Clients that check after one interval close a connection whose heartbeats take that long."""
    client = raw(heartbeat=1)
    client.read_frame(heartbeats=True)
    began = time.monotonic()
    for _ in range(6):
        client.send(BEAT)
        assert client.read_frame(heartbeats=True).type == HEARTBEAT
    assert 2.5 < time.monotonic() - began < 4.5


def test_no_heartbeats_when_the_client_wants_none(raw: Raw) -> None:
    client = raw(heartbeat=0)
    with pytest.raises(TimeoutError):
        client.read_frame(1.5, heartbeats=True)
    client.declare()


def test_silent_client_is_dropped_and_a_lively_one_is_not(raw: Raw) -> None:
    """With one second agreed: silence ends a connection after two; beats or any other traffic keep it."""
    silent, beating, working = raw(heartbeat=1), raw(heartbeat=1), raw(heartbeat=1)
    begun, ended = time.monotonic(), 0.0
    while (now := time.monotonic() - begun) < 4.5 or not ended and now < wait_s():
        beating.send(BEAT)
        working.declare()
        if not ended:
            try:
                silent.read_frame(0.3)
            except TimeoutError:
                continue
            except ClosedByPeer:
                ended = time.monotonic() - begun
        else:
            time.sleep(0.3)
    assert ended > 1.5
    beating.declare()
    working.declare()


def test_heartbeats_need_no_agreement(raw: Raw) -> None:
    client = raw(heartbeat=0)
    client.send(BEAT * 20)
    client.declare()


def test_heartbeats_between_the_frames_of_a_message(raw: Raw) -> None:
    client = raw()
    queue = client.declare()
    for part in split_frames(client.publish_bytes(b"abc", routing_key=queue)):
        client.send(part + BEAT)
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    assert client.read_content(commands.Basic.GetOk).body == b"abc"


def split_frames(data: bytes) -> Iterator[bytes]:
    while data:
        end = 8 + struct.unpack(">I", data[3:7])[0]
        yield data[:end]
        data = data[end:]


# -- alarms


def test_publisher_is_told_of_the_alarm_and_its_end(raw: Raw, memory_alarm: Alarm) -> None:
    client = raw()
    queue = client.declare()
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    memory_alarm(True)
    client.publish(b"held back", routing_key=queue)
    blocked = next_but(client, commands.Basic.Ack)
    assert isinstance(blocked, commands.Connection.Blocked)
    assert blocked.reason == "low on memory"
    client.publish(b"held back", routing_key=queue)
    memory_alarm(False)
    assert isinstance(next_but(client, commands.Basic.Ack), commands.Connection.Unblocked)
    # Messages that were published meanwhile are not lost.
    eventually(lambda: passive_count(client, queue) == 2)


def next_but(client: RawClient, other: type[pamqp.base.Frame]) -> pamqp.base.Frame:
    while isinstance(method := client.read_frame().method, other):
        pass
    return method


def passive_count(client: RawClient, queue: str) -> int:
    client.send_method(commands.Queue.Declare(queue=queue, passive=True))
    answer = next_but(client, commands.Basic.Ack)
    assert isinstance(answer, commands.Queue.DeclareOk)
    assert answer.message_count is not None
    return answer.message_count


def test_client_without_the_capability_is_blocked_silently(raw: Raw, memory_alarm: Alarm) -> None:
    client = raw(capabilities={})
    queue = client.declare()
    client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    memory_alarm(True)
    # The first publish under the alarm blocks the connection; the second one is certainly held back.
    client.publish(b"1", routing_key=queue)
    client.publish(b"2", routing_key=queue)
    with pytest.raises(TimeoutError):
        while True:
            assert isinstance(method := client.read_frame(0.5).method, commands.Basic.Ack)
            assert method.delivery_tag == 1 and not method.multiple
    memory_alarm(False)
    assert isinstance(method := client.read_frame().method, commands.Basic.Ack)


def test_consumers_are_served_under_the_alarm(raw: Raw, memory_alarm: Alarm) -> None:
    client = raw()
    queue = client.declare()
    for body in (b"1", b"2", b"3"):
        client.publish(body, routing_key=queue)
    eventually(lambda: passive_count(client, queue) == 3)
    memory_alarm(True)
    consumer = raw()  # may connect, too
    consumer.declare()
    client.call(commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
    client.send_method(commands.Basic.Consume(queue=queue))
    assert isinstance(next_but(client, commands.Connection.Blocked), commands.Basic.ConsumeOk)
    for body in (b"1", b"2", b"3"):
        content = client.read_content()
        assert content.body == body
        client.send_method(commands.Basic.Ack(content.delivery_tag))


def test_blocked_publisher_still_has_its_acks_read(raw: Raw, memory_alarm: Alarm) -> None:
    client = raw()
    queue, other = client.declare(), client.declare()
    for body in (b"1", b"2"):
        client.publish(body, routing_key=queue)
    eventually(lambda: passive_count(client, queue) == 2)
    client.call(commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
    client.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    first = client.read_content()
    memory_alarm(True)
    client.open_channel(2)
    client.publish(b"blocks", routing_key=other, channel=2)
    assert isinstance(client.read_frame().method, commands.Connection.Blocked)
    client.send_method(commands.Basic.Ack(first.delivery_tag))
    assert client.read_content().body == b"2"


# -- what does not belong on channel 0, or on another


@pytest.mark.parametrize(
    "method",
    [
        commands.Connection.Start(),
        commands.Connection.StartOk({}, "PLAIN", "x", "en_US"),
        commands.Connection.Tune(1, 4096, 0),
        commands.Connection.TuneOk(0, 131072, 0),
        commands.Connection.Open(),
        commands.Connection.OpenOk(),
        commands.Connection.CloseOk(),
        commands.Connection.Blocked("x"),
        commands.Channel.Open(),
        commands.Queue.Declare(queue="x"),
        commands.Basic.Ack(1),
        commands.Tx.Select(),
    ],
    ids=lambda method: str(method.name),
)
def test_method_out_of_place_on_channel_0(raw: Raw, method: pamqp.base.Frame) -> None:
    client = raw()
    client.send_method(method, 0)
    class_id, method_id = divmod(method.index, 1 << 16)
    client.expect_connection_close(504, RUNNING, (class_id, method_id))


@pytest.mark.parametrize(
    ("frame_type", "payload"), [(HEADER, header_payload(0)), (BODY, b"abc")], ids=["header", "body"]
)
def test_content_on_channel_0(raw: Raw, frame_type: int, payload: bytes) -> None:
    client = raw()
    client.send_frame(frame_type, 0, payload)
    client.expect_connection_close(
        505, rf"^UNEXPECTED_FRAME - type {frame_type}, all octets = <<.*>>$", (0, 0)
    )


@pytest.mark.parametrize(
    "method",
    [commands.Connection.Close(200, "", 0, 0), commands.Connection.Open(), commands.Connection.CloseOk()],
    ids=lambda method: str(method.name),
)
def test_connection_method_on_a_channel(raw: Raw, method: pamqp.base.Frame) -> None:
    client = raw()
    client.send_method(method, 1)
    class_id, method_id = divmod(method.index, 1 << 16)
    client.expect_connection_close(503, r"^COMMAND_INVALID - unimplemented method$", (class_id, method_id))


# -- as pika sees it


def test_pika_connects_with_defaults(connect: Connect) -> None:
    connection = connect()
    assert connection.is_open
    assert connection.publisher_confirms_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported


def test_many_connections_of_one_user(raw: Raw) -> None:
    clients = [raw() for _ in range(50)]
    names = {client.declare() for client in clients}
    assert len(names) == 50
