"""Channels: opening, closing, reopening, closing by an error of one channel, and many channels at once."""

import pamqp.base
import pytest
from pamqp import commands

from conformance_tests.conftest import Raw
from conformance_tests.wire import BODY, HEADER, RawClient, frame_bytes, header_payload, method_bytes

NOT_OPEN = r"^CHANNEL_ERROR - expected 'channel\.open'$"


def fail(client: RawClient, channel: int = 1) -> None:
    """Makes the broker close this channel with 404."""
    client.send_method(commands.Queue.Declare(queue="no-such-queue", passive=True), channel)


def test_open_and_close(raw: Raw) -> None:
    client = raw(channel=None)
    assert client.call(commands.Channel.Open(), commands.Channel.OpenOk, 3)
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk, 3)
    assert client.call(commands.Channel.Open(), commands.Channel.OpenOk, 3)
    client.declare(channel=3)


@pytest.mark.parametrize("channel", [1, 2, 1000, 2047])
def test_channel_numbers(raw: Raw, channel: int) -> None:
    raw(channel=channel).declare(channel=channel)


def test_second_open(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Channel.Open())
    client.expect_connection_close(504, r"^CHANNEL_ERROR - second 'channel\.open' seen$", (20, 10))


@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Declare(queue="x"),
        commands.Exchange.Declare(exchange="x"),
        commands.Basic.Ack(1),
        commands.Basic.Qos(),
        commands.Tx.Select(),
        commands.Confirm.Select(),
        commands.Channel.Flow(True),
        commands.Channel.Close(200, "", 0, 0),
        commands.Channel.CloseOk(),
    ],
    ids=lambda method: str(method.name),
)
def test_method_on_a_channel_that_is_not_open(raw: Raw, method: pamqp.base.Frame) -> None:
    client = raw()
    client.send_method(method, 5)
    client.expect_connection_close(504, NOT_OPEN, divmod(method.index, 1 << 16))


def test_publish_on_a_channel_that_is_not_open(raw: Raw) -> None:
    client = raw()
    client.publish(b"", routing_key="x", channel=5)
    client.expect_connection_close(504, NOT_OPEN, (60, 40))


@pytest.mark.parametrize(
    ("frame_type", "payload"), [(HEADER, header_payload(3)), (BODY, b"abc")], ids=["header", "body"]
)
def test_content_on_a_channel_that_is_not_open(raw: Raw, frame_type: int, payload: bytes) -> None:
    client = raw()
    client.send_frame(frame_type, 5, payload)
    client.expect_connection_close(
        505, r"^UNEXPECTED_FRAME - expected method frame, got non method frame instead$"
    )


def test_method_on_a_closed_channel(raw: Raw) -> None:
    client = raw()
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    client.send_method(commands.Queue.Declare(exclusive=True))
    client.expect_connection_close(504, NOT_OPEN, (50, 10))


@pytest.mark.parametrize("number", [11, 2048, 65535])
def test_channel_number_beyond_channel_max(raw: Raw, number: int) -> None:
    """channel-max is a number of channels: the client may choose their numbers freely, as long as there are
    few enough.
    """
    client = raw(channel_max=10)
    client.open_channel(number)
    queue = client.declare(channel=number)
    client.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk, number)
    client.publish(b"m", routing_key=queue, channel=number)
    assert client.read_content(channel=number).body == b"m"


def test_too_many_channels_with_any_numbers(raw: Raw) -> None:
    client = raw(channel_max=2)
    client.open_channel(500)
    client.send_method(commands.Channel.Open(), 2)
    client.expect_connection_close(
        530,
        r"^NOT_ALLOWED - number of channels opened \(2\) has reached the negotiated channel_max \(2\)$",
        (0, 0),
    )


def test_as_many_channels_as_agreed(raw: Raw) -> None:
    client = raw(channel_max=100, channel=None)
    for channel in range(1, 101):
        client.open_channel(channel)
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk, 50)
    client.open_channel(50)
    client.send_method(commands.Channel.Open(), 101)
    client.expect_connection_close(
        530,
        r"^NOT_ALLOWED - number of channels opened \(100\) has reached the negotiated channel_max \(100\)$",
    )


def test_error_closes_the_channel_only(raw: Raw) -> None:
    client = raw().open_channel(2)
    queue = client.declare(channel=2)
    fail(client)
    client.expect_channel_close(
        404, r"^NOT_FOUND - no queue 'no-such-queue' in vhost '/'$", method_id=(50, 10)
    )
    client.publish(b"still", routing_key=queue, channel=2)
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True), 2)
    assert client.read_content(commands.Basic.GetOk, 2).body == b"still"


def test_channel_is_open_again_after_close_ok(raw: Raw) -> None:
    client = raw()
    for _ in range(3):
        fail(client)
        client.expect_channel_close(404, "no-such-queue")
        client.open_channel()
    client.declare()


def test_methods_behind_an_error_are_ignored(raw: Raw) -> None:
    """Methods that were sent before the client could know about the error: the broker neither executes nor
    answers them.
    """
    client = raw().open_channel(2)
    queue = client.declare()
    fail(client)
    client.publish(b"ignored", routing_key=queue)
    client.send_method(commands.Queue.Delete(queue=queue))
    client.send_method(commands.Tx.Select())
    client.expect_channel_close(404, "no-such-queue")
    client.call(commands.Tx.Select(), commands.Tx.SelectOk, 2)
    found = client.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk, 2)
    assert found.message_count == 0


def test_close_crossing_the_brokers_close(raw: Raw) -> None:
    client = raw()
    fail(client)
    client.send_method(commands.Channel.Close(200, "", 0, 0))
    client.expect_channel_close(404, "no-such-queue", answer=False)
    client.read(commands.Channel.CloseOk)


def test_half_a_message_before_an_error_of_the_channel(raw: Raw) -> None:
    """The rest of a publish that failed at once (no such exchange) arrives in any case; the broker ignores
    it.
    """
    client = raw().open_channel(2)
    body = b"x" * 300_000
    client.publish(body, exchange="no-such-exchange")
    client.expect_channel_close(
        404, r"^NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'$", method_id=(60, 40)
    )
    client.open_channel(1).declare()


def test_close_of_a_channel_returns_its_messages(raw: Raw) -> None:
    client = raw().open_channel(2)
    queue = client.declare()
    client.publish(b"1", routing_key=queue)
    client.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    client.read_content()
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    client.send_method(commands.Basic.Get(queue=queue), 2)
    back = client.read_content(commands.Basic.GetOk, 2)
    assert (back.body, back.redelivered) == (b"1", True)


def test_close_of_a_channel_ends_its_consumers(raw: Raw) -> None:
    client = raw().open_channel(2)
    queue = client.declare()
    client.call(commands.Basic.Consume(queue=queue, exclusive=True), commands.Basic.ConsumeOk)
    client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    client.call(commands.Basic.Consume(queue=queue, exclusive=True), commands.Basic.ConsumeOk, 2)


def test_flow_on_is_answered(raw: Raw) -> None:
    answer = raw().call(commands.Channel.Flow(True), commands.Channel.FlowOk)
    assert answer.active is True


def test_flow_off_is_not_implemented(raw: Raw) -> None:
    client = raw()
    client.send_method(commands.Channel.Flow(False))
    client.expect_connection_close(540, r"^NOT_IMPLEMENTED - active=false$", (20, 20))


def test_interleaved_contents_of_two_channels(raw: Raw) -> None:
    """Frames of one message on one channel stay together per channel, not per connection."""
    client = raw().open_channel(2)
    queue = client.declare()
    frames: list[list[bytes]] = []
    for channel in (1, 2):
        body = str(channel).encode() * 6
        frames.append(
            [
                method_bytes(commands.Basic.Publish(routing_key=queue), channel),
                frame_bytes(HEADER, channel, header_payload(6)),
                frame_bytes(BODY, channel, body[:3]),
                frame_bytes(BODY, channel, body[3:]),
            ]
        )
    client.send(b"".join(part for pair in zip(*frames, strict=True) for part in pair))
    client.call(commands.Tx.Select(), commands.Tx.SelectOk, 2)
    bodies = set()
    for _ in range(2):
        client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
        bodies.add(client.read_content(commands.Basic.GetOk).body)
    assert bodies == {b"111111", b"222222"}


def test_methods_of_another_channel_inside_a_message(raw: Raw) -> None:
    client = raw().open_channel(2)
    queue = client.declare()
    client.send(method_bytes(commands.Basic.Publish(routing_key=queue), 1))
    client.call(commands.Tx.Select(), commands.Tx.SelectOk, 2)
    client.send_frame(HEADER, 1, header_payload(3))
    client.call(commands.Tx.Commit(), commands.Tx.CommitOk, 2)
    client.send_frame(BODY, 1, b"abc")
    client.send_method(commands.Basic.Get(queue=queue, no_ack=True))
    assert client.read_content(commands.Basic.GetOk).body == b"abc"


def test_delivery_tags_and_consumer_tags_are_the_channels_own(raw: Raw) -> None:
    client = raw().open_channel(2)
    for channel in (1, 2):
        queue = client.declare(channel=channel)
        client.publish(b"x", routing_key=queue, channel=channel)
        client.call(
            commands.Basic.Consume(queue=queue, consumer_tag="same"), commands.Basic.ConsumeOk, channel
        )
        method = client.read_content(channel=channel).method
        assert isinstance(method, commands.Basic.Deliver)
        assert (method.delivery_tag, method.consumer_tag) == (1, "same")


def test_answers_come_in_the_order_of_the_questions(raw: Raw) -> None:
    client = raw()
    queue = client.declare()
    client.send(
        b"".join(
            [
                client.publish_bytes(b"1", routing_key=queue),
                method_bytes(commands.Queue.Declare(queue=queue, passive=True), 1),
                method_bytes(commands.Basic.Get(queue=queue, no_ack=True), 1),
                method_bytes(commands.Basic.Get(queue=queue, no_ack=True), 1),
                method_bytes(commands.Queue.Purge(queue=queue), 1),
                method_bytes(commands.Tx.Select(), 1),
            ]
        )
    )
    client.read(commands.Queue.DeclareOk)
    assert client.read_content(commands.Basic.GetOk).body == b"1"
    client.read(commands.Basic.GetEmpty)
    client.read(commands.Queue.PurgeOk)
    client.read(commands.Tx.SelectOk)


@pytest.mark.parametrize(
    "method",
    [
        commands.Channel.OpenOk(),
        commands.Channel.FlowOk(True),
        commands.Channel.CloseOk(),
        commands.Exchange.DeclareOk(),
        commands.Queue.DeclareOk("q", 0, 0),
        commands.Queue.BindOk(),
        commands.Basic.QosOk(),
        commands.Basic.ConsumeOk("c"),
        commands.Basic.CancelOk("c"),
        commands.Basic.GetEmpty(),
        commands.Basic.RecoverOk(),
        commands.Tx.SelectOk(),
        commands.Confirm.SelectOk(),
    ],
    ids=lambda method: str(method.name),
)
def test_method_that_only_a_broker_may_send(raw: Raw, method: pamqp.base.Frame) -> None:
    client = raw()
    client.send_method(method)
    client.expect_connection_close(
        503, r"^COMMAND_INVALID - unimplemented method$", divmod(method.index, 1 << 16)
    )


@pytest.mark.parametrize(
    "method",
    [
        commands.Basic.Deliver("c", 1, False, "", ""),
        commands.Basic.Return(312, "", "", ""),
        commands.Basic.GetOk(1, False, "", "", 0),
    ],
    ids=lambda method: str(method.name),
)
def test_content_that_only_a_broker_may_send(raw: Raw, method: pamqp.base.Frame) -> None:
    client = raw()
    client.send_method(method)
    client.send_frame(HEADER, 1, header_payload(0))
    client.expect_connection_close(
        503, r"^COMMAND_INVALID - unimplemented method$", divmod(method.index, 1 << 16)
    )
