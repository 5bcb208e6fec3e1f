"""Properties and content frames, three ways, and cut anew into frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame

from amqp_server.errors import FrameError
from amqp_server.wire import content

from .published import Message, harmless, header_payload, message, messages, raw


@given(harmless, st.integers(0, 1 << 40))
def test_properties_are_parsed_and_encoded_alike(properties: dict[str, bytes], size: int) -> None:
    payload = header_payload(properties, size)
    parsed = content.Properties.parse(payload)
    assert parsed.raw == properties
    assert parsed.encode(size) == payload


@given(harmless)
def test_every_cut_is_refused(properties: dict[str, bytes]) -> None:
    payload = header_payload(properties, 1)
    for end in range(len(payload)):
        with pytest.raises(FrameError):
            content.Properties.parse(payload[:end])


@given(harmless, st.binary(min_size=1, max_size=10))
def test_trailing_data_is_refused(properties: dict[str, bytes], trailing: bytes) -> None:
    with pytest.raises(FrameError):
        content.Properties.parse(header_payload(properties, 1) + trailing)


@given(st.binary(max_size=60))
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    payload = b"\x00\x3c\x00\x00" + bytes(8) + data
    try:
        parsed = content.Properties.parse(payload)
    except FrameError:
        return
    assert parsed.encode(0) == payload
    assert parsed.headers is None or isinstance(parsed.headers, dict)


@pytest.mark.parametrize("flags", [1, 2, 3, 0x8001])
def test_unknown_flags_are_refused(flags: int) -> None:
    payload = header_payload({}, 0)[:12] + flags.to_bytes(2, "big")
    with pytest.raises(FrameError):
        content.Properties.parse(payload + (b"\x00" if flags & 0x8000 else b""))


@given(messages(bodies=st.binary(max_size=300)), st.integers(1, 65_535), st.sampled_from([4096, 131_072]))
def test_a_content_gets_another_channel_and_frame_size(sent: Message, channel: int, frame_max: int) -> None:
    item = b"".join(sent.frames(1)[1:])
    assert content.split(item) == (sent.header, sent.body)
    check(content.restamp(item, channel, frame_max), sent, channel, frame_max)
    check(b"".join(content.reframed(item, channel, frame_max)), sent, channel, frame_max)
    check(content.restamp_all([item, item], channel)[1], sent, channel, 4096)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 131_064, 131_065, 262_128, 262_129])
@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_bodies_are_cut_to_the_frame(size: int, frame_max: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = message(body=body)
    built = content.build(sent.header, body, 3, 131_072)
    check(built, sent, 3, 131_072)
    check(content.restamp(built, 5, frame_max), sent, 5, frame_max)
    chunks = content.reframed(built, 5, frame_max)
    check(b"".join(chunks), sent, 5, frame_max)
    # The body is not copied.
    assert sum(len(chunk) for chunk in chunks if isinstance(chunk, bytes)) <= 100 + 8 * len(chunks)
    check(content.restamp_all([built], 7)[0], sent, 7, 131_072)


def check(item: bytes, sent: Message, channel: int, frame_max: int) -> None:
    """Check that the content is the message's, on this channel, in frames up to this size."""
    header, parts = b"", list[bytes]()
    while item:
        used, number, _ = frame.unmarshal(item)
        whole, item = item[:used], item[used:]
        assert number == channel
        assert whole == raw(whole[0], channel, whole[7:-1])
        if not header:
            assert whole[0] == 2
            header = whole[7:-1]
        else:
            assert whole[0] == 3 and len(whole) <= frame_max
            parts.append(whole[7:-1])
    assert header == sent.header
    assert b"".join(parts) == sent.body
