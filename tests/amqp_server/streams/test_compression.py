"""Compressed streams: consumers get the published messages, segments are smaller, and damage is still
found.
"""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.streams.layout.encode import Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.local_host import StreamOptions
from amqp_server.wire import content
from persistence.streams import compression
from persistence.streams.batch import DENSE, decode_head
from quorum_queue.machine.run import Attributes, Run
from tests.amqp_server.streams.node import StreamNode, consume, declare, got, opened, publish

TEXT = b"a text with words that come again and again, as in the log of a program; "


def filled(codec: str | None, default: str = "none") -> StreamNode:
    node = StreamNode(StreamOptions(segment_bytes=4_000, flush_bytes=1, codec=default))
    peer = opened(node)
    declare(peer, **({} if codec is None else {"x_stream_compression": codec}))
    for first in range(0, 100, 20):
        publish(peer, [TEXT * 3 + b"%d" % number for number in range(first, first + 20)])
        node.work()
    return node


def read(node: StreamNode, **more: Any) -> list[tuple[int, bytes]]:
    reader = opened(node)
    answers = consume(reader, **more)
    node.work()
    return got(reader, answers)


@pytest.mark.parametrize(
    ("codec", "default"), [("zstd", "none"), ("lz4", "none"), (None, "zstd"), (None, "lz4")]
)
def test_messages_come_out_as_they_went_in(codec: str | None, default: str) -> None:
    plain = filled("none", default)
    node = filled(codec, default)
    assert node.host().codec == (codec or default)
    expected = [(number, TEXT * 3 + b"%d" % number) for number in range(100)]
    assert read(node) == read(plain) == expected
    assert node.host().ready_bytes < plain.host().ready_bytes / 2
    for each in (node, plain):
        each.restart(lost_power=True)
        assert read(each) == expected
        assert read(each, offset=55) == expected[55:]
        # Data that was read does not count any more after it was handed out.
        assert each.host()._services.held_bytes == 0


def test_the_argument_may_change_with_the_default() -> None:
    """Each batch says how it is compressed, so a log may have both."""
    node = filled(None, "zstd")
    node.options = StreamOptions(segment_bytes=4_000, flush_bytes=1, codec="none")
    node.restart()
    peer = opened(node)
    publish(peer, [b"x" * 1000])
    assert read(node)[99:] == [(99, TEXT * 3 + b"99"), (100, b"x" * 1000)]


def test_a_batch_is_decompressed_once_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = filled("zstd")
    calls: list[int] = []
    real = compression.decompress

    def counted(codec: str, data: bytes | memoryview, size: int) -> bytes:
        calls.append(size)
        return real(codec, data, size)

    monkeypatch.setattr(compression, "decompress", counted)
    read(node, prefetch=7)
    calls.clear()
    assert len(read(node)) == 100
    assert len(calls) == 5


@pytest.mark.parametrize("codec", ["", "gzip", "ZSTD", 5, True])
def test_other_compressions_are_refused(codec: object) -> None:
    node = StreamNode()
    ((_, close),) = declare(opened(node), x_stream_compression=codec)
    assert close.reply_code == 406 and "invalid arg 'x-stream-compression' for queue 's'" in close.reply_text
    assert not node.broker.vhost("/").queues


@pytest.mark.parametrize(
    ("encodings", "dense"),
    [
        (["gzip"], True),
        (["gzip:UTF-8"], True),
        (["identity, zstd"], True),
        (["utf-8"], False),
        ([None], False),
        (["gzip", "gzip", None], True),
        (["gzip", "utf-8", None], False),
    ],
)
def test_what_the_publisher_has_compressed_is_left_alone(encodings: list[str | None], dense: bool) -> None:
    encoder = Encoder(Layouts(), 0, 1)
    for encoding in encodings:
        properties = content.Properties({})
        if encoding is not None:
            properties.set_text("content_encoding", encoding)
        item = content.build(properties.encode(500), b"a" * 500, 1, 131_072)
        encoder.add(Run(range(1), [item], b"\0\1s", Attributes(True, 0, None, 1)))
    (encoded,) = encoder.finish()
    assert bool(decode_head(encoded.parts[0]).flags & DENSE) is dense
