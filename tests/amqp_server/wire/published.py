"""Messages and frames as a client might send them, correct and broken; encoded here, without the broker's
code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import strategies as st
from pamqp import base, commands, frame

PROPERTY_NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def raw(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, *methods: base.Frame) -> bytes:
    return b"".join(frame.marshal(each, channel) for each in methods)


def acknowledge(
    channel: int, tag: int, multiple: bool = False, method_id: int = 80, flags: int | None = None
) -> bytes:
    """basic.ack; 120 is nack, 90 reject."""
    bits = int(multiple) if flags is None else flags
    return raw(1, channel, struct.pack(">HHQB", 60, method_id, tag, bits))


def header_payload(properties: dict[str, bytes], body_bytes: int) -> bytes:
    flags = sum(0x8000 >> bit for bit, name in enumerate(PROPERTY_NAMES) if name in properties)
    values = b"".join(properties[name] for name in PROPERTY_NAMES if name in properties)
    return struct.pack(">HHQH", 60, 0, body_bytes, flags) + values


@dataclass(frozen=True)
class Message:
    """One publish. `cuts` are the sizes of its body frames."""

    exchange: bytes
    routing_key: bytes
    bits: int
    header: bytes
    body: bytes
    cuts: tuple[int, ...]

    def frames(self, channel: int) -> list[bytes]:
        payload = struct.pack(">HHH", 60, 40, 0) + short(self.exchange) + short(self.routing_key)
        found = [raw(1, channel, payload + bytes((self.bits,))), raw(2, channel, self.header)]
        start = 0
        for size in self.cuts:
            found.append(raw(3, channel, self.body[start : start + size]))
            start += size
        assert start == len(self.body)
        return found

    def encode(self, channel: int) -> bytes:
        return b"".join(self.frames(channel))


def message(
    exchange: str = "",
    routing_key: str = "q",
    body: bytes = b"body",
    *,
    mandatory: bool = False,
    **properties: bytes,
) -> Message:
    """A message with the given fields; its body is in one frame."""
    cuts = (len(body),) if body else ()
    header = header_payload(properties, len(body))
    return Message(exchange.encode(), routing_key.encode(), int(mandatory), header, body, cuts)


# -- tables --------------------------------------------------------------------------------------------------

names = st.text("abCDé-", min_size=1, max_size=6).filter(lambda name: name != "CC").map(str.encode)
_plain = st.one_of(
    st.booleans().map(lambda value: b"t" + bytes((value,))),
    *(
        st.binary(min_size=size, max_size=size).map(lambda value, tag=tag: tag + value)  # type: ignore[misc]
        for tag, size in (
            (b"b", 1), (b"B", 1), (b"s", 2), (b"u", 2), (b"I", 4), (b"i", 4), (b"l", 8), (b"L", 8), (b"f", 4), (b"d", 8)
        )
    ),
    st.builds(lambda scale, value: b"D" + struct.pack(">Bi", scale, value), st.integers(0, 20), st.integers(-9, 9**9)),
    st.integers(0, (1 << 32) - 1).map(lambda value: b"T" + struct.pack(">Q", value)),
    st.text(max_size=8).map(lambda value: b"S" + long(value.encode())),
    st.sampled_from([b"CC", b"amq.", b"\xce"]).map(lambda value: b"S" + long(value)),
    st.binary(max_size=8).map(lambda value: b"x" + long(value)),
    st.just(b"V"),
)  # fmt: skip


def _table(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pairs = st.dictionaries(names, values, max_size=4)
    return pairs.map(lambda fields: long(b"".join(short(name) + value for name, value in fields.items())))


values = st.recursive(
    _plain,
    lambda inner: st.one_of(
        _table(inner).map(lambda table: b"F" + table),
        st.lists(inner, max_size=3).map(lambda items: b"A" + long(b"".join(items))),
    ),
    max_leaves=6,
)
#: Field tables after their length.
field_tables = _table(values)

# -- properties and messages ---------------------------------------------------------------------------------

_text = st.text(max_size=12).map(lambda text: short(text.encode()))
_key_lists = st.lists(st.sampled_from([b"q1", b"q2", b"nowhere"]), max_size=2)
_copies = st.tuples(st.sampled_from([b"CC", b"BCC"]), _key_lists).map(
    lambda pair: long(short(pair[0]) + b"A" + long(b"".join(b"S" + long(key) for key in pair[1])))
)
_ROUTED_BY_HEADER = long(short(b"x") + b"S" + long(b"1"))
#: Headers that the broker takes as they are.
harmless = st.fixed_dictionaries(
    {},
    optional={
        "content_type": _text,
        "content_encoding": _text,
        "headers": st.one_of(field_tables, _copies, st.just(_ROUTED_BY_HEADER)),
        "delivery_mode": st.sampled_from([b"\1", b"\2"]),
        "priority": st.sampled_from([b"\0", b"\5", b"\xff"]),
        "correlation_id": _text,
        "reply_to": st.one_of(_text, st.just(short(b"amq.other"))),
        "expiration": st.sampled_from(["999999999", "4000000000", "+77777777"]).map(
            lambda text: short(text.encode())
        ),
        "message_id": _text,
        "timestamp": st.integers(0, (1 << 32) - 1).map(lambda value: struct.pack(">Q", value)),
        "type": _text,
        "user_id": st.just(short(b"guest")),
        "app_id": _text,
        "cluster_id": _text,
    },
)
#: And headers that it refuses.
refused = st.one_of(
    st.just({"user_id": short(b"somebody")}),
    st.sampled_from([b"\0", b"\3", b"\xff"]).map(lambda mode: {"delivery_mode": mode}),
    st.sampled_from([b"", b"x", b"1x", b"-1", b"99999999999", "١".encode()]).map(
        lambda text: {"expiration": short(text)}
    ),
    st.just({"headers": long(short(b"CC") + b"S" + long(b"q1"))}),
    st.just({"reply_to": short(b"amq.rabbitmq.reply-to")}),
)
small_bodies = st.binary(max_size=40)
#: Sizes around those where frames are cut, and beyond.
large_bodies = st.sampled_from(
    [4087, 4088, 4089, 5000, 131_063, 131_064, 131_065, 140_000, 204_800]
).map(lambda size: bytes(range(251)) * (size // 251 + 1)).flatmap(lambda data: st.just(data)) | st.just(b"z" * 4088)  # fmt: skip
TARGETS = [
    (b"", b"q1"),
    (b"", b"q2"),
    (b"", b"short"),
    (b"", b"nowhere"),
    (b"amq.fanout", b""),
    (b"amq.topic", b"a.b"),
    (b"amq.headers", b""),
    (b"alike", b"k1"),
    (b"alike", b"k2"),
]
BROKEN_TARGETS = [(b"missing", b"x"), (b"\xff\xfe", b"x"), (b"", b"\xff")]


@st.composite
def messages(
    draw: st.DrawFn,
    *,
    bodies: st.SearchStrategy[bytes] = small_bodies,
    properties: st.SearchStrategy[dict[str, bytes]] = harmless,
    targets: list[tuple[bytes, bytes]] = TARGETS,
    frame_max: int = 131_072,
) -> Message:
    exchange, routing_key = draw(st.sampled_from(targets))
    body = draw(bodies)
    cut = draw(st.sampled_from([frame_max - 8, frame_max - 8, 7, 4000, 4096])) if body else 1
    if len(body) > 60_000:
        cut = max(cut, 4000)
    cuts = tuple(min(cut, len(body) - start) for start in range(0, len(body), cut))
    bits = draw(st.sampled_from([0, 0, 0, 1]))
    return Message(exchange, routing_key, bits, header_payload(draw(properties), len(body)), body, cuts)


@st.composite
def repeated(draw: st.DrawFn, of: st.SearchStrategy[Message]) -> list[Message]:
    """The same message several times, and then other bodies of the same size, as publishing loops send
    them.
    """
    first = draw(of)
    count = draw(st.integers(1, 12))
    other = Message(first.exchange, first.routing_key, first.bits, first.header, first.body[::-1], first.cuts)
    return [first if index % 3 else other for index in range(count)]


@st.composite
def mutated(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> bytes:
    """A stream with one or two defects: a byte changed, bytes cut out or put in."""
    data = bytearray(draw(streams))
    for _ in range(draw(st.integers(1, 2))):
        if not data:
            break
        at = draw(st.integers(0, min(len(data) - 1, 4000)))
        kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "end"]))
        if kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            data[at] = draw(st.sampled_from([0, 1, 2, 3, 4, 8, 0xCD, 0xCE, 0xFF, 60]))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 9))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=9))
        else:
            del data[at:]
    return bytes(data)


heartbeats = st.just(raw(8, 0, b""))
consume = commands.Basic.Consume
