"""Publishes read from raw bytes, three ways: whole, byte by byte, and with other data behind them."""

from __future__ import annotations

import sys
from itertools import zip_longest
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_server.wire import intake
from amqp_server.wire.content import Properties
from amqp_server.wire.intake import Outcome, Publisher, PublishRoute, Segment
from quorum_queue.machine.attributes import priority_of
from quorum_queue.machine.run import Attributes

from .published import Message, acknowledge, harmless, long, message, messages, raw, refused, repeated, short

CHANNEL = 3


class Queue:
    def __init__(self, name: str) -> None:
        self.name = name


KEYS = [(b"", b"a"), (b"", b"bb"), (b"x", b""), (b"", b"elsewhere")]
# The first two keys lead to the same queue, so that their messages may share a segment. The last one leads to
# no queue.
HOST, OTHER = (Queue("one"),), (Queue("other"),)
HOSTS = {KEYS[0]: HOST, KEYS[1]: HOST, KEYS[2]: OTHER, KEYS[3]: ()}


class Taken(NamedTuple):
    head: bytes
    attributes: Attributes
    content: bytes


class Scanner:
    """Drives `take` as a session does, without a slow path."""

    def __init__(self, frame_max: int = 131_072) -> None:
        self.publisher = Publisher(frame_max, b"guest", 1 << 24)
        self.routes: dict[bytes, PublishRoute] = {}
        channel = object()
        for exchange, key in KEYS:
            for bits in (0, 1):
                frame = Message(exchange, key, bits, b"", b"", ()).frames(CHANNEL)[0]
                self.routes[frame] = PublishRoute(
                    key=frame,
                    channel=CHANNEL,
                    publisher=channel,
                    exchange=exchange.decode(),
                    routing_key=key.decode(),
                    head=short(exchange) + short(key),
                    mandatory=bool(bits),
                    targets=HOSTS[exchange, key],
                )
        self.segments: list[Segment] = []

    def scan(self, data: bytes) -> tuple[int, Outcome]:
        """Take all messages that can be taken; return the offset of the rest, and why it was left."""
        pos, outcome = 0, Outcome.OTHER
        while len(data) - pos >= 7:
            after = pos + 8 + int.from_bytes(data[pos + 3 : pos + 7], "big")
            route = self.routes.get(data[pos:after])
            if route is None:
                return pos, Outcome.OTHER
            begin = pos
            pos, outcome, _ = intake.take(
                data, pos, len(data), route, self.routes, self.publisher, self.segments
            )
            if outcome is Outcome.SLOW or pos == begin:
                return pos, outcome
        return pos, outcome

    def taken(self) -> list[Taken]:
        """Return all messages in order."""
        found: list[Taken] = []
        for segment in self.segments:
            if segment.mix is None:
                found += self.of(segment)
            elif not segment.lane:
                lanes = list(map(self.of, segment.mix.lanes))
                assert lanes == [self.of(lane) for lane in self.segments if lane.mix is segment.mix]
                done = [0] * len(lanes)
                for lane, stop in zip(segment.mix.turns[::2], segment.mix.turns[1::2], strict=True):
                    found += lanes[lane][done[lane] : stop]
                    done[lane] = stop
                assert done == list(map(len, lanes))
        return found

    def of(self, segment: Segment) -> list[Taken]:
        heads = segment.heads or [segment.route.head] * len(segment.contents)
        segment.fill_kinds()
        kinds, table = segment.kinds or bytes(len(heads)), segment.table
        return [
            Taken(head, table[kind], item)
            for head, kind, item in zip(heads, kinds, segment.contents, strict=True)
        ]


def expected(sent: list[Message], frame_max: int = 131_072) -> list[Taken]:
    found: list[Taken] = []
    for each in sent:
        properties = Properties.parse(each.header)
        expiration = properties.text("expiration")
        large = len(each.header) > 4088 or len(each.body) > 4088
        attributes = Attributes(
            persistent=properties.persistent,
            priority=priority_of(properties.octet("priority")),
            ttl_ms=None if expiration is None else int(expiration),
            channel=CHANNEL,
            frame_bytes=frame_max if large else 4096,
        )
        head = short(each.exchange) + short(each.routing_key)
        found.append(Taken(head, attributes, b"".join(each.frames(CHANNEL)[1:])))
    return found


def _fast(each: Message) -> bool:
    """Return whether the slow path need not read this message."""
    properties = Properties.parse(each.header)
    expiration = properties.text("expiration") or "0"
    return (
        len(each.cuts) <= 1
        and b"CC" not in each.header
        and b"amq." not in each.header
        and properties.octet("delivery_mode") in (None, 1, 2)
        and expiration.isdigit()
        and len(expiration) < 10
    )


def _in_order_or_turns(groups: list[list[Message]], in_turns: bool) -> list[Message]:
    if in_turns:
        return [each for turn in zip_longest(*groups) for each in turn if each is not None]
    return [each for group in groups for each in group]


_lists = st.builds(
    _in_order_or_turns,
    st.lists(repeated(messages(targets=KEYS).filter(_fast)), max_size=5),
    st.booleans(),
)


@given(_lists)
def test_publishes_of_one_read_are_taken_whole(sent: list[Message]) -> None:
    scanner = Scanner()
    data = b"".join(each.encode(CHANNEL) for each in sent)
    assert scanner.scan(data)[0] == len(data)
    assert scanner.taken() == expected(sent)


@settings(deadline=None)
@given(_lists)
def test_byte_by_byte(sent: list[Message]) -> None:
    sent = sent[:12]
    scanner = Scanner()
    buffer = b""
    for octet in b"".join(each.encode(CHANNEL) for each in sent):
        buffer += bytes((octet,))
        left, outcome = scanner.scan(buffer)
        assert outcome is not Outcome.SLOW
        buffer = buffer[left:]
    assert buffer == b""
    assert scanner.taken() == expected(sent)


def test_a_part_may_end_within_any_frame() -> None:
    """The data may be longer than the part to take now, and shorter than the message in which the part
    ends.
    """
    sent = [message(routing_key="a", body=b"x" * 5)] * 2
    data = b"".join(each.encode(CHANNEL) for each in sent)
    for came in range(len(data) // 2, len(data) + 1):
        for stop in range(len(data) // 2, came + 1):
            scanner = Scanner()
            route = scanner.routes[sent[0].frames(CHANNEL)[0]]
            taken, outcome, _ = intake.take(
                data[:came], 0, stop, route, scanner.routes, scanner.publisher, scanner.segments
            )
            assert outcome is not Outcome.SLOW and taken == stop // (len(data) // 2) * (len(data) // 2)
            assert scanner.taken() == expected(sent[: taken // (len(data) // 2)])


_trailing = st.one_of(
    st.just(acknowledge(CHANNEL, 1)),
    st.just(message().encode(CHANNEL + 1)),
    st.just(raw(8, 0, b"")),
    st.binary(min_size=7, max_size=30).filter(lambda data: data[0] != 1),
)


@given(_lists, _trailing)
def test_other_frames_end_the_publishes(sent: list[Message], trailing: bytes) -> None:
    scanner = Scanner()
    data = b"".join(each.encode(CHANNEL) for each in sent)
    assert scanner.scan(data + trailing) == (len(data), Outcome.OTHER)
    assert scanner.taken() == expected(sent)


@given(_lists, messages(targets=KEYS, properties=refused), st.booleans())
def test_what_needs_a_look_is_left(sent: list[Message], odd: Message, again: bool) -> None:
    scanner = Scanner()
    data = b"".join(each.encode(CHANNEL) for each in sent)
    assert scanner.scan(data + odd.encode(CHANNEL) + (data if again else b"")) == (len(data), Outcome.SLOW)
    assert scanner.taken() == expected(sent)


_complete = message("", "a", b"12345")


@pytest.mark.parametrize(
    "content",
    [
        raw(8, 0, b""),  # nothing forbids frames of other channels in between
        raw(8, 0, b"")[:7],
        acknowledge(CHANNEL, 1),
        raw(3, CHANNEL, b"12345"),
        raw(2, CHANNEL + 1, _complete.header),
        raw(2, CHANNEL + 1, _complete.header)[:3],
        raw(2, CHANNEL, b"\x00\x3c")[:9],
        raw(2, CHANNEL, bytes(131_065))[:8],
        raw(2, CHANNEL, _complete.header)[:-1] + b"\x00",
        raw(2, CHANNEL, b"\x00\x0a" + _complete.header[2:]),
        raw(2, CHANNEL, _complete.header[:-2] + b"\x00\x01") + raw(3, CHANNEL, b"12345"),
        raw(2, CHANNEL, _complete.header) + raw(3, CHANNEL, b"1234"),
        raw(2, CHANNEL, _complete.header) + raw(3, CHANNEL, b"123456"),
        raw(2, CHANNEL, _complete.header) + raw(3, CHANNEL + 1, b"12345"),
        raw(2, CHANNEL, _complete.header) + raw(1, CHANNEL, b"12345"),
        raw(2, CHANNEL, _complete.header) + raw(3, CHANNEL, b"12345")[:-1] + b"\xcd",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_broken_content_is_left(content: bytes, before: int) -> None:
    """The scanner leaves it at once, not only after more data has come: the client may wait for the
    answer.
    """
    scanner = Scanner()
    good = _complete.encode(CHANNEL) * before
    frame = _complete.frames(CHANNEL)[0]
    assert scanner.scan(good + frame + content) == (len(good), Outcome.SLOW)
    assert len(scanner.taken()) == before


@given(st.lists(harmless, min_size=2, max_size=6))
def test_shapes_do_not_mistake_one_header_for_another(several: list[dict[str, Any]]) -> None:
    """Each message is judged by its own header, however similar it is to others."""
    sent = [message("", "a", b"b", mandatory=False, **properties) for properties in several * 3]
    sent = [each for each in sent if _fast(each)]
    scanner = Scanner()
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    assert scanner.taken() == expected(sent)


_like_one_another = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([b"\x00", b"\x01", b"\x09"]),
        "message_id": st.sampled_from(list(map(short, [b"a", b"b", b"c", b"dd"]))),
        "expiration": st.sampled_from([short(b"10"), short(b"20")]),
    }
)


@given(
    st.lists(
        st.tuples(_like_one_another, st.sampled_from([0, 5, 6]), st.sampled_from(["a", "bb"])), max_size=60
    ),
    st.integers(0, 60),
)
def test_headers_that_differ_in_what_decides_share_a_segment(
    sent: list[tuple[dict[str, bytes], int, str]], cut: int
) -> None:
    """Priorities and lives are a column; whatever sizes of headers and bodies come in between."""
    whole = [message("", key, b"." * size, mandatory=False, **each) for each, size, key in sent]
    scanner = Scanner()
    for part in (whole[:cut], whole[cut:]):
        scanner.scan(b"".join(each.encode(CHANNEL) for each in part))
    assert scanner.taken() == expected(whole)


def test_priorities_in_turn_make_one_segment() -> None:
    scanner = Scanner()
    sent = [
        message("", "a", b"m", priority=bytes((number % 3,)), expiration=short(b"%d" % (number % 7)))
        for number in range(90)
    ]
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    assert [len(segment.contents) for segment in scanner.segments] == [90]
    assert len(scanner.segments[0].table) == 21
    assert scanner.taken() == expected(sent)


@pytest.mark.pure
@pytest.mark.parametrize("shuffled", [False, True])
def test_messages_whose_headers_came_before_take_no_call_each(shuffled: bool) -> None:
    sent = [message("", "a", b"%03d" % number, priority=bytes((number % 3,))) for number in range(900)]
    if shuffled:
        Random(1).shuffle(sent)
    scanner, data = Scanner(), b"".join(each.encode(CHANNEL) for each in sent)
    calls: list[str] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(called)
    try:
        scanner.scan(data)
    finally:
        sys.setprofile(None)
    assert len(calls) < 100
    assert scanner.taken() == expected(sent)


def test_messages_that_are_confirmed_in_another_way_are_in_another_segment() -> None:
    scanner = Scanner()
    sent = [message("", "a", b"m", delivery_mode=bytes((1 + number % 2,))) for number in range(4)]
    sent += [message("", "a", b"m" * size, priority=bytes((size % 255,))) for size in (1, 5_000, 1)]
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    assert [len(segment.contents) for segment in scanner.segments] == [1, 1, 1, 1, 1, 1, 1]
    assert scanner.taken() == expected(sent)


def test_segments_are_as_long_as_they_can_be() -> None:
    scanner = Scanner()
    one, two = message("", "a", b"1").encode(CHANNEL), message("", "bb", b"22").encode(CHANNEL)
    scanner.scan((one + two) * 10)
    assert [len(segment.contents) for segment in scanner.segments] == [20]


def test_messages_that_alternate_between_queues_are_gathered_by_queue() -> None:
    scanner = Scanner()
    three = [message("", "a", b"1"), message("x", "", b"2"), message("", "bb", b"3")]
    sent = three * 10
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    # A read continues where the one before ended.
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    assert [len(segment.contents) for segment in scanner.segments] == [40, 20]
    assert scanner.taken() == expected(sent + sent)


def test_no_queue_is_in_two_lanes() -> None:
    """Otherwise a queue would get messages in another order than that of their arrival."""
    scanner = Scanner()
    for route in scanner.routes.values():
        if route.head == short(b"x") + short(b""):
            route.targets = (*OTHER, Queue("one"))
    sent = [message("", "a", b"1"), message("x", "", b"2"), message("", "elsewhere", b"3")] * 3
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    assert [len(segment.contents) for segment in scanner.segments] == [1] * 9
    assert scanner.taken() == expected(sent)


def test_a_mix_that_is_handed_over_gets_no_more() -> None:
    scanner = Scanner()
    sent = [message("", "a", b"1"), message("x", "", b"2")]
    data = b"".join(each.encode(CHANNEL) for each in sent)
    scanner.scan(data)
    mix = scanner.segments[0].mix
    assert mix is not None
    mix.closed = True
    scanner.scan(data)
    assert [len(segment.contents) for segment in scanner.segments] == [1] * 4
    assert scanner.segments[2].mix is not mix


_alternating = st.lists(messages(targets=KEYS).filter(_fast), min_size=2, max_size=4).flatmap(
    lambda few: st.lists(st.sampled_from(few), min_size=8, max_size=40)
)


@given(_alternating, st.integers(0, 40))
def test_alternating_publishes_reach_each_queue_in_order(sent: list[Message], cut: int) -> None:
    scanner = Scanner()
    for part in (sent[:cut], sent[cut:]):
        data = b"".join(each.encode(CHANNEL) for each in part)
        assert scanner.scan(data)[0] == len(data)
    assert scanner.taken() == expected(sent)
    for queue in (*HOST, *OTHER):
        mine = [segment for segment in scanner.segments if queue in segment.route.targets]
        got = [each for segment in mine for each in scanner.of(segment)]
        names = [short(exchange) + short(key) for (exchange, key), hosts in HOSTS.items() if queue in hosts]
        assert got == [each for each in expected(sent) if each.head in names]


@pytest.mark.pure
def test_attributes_kept_are_bounded() -> None:
    publisher = Publisher(131_072, b"guest", 1 << 20)
    for ttl_ms in range(3 * Publisher.INTERNED_MAX):
        publisher.attributes(False, 0, ttl_ms, 1, False)
        assert len(publisher._interned) <= Publisher.INTERNED_MAX


def test_the_header_of_the_read_before_is_known_in_the_next() -> None:
    scanner = Scanner()
    publisher = scanner.publisher
    transient, persistent = (message("", "a", b"body", delivery_mode=mode) for mode in (b"\x01", b"\x02"))
    sent = [transient, transient, persistent, transient]
    known = []
    for each in sent:
        scanner.scan(each.encode(CHANNEL))
        known.append(publisher.last_header)
    assert scanner.taken() == expected(sent)
    # Only for the second message the header was not read.
    assert known[0] is not None and known[1] is known[0]
    assert known[2] is not known[1] and known[3] is not known[2]
    publisher.forget()
    assert publisher.last_header is None


def test_a_long_header_is_not_kept_for_the_next_read() -> None:
    scanner = Scanner()
    for count in (1, 4):
        scanner.publisher.forget()
        scanner.scan(
            message("", "a", b"body", headers=long(b"\x01aS" + long(b"x" * 200 * count))).encode(CHANNEL)
        )
        assert (scanner.publisher.last_header is None) is (count == 4)


@pytest.mark.pure
def test_shapes_kept_are_bounded() -> None:
    scanner = Scanner()
    data = b"".join(
        message(
            "", "a", b"", message_id=short(b"x" * (index % 200)), type=short(b"y" * (index // 200))
        ).encode(CHANNEL)
        for index in range(3_000)
    )
    scanner.scan(data)
    assert len(scanner.taken()) == 3_000
    assert len(scanner.publisher._shapes) <= Publisher.SHAPES_MAX


_VARIANTS: list[dict[str, bytes]] = [
    {"delivery_mode": b"\x01", "priority": b"\x00", "expiration": short(b"10"), "message_id": short(b"a")},
    {"delivery_mode": b"\x02", "priority": b"\x00", "expiration": short(b"10"), "message_id": short(b"b")},
    {"delivery_mode": b"\x01", "priority": b"\x07", "expiration": short(b"10"), "message_id": short(b"c")},
    {"delivery_mode": b"\x01", "priority": b"\x00", "expiration": short(b"99"), "message_id": short(b"d")},
]


def test_headers_of_one_length_that_mean_different_things() -> None:
    sent = [message("", "a", b"b", mandatory=False, **properties) for properties in _VARIANTS * 5]
    scanner = Scanner()
    scanner.scan(b"".join(each.encode(CHANNEL) for each in sent))
    assert scanner.taken() == expected(sent)


@pytest.mark.parametrize(
    ("good", "odd"),
    [
        ({"user_id": short(b"guest")}, {"user_id": short(b"other")}),
        ({"expiration": short(b"10")}, {"expiration": short(b"1x")}),
        ({"reply_to": short(b"abc.x")}, {"reply_to": short(b"amq.x")}),
        ({"headers": b"\0\0\0\x05\x02XYt\x01"}, {"headers": b"\0\0\0\x05\x02CCt\x01"}),
        ({"delivery_mode": b"\x02"}, {"delivery_mode": b"\x03"}),
    ],
)
def test_odd_header_behind_good_ones_of_its_length(good: dict[str, bytes], odd: dict[str, bytes]) -> None:
    scanner = Scanner()
    first = message("", "a", b"b", mandatory=False, **good).encode(CHANNEL) * 5
    assert scanner.scan(first + message("", "a", b"b", mandatory=False, **odd).encode(CHANNEL)) == (
        len(first),
        Outcome.SLOW,
    )
