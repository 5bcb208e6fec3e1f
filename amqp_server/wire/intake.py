"""Publishes out of raw bytes: the first hot loop.

Clients send the same few `basic.publish` frames again and again. The memo maps the exact bytes of such a
frame, its channel number included, to a `PublishRoute` that was decoded, checked and routed once. `take` then
walks the buffer by offset: while method frame and content header equal those of the previous message, a
message costs three comparisons and a slice.

A message that does not look exactly as expected stays in the buffer, and the outcome is SLOW: the slow path
decodes it with pamqp and finds the right error. So this file refuses nothing and answers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import pairwise
from typing import Any, Final, Protocol

from amqp_server.wire import confirm_level, shapes, tables
from amqp_server.wire.alternation import Alternation
from quorum_queue.machine.attributes import ATTRIBUTES, MAJORITY, PRIORITY_ZERO
from quorum_queue.machine.run import KINDS_MAX, Attributes

#: Class and weight in a content header's payload, and the upper half of the size of a body that fits a frame.
_BASIC: Final = b"\x00\x3c\x00\x00"
_SMALL: Final = bytes(4)
#: Consecutive different headers after which equal headers are not searched for a while.
VARIED: Final = 2
#: Different headers in one read after which a header is not looked for among those before it.
OTHERS_MAX: Final = 32
#: Bytes of headers that are walked property by property before the caller may do other work.
WALKED_MAX: Final = 16 * 1024
#: Messages that go to more queues are not collected in a mix.
MIXED_QUEUES_MAX: Final = 16
#: Frames up to this size pass to every consumer uncut (spec 4.2.3: frame-min-size).
SMALL_FRAME: Final = 4096

# Property flags (spec, class basic).
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 0x0800, 0x0400, 0x0200, 0x0100
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID, APP_ID, CLUSTER_ID = 0x0080, 0x0040, 0x0020, 0x0010, 0x0008, 0x0004
UNKNOWN_FLAGS = 0x0003
#: Properties behind `priority` that are short strings and mean nothing to the broker.
_PLAIN_TAIL = CORRELATION_ID | MESSAGE_ID | TIMESTAMP | TYPE | APP_ID | CLUSTER_ID


#: Memory of a shape without its two numbers, which are as long as the header, bytes.
SHAPE_BYTES: Final = 400
#: Longer headers are not kept from one read to the next.
LAST_BYTES_MAX: Final = 512


class Outcome(Enum):
    """Why `take` stopped."""

    #: The next frame is not a publish of this route, or enough was taken.
    OTHER = 0
    #: A message is not complete yet.
    MORE = 1
    #: A message needs the slow path.
    SLOW = 2


class Memo(Protocol):
    """Counts the memory of cached routes; see amqp_server.broker.memo."""

    def add(self, size: int) -> None: ...

    def clear(self) -> None: ...


class Resolver(Protocol):
    """Finds the route of each message of a publish frame."""

    def __call__(self, payload: bytes) -> PublishRoute | None:
        """Return the route of a message with this content header; None if the slow path has to find it. Tell
        the publisher if the next messages go the same way.
        """

    def passed(self, count: int) -> None:
        """So many messages went the same way as the last one."""


class PublishRoute:
    """Targets of the messages of one publish frame, for one generation of the topology."""

    __slots__ = (
        "channel",
        "counted",
        "exchange",
        "head",
        "key",
        "mandatory",
        "publisher",
        "resolve",
        "routing_key",
        "targets",
        "unchanged",
        "waits",
    )

    def __init__(
        self,
        *,
        key: bytes,
        channel: int,
        publisher: Any,
        exchange: str,
        routing_key: str,
        head: bytes,
        mandatory: bool,
        targets: tuple[Any, ...] = (),
        resolve: Resolver | None = None,
        counted: Any = None,
        waits: bool = False,
        unchanged: bool = False,
    ) -> None:
        #: The whole method frame.
        self.key = key
        self.channel = channel
        #: The channel object, opaque here.
        self.publisher = publisher
        self.exchange = exchange
        self.routing_key = routing_key
        #: Exchange and routing key as two short strings, as a delivery carries them.
        self.head = head
        self.mandatory = mandatory
        #: The exchange that counts the messages, opaque here.
        self.counted = counted
        #: True if messages that are to wait do so in every queue, whatever its declaration is.
        self.waits = waits
        #: True for messages that an operator takes from one queue to another: a queue may have had them
        #: before, and they are no duplicates.
        self.unchanged = unchanged
        #: The queues, opaque here. Their hosts are looked up when the messages are handed over.
        self.targets = targets
        #: If routing depends on the message, or takes long.
        self.resolve = resolve


#: In place of a time: the header that says how long the message waits is refused by queues that look at it.
WRONG: Final = -1


class Segment:
    """Consecutive messages of one read that go to the same queues.

    All have the head of `route`, unless `heads` has one for each message. All have the same attributes,
    unless `kinds` says which of `table` each message has; then `attributes` are those of the last one.
    """

    __slots__ = (
        "_places",
        "attributes",
        "contents",
        "group_header",
        "groups",
        "heads",
        "kinds",
        "lane",
        "mix",
        "place",
        "route",
        "waits",
        "waits_read",
    )

    def __init__(self, route: PublishRoute, attributes: Attributes) -> None:
        self.route = route
        self.attributes = attributes
        self.contents: list[bytes] = []
        self.heads: list[bytes] | None = None
        #: Attributes of messages as places in `table`; see `fill_kinds`.
        self.kinds: bytearray | None = None
        self._places: dict[Attributes, int] | None = None
        #: The place of the present attributes.
        self.place = 0
        #: Their groups, if they go to one queue and this has message groups, and the header these are from.
        self.groups: list[bytes] | None = None
        self.group_header = ""
        #: The mix of segments that it alternates with, and its number in the mix.
        self.mix: Mix | None = None
        self.lane = 0
        #: Until when each message waits in queues that let messages wait, ms of this node's queue time; 0 for
        #: not at all, WRONG if its header is refused there. None: no message waits. The first messages, if
        #: not all were looked at yet.
        self.waits: list[int] | None = None
        #: Number of messages whose headers were looked at for that.
        self.waits_read = 0

    @property
    def table(self) -> list[Attributes]:
        """The different attributes of its messages."""
        return [self.attributes] if self._places is None else list(self._places)

    def turns_to(self, attributes: Attributes) -> bool:
        """Let the next messages have these attributes; return False if they must be in another segment."""
        mine, places = self.attributes, self._places
        if attributes is mine:
            return True
        place = None if places is None or type(attributes) is not type(mine) else places.get(attributes)
        if place is None:
            place = self._new_place(attributes)
            if place < 0:
                return False
        self.fill_kinds()
        self.attributes, self.place = attributes, place
        return True

    def _new_place(self, attributes: Attributes) -> int:
        """Return the place of attributes that none of its messages has; -1 if it cannot have them."""
        if not self.may_turn_to(attributes):
            return -1
        if self._places is None:
            self._places, self.kinds = {self.attributes: 0}, bytearray()
        place = len(self._places)
        if place >= KINDS_MAX:
            return -1
        self._places[attributes] = place
        return place

    def may_turn_to(self, attributes: Attributes) -> bool:
        """True if messages with these attributes may be in one segment with the last one: they are confirmed
        in the same way, and none is large.
        """
        mine = self.attributes
        return attributes is mine or (
            attributes.persistent is mine.persistent
            and attributes.frame_bytes == mine.frame_bytes == SMALL_FRAME
            and type(attributes) is type(mine)
        )

    @property
    def stretches(self) -> int:
        """Number of runs that a queue gets in which the messages wait: neighbours with one time are one."""
        waits = self.waits
        return 1 if waits is None else 1 + sum([before != after for before, after in pairwise(waits)])

    def fill_kinds(self) -> None:
        """Let `kinds` have all messages."""
        kinds = self.kinds
        if kinds is not None:
            missing = len(self.contents) - len(kinds)
            if missing == 1:
                kinds.append(self.place)
            else:
                kinds += bytes((self.place,)) * missing

    def takes(self, route: PublishRoute) -> bool:
        """True if messages of `route` may be added to this segment, because they go to the same queues."""
        mine = self.route
        return (
            mine.targets is route.targets
            and mine.counted is route.counted
            and bool(route.targets)
            and mine.publisher is route.publisher
            # A message that is not mandatory may find no queue any more when it is handed over.
            and mine.mandatory is route.mandatory
        )

    def keep(self, count: int) -> None:
        """Keep only the first messages."""
        self.fill_kinds()
        del self.contents[count:]
        if self.heads is not None:
            del self.heads[count:]
        if self.kinds is not None:
            del self.kinds[count:]
        if self.waits is not None:
            del self.waits[count:]
        self.waits_read = min(self.waits_read, count)

    def join(self, later: Segment) -> None:
        """Take the messages of another read, with the same route and attributes. Neither segment may have a
        head, or attributes, for each message; for both, the waits of all messages were read.
        """
        if self.waits is not None or later.waits is not None:
            mine = self.waits or [0] * len(self.contents)
            self.waits = mine + (later.waits or [0] * len(later.contents))
        self.waits_read += later.waits_read
        self.contents += later.contents
        if self.groups is not None and later.groups is not None:
            self.groups += later.groups
        else:
            self.groups = None

    def groups_by(self, header: str) -> list[bytes] | None:
        """Return the groups of the messages by this header if they were read."""
        # A queue that was declared again may take its groups from another header.
        return self.groups if header == self.group_header else None

    def name_heads(self, head: bytes) -> None:
        """Give this head to all messages that have none of their own yet."""
        if self.heads is None:
            self.heads = []
        self.heads += [head] * (len(self.contents) - len(self.heads))


class Mix:
    """Messages that alternate between queues: one segment (lane) for each set of queues, instead of one for
    each message.

    No queue is in two lanes, so each queue gets its messages in order.
    """

    __slots__ = ("_by_route", "_by_targets", "_queues", "answers", "closed", "lanes", "turns")

    def __init__(self, first: Segment) -> None:
        self.lanes: list[Segment] = []
        self._by_route: dict[PublishRoute, Segment] = {}
        self._by_targets: dict[tuple[Any, ...], Segment] = {}
        self._queues: dict[str, None] = {}
        #: The order of arrival: pairs of a lane and the number of its messages after its turn.
        self.turns: list[int] = []
        #: True if lanes are being handed over: no message may be added.
        self.closed = False
        #: The object that answers for the messages, opaque here.
        self.answers: Any = None
        self._add(first, first.route)
        self.leave(first)

    @property
    def count(self) -> int:
        """Number of messages of all lanes."""
        return sum([len(lane.contents) for lane in self.lanes])

    def leave(self, lane: Segment) -> None:
        """The next message may belong to another lane."""
        self.turns.append(lane.lane)
        self.turns.append(len(lane.contents))

    def lane(self, route: PublishRoute, attributes: Attributes, segments: list[Segment]) -> Segment | None:
        """Return the lane for messages of `route`, which may be new; None if they must not be added to this
        mix.
        """
        first = self.lanes[0]
        if self.closed or not first.may_turn_to(attributes) or first.route.publisher is not route.publisher:
            return None
        lane = self._by_route.get(route)
        if lane is None:
            lane = self._find(route, attributes)
            if lane is None:
                return None
            if not lane.contents:
                segments.append(lane)
        if not lane.turns_to(attributes):
            return None
        if lane.heads is None and lane.route is not route and lane.route.head != route.head:
            lane.name_heads(lane.route.head)
        return lane

    def _find(self, route: PublishRoute, attributes: Attributes) -> Segment | None:
        targets = route.targets
        if not targets or len(targets) > MIXED_QUEUES_MAX:
            return None
        lane = self._by_targets.get(targets)
        if lane is not None and lane.takes(route):
            self._by_route[route] = lane
            return lane
        # Compared by name: of two queues with one name, the one that exists at the handover gets the
        # messages.
        for target in targets:
            if target.name in self._queues:
                return None
        lane = Segment(route, attributes)
        self._add(lane, route)
        return lane

    def _add(self, lane: Segment, route: PublishRoute) -> None:
        lane.mix, lane.lane = self, len(self.lanes)
        self.lanes.append(lane)
        self._by_route[route] = lane
        self._by_targets[route.targets] = lane
        for target in route.targets:
            self._queues[target.name] = None


class LastHeader:
    """A content header with the frame header of its body, and the attributes that were found in it."""

    __slots__ = ("attributes", "framed", "header_bytes", "stride")

    def __init__(self, framed: bytes, stride: int, header_bytes: int, attributes: Attributes) -> None:
        self.framed = framed
        #: Bytes of all content frames of the message.
        self.stride = stride
        #: Bytes of the content header's payload.
        self.header_bytes = header_bytes
        self.attributes = attributes


class Shape:
    """What content headers of one size have in common, and the attributes by what decides in them."""

    __slots__ = ("mask", "variants")

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.variants: dict[int, Attributes] = {}


class Publisher:
    """The state of a connection for the scanner."""

    __slots__ = (
        "_interned",
        "_kept",
        "_memo",
        "_misses",
        "_shapes",
        "ahead",
        "cut",
        "frame_max",
        "knows_levels",
        "last_header",
        "message_bytes_max",
        "table_depth_max",
        "username",
    )

    #: Maximum number of cached attribute tuples; expirations may all differ.
    INTERNED_MAX = 1024
    #: Maximum number of cached headers, of all shapes, and of those learnt in vain before learning stops.
    SHAPES_MAX = 1024
    MISSES_MAX = 4096
    #: Longer headers are walked each time.
    SHAPE_BYTES_MAX = 2048

    def __init__(
        self,
        frame_max: int,
        username: bytes,
        message_bytes_max: int,
        table_depth_max: int = tables.DEPTH_MAX,
        memo: Memo | None = None,
    ) -> None:
        self._memo = memo
        self.frame_max = frame_max
        self.username = username
        self.message_bytes_max = message_bytes_max
        self.table_depth_max = table_depth_max
        #: True if the slow path has found that all nodes know x-confirm.
        self.knows_levels = False
        #: True if the turn was over after the last message was routed: the next message belongs to another
        #: turn.
        self.cut = False
        #: How many of the next messages of the same publish frame go the way of the one that was just routed.
        self.ahead = 0
        self._interned: dict[tuple[Any, ...], Attributes] = {}
        #: By size, flags and channel of a content header.
        self._shapes: dict[int, Shape] = {}
        self._kept = self._misses = 0
        #: The header of the previous read: clients that send one message at a time send the same header
        #: again.
        self.last_header: LastHeader | None = None

    def properties(
        self, data: bytes, offset: int, end: int, flags: int, channel: int, large: bool
    ) -> tuple[Attributes | None, int]:
        """Return the attributes of the properties in data[offset:end], which begin with the flags; None if
        the slow path must look at them.

        Also return the mask of the deciding bits in these bytes, 0 if it is not known.

        Headers that differ only in the values of ids, times and texts have the same shape: lengths, field
        names and types, delivery mode and everything else that decides are at the same offsets. One masked
        comparison finds that.
        """
        key = ((end - offset) << 32 | flags << 16 | channel) << 1 | large
        shape = self._shapes.get(key)
        if shape is not None:
            known = shape.variants.get(int.from_bytes(data[offset:end], "big") & shape.mask)
            if known is not None:
                return known, shape.mask
        attributes = self.scan(data, offset + 2, end, flags, channel, large)
        size = end - offset
        if attributes is None or self._misses >= self.MISSES_MAX or size > self.SHAPE_BYTES_MAX:
            return attributes, 0
        self._misses += 1
        if self._kept >= self.SHAPES_MAX:
            self.forget()
            shape = None
        mask = shapes.mask(data[offset:end], flags)
        if shape is None or shape.mask != mask:
            # Fields of other lengths: what was known of this size is forgotten.
            self._kept -= 0 if shape is None else len(shape.variants)
            shape = self._shapes[key] = Shape(mask)
        shape.variants[int.from_bytes(data[offset:end], "big") & mask] = attributes
        self._kept += 1
        if self._memo is not None:
            self._memo.add(SHAPE_BYTES + 2 * size)
        return attributes, mask

    def remember(self, header: LastHeader) -> None:
        """Look for this header first in the next read."""
        fresh = self.last_header is None
        self.last_header = header
        if fresh and self._memo is not None:
            self._memo.add(LAST_BYTES_MAX)

    def forget(self) -> None:
        """Forget the shapes of headers."""
        self.last_header = None
        self._shapes.clear()
        self._kept = 0
        if self._memo is not None:
            self._memo.clear()

    def attributes(
        self,
        persistent: bool,
        priority: int,
        ttl_ms: int | None,
        channel: int,
        large: bool,
        level: int = MAJORITY,
    ) -> Attributes:
        """Return the shared tuple for these values."""
        key = (persistent, priority, ttl_ms, channel, large, level)
        attributes = self._interned.get(key)
        if attributes is None:
            if len(self._interned) >= self.INTERNED_MAX:
                self._interned.clear()
            frame_bytes = self.frame_max if large else SMALL_FRAME
            attributes = ATTRIBUTES[level](persistent, priority, ttl_ms, channel, frame_bytes)
            self._interned[key] = attributes
        return attributes

    def scan(
        self, data: bytes, offset: int, end: int, flags: int, channel: int, large: bool
    ) -> Attributes | None:
        """Walk the properties in data[offset:end]; return None if the slow path must look at them."""
        level = MAJORITY
        try:
            if flags & CONTENT_TYPE:
                offset += data[offset] + 1
            if flags & CONTENT_ENCODING:
                offset += data[offset] + 1
            if flags & HEADERS:
                start = offset
                offset = tables.check(data, offset, end, self.table_depth_max)
                if data.find(b"CC", start, offset) >= 0:
                    return None
                if data.find(confirm_level.FIELD, start, offset) >= 0:
                    level = confirm_level.of_table(data, start, offset)
                    if level == confirm_level.UNKNOWN or not self.knows_levels:
                        return None
            persistent = False
            if flags & DELIVERY_MODE:
                if data[offset] not in (1, 2):
                    return None
                persistent = data[offset] == 2
                offset += 1
            priority = 0
            if flags & PRIORITY:
                priority = data[offset] or PRIORITY_ZERO
                offset += 1
            ttl_ms: int | None = None
            if flags & (_PLAIN_TAIL | REPLY_TO | EXPIRATION | USER_ID):
                if flags & CORRELATION_ID:
                    offset += data[offset] + 1
                if flags & REPLY_TO:
                    after = offset + data[offset] + 1
                    if data.startswith(b"amq.", offset + 1):
                        return None
                    offset = after
                if flags & EXPIRATION:
                    after = offset + data[offset] + 1
                    digits = data[offset + 1 : after]
                    if not digits.isdigit() or len(digits) > 9:
                        return None
                    ttl_ms = int(digits)
                    offset = after
                if flags & MESSAGE_ID:
                    offset += data[offset] + 1
                if flags & TIMESTAMP:
                    offset += 8
                if flags & TYPE:
                    offset += data[offset] + 1
                if flags & USER_ID:
                    after = offset + data[offset] + 1
                    if data[offset + 1 : after] != self.username:
                        return None
                    offset = after
                if flags & APP_ID:
                    offset += data[offset] + 1
                if flags & CLUSTER_ID:
                    offset += data[offset] + 1
        except (IndexError, tables.TableError):
            return None
        if offset != end or flags & UNKNOWN_FLAGS:
            return None
        return self.attributes(persistent, priority, ttl_ms, channel, large, level)


def take(
    data: bytes,
    pos: int,
    end: int,
    route: PublishRoute,
    routes: Mapping[bytes, PublishRoute],
    publisher: Publisher,
    segments: list[Segment],
) -> tuple[int, Outcome, PublishRoute]:
    """Take the publishes at `pos`, the first of which has this route's frame, into `segments`.

    Continue with other known routes of the same channel. Return the offset of the first byte not taken, the
    reason to stop, and the route of the last message.
    """
    key = route.key
    key_bytes = len(key)
    channel = route.channel
    startswith = data.startswith
    # What header and body frames of the channel begin with.
    header_mark, body_mark = b"\x02" + channel.to_bytes(2, "big"), b"\x03" + channel.to_bytes(2, "big")
    body_max = publisher.frame_max - 8
    segment: Segment | None = None
    target: PublishRoute | None = None
    # The content header of the previous message with its body's frame header, and the values found in it.
    template = b""
    stride = header_bytes = mask = decisive = 0
    # Attributes by the deciding bits, of headers with this mask.
    variants: dict[int, Attributes] = {}
    variants_mask = 0
    # The same by whole headers, as long as few different ones come, and how many others have come.
    same: dict[bytes, Attributes] = {}
    others = 0
    # Number of consecutive headers that had the same shape but were not equal.
    varied = 0
    # Bytes of headers that were walked property by property.
    walked = 0
    attributes: Attributes | None = None
    # Those of this segment, key and stride that came in turn; None: none did.
    alternation: Alternation | None = None
    # Messages that go the way of the last one that was routed by itself: all of them, and those left.
    granted = ahead = 0
    last = publisher.last_header
    # Behind this channel's publish frame may come a header of another channel.
    if last is not None and last.framed.startswith(header_mark):
        template, stride, header_bytes = last.framed, last.stride, last.header_bytes
        attributes = last.attributes
    while True:
        at = pos + key_bytes
        fits = False
        if template and startswith(template, at):
            varied = 0
            fits = True
        elif mask:
            header = data[at : at + len(template)]
            found = same.get(header) if others < OTHERS_MAX else None
            if found is not None:
                # Its deciding bits are not needed if it comes again.
                template, attributes, decisive, varied, fits = header, found, -1, VARIED, True
            else:
                others += 1
                decides = int.from_bytes(header, "big") & mask
                if decides == decisive:
                    varied += 1
                    fits = True
                elif decides in variants:
                    template, decisive, attributes = header, decides, variants[decides]
                    varied += 1
                    fits = True
                    same[header] = attributes
        if fits:
            after = at + stride
        else:
            if walked > WALKED_MAX:
                outcome = Outcome.OTHER
                break
            if at + 22 > end:
                outcome = Outcome.MORE if _may_be_header(data, at, end, channel, body_max) else Outcome.SLOW
                break
            # Compiled code reads single bytes fast; what struct returns are objects.
            size = data[at + 3] << 24 | data[at + 4] << 16 | data[at + 5] << 8 | data[at + 6]
            if not (startswith(header_mark, at) and startswith(_BASIC, at + 7) and 14 <= size <= body_max):
                outcome = Outcome.SLOW
                break
            body_size = data[at + 15] << 24 | data[at + 16] << 16 | data[at + 17] << 8 | data[at + 18]
            if body_size > body_max or not startswith(_SMALL, at + 11):
                outcome = Outcome.SLOW
                break
            flags = data[at + 19] << 8 | data[at + 20]
            body_at = at + size + 8
            if body_at > end:
                outcome = Outcome.MORE
                break
            if data[body_at - 1] != 0xCE or body_size > publisher.message_bytes_max:
                outcome = Outcome.SLOW
                break
            if body_size:
                after = body_at + 8 + body_size
                if body_at + 7 > end:
                    outcome = Outcome.MORE
                    break
                if not (startswith(body_mark, body_at) and startswith(data[at + 15 : at + 19], body_at + 3)):
                    outcome = Outcome.SLOW
                    break
                tail_bytes = 8
            else:
                after = body_at
                tail_bytes = 1
            walked += size
            attributes, mask = publisher.properties(
                data,
                at + 19,
                body_at - 1,
                flags,
                channel,
                size > SMALL_FRAME - 8 or body_size > SMALL_FRAME - 8,
            )
            if attributes is None:
                outcome = Outcome.SLOW
                break
            template = data[at : body_at - 1 + tail_bytes]
            if stride == after - at and header_bytes == size:
                if mask:
                    mask = shapes.framed(mask, size - 12, tail_bytes)
                    decisive = int.from_bytes(template, "big") & mask
                    if mask != variants_mask:
                        variants, variants_mask = {}, mask
                        same = {}
                    variants[decisive] = same[template] = attributes
            else:
                # Where sizes differ, the next message has another one, and no comparison finds it.
                mask = variants_mask = 0
                alternation = None
                if stride:
                    varied += 1
                stride, header_bytes = after - at, size
        if after > end:
            outcome = Outcome.MORE
            break
        if data[after - 1] != 0xCE:
            outcome = Outcome.SLOW
            break
        assert attributes is not None
        to = route
        resolve = route.resolve
        if resolve is not None:
            if ahead and target is not None:
                ahead -= 1
                to = target
            else:
                if granted:
                    resolve.passed(granted)
                publisher.ahead = granted = ahead = 0
                resolved = resolve(data[at + 7 : at + 7 + header_bytes])
                if resolved is None:
                    outcome = Outcome.SLOW
                    break
                to = resolved
                granted = ahead = publisher.ahead
        if to is not target or segment is None or not segment.turns_to(attributes):
            segment = _switch(segments, segment, target, to, attributes)
            target = to
            alternation = None
        append = segment.contents.append
        append(data[at:after])
        pos = after
        again = startswith(key, pos)
        if resolve is not None and publisher.cut:
            publisher.cut = False
            outcome = Outcome.OTHER
            break
        if again and varied < VARIED and (resolve is None or ahead):
            # Messages exactly like this one except for their bodies.
            whole = key + template
            whole_bytes = stride + key_bytes
            before, stop = pos, end if resolve is None else min(end, pos + ahead * whole_bytes)
            while startswith(whole, pos):
                after = pos + whole_bytes
                if after > stop or data[after - 1] != 0xCE:
                    break
                append(data[pos + key_bytes : after])
                pos = after
            if resolve is not None:
                ahead -= (pos - before) // whole_bytes
            again = startswith(key, pos)
        kinds = segment.kinds
        if again and kinds is not None and resolve is None and others < OTHERS_MAX:
            if alternation is None:
                alternation = Alternation()
            alternation.note(key, template, attributes, segment.place)
            segment.fill_kinds()
            before = pos
            pos = alternation.take(data, pos, end, key_bytes, stride, segment.contents, kinds)
            if pos > before:
                template, attributes = alternation.template, alternation.attributes
                segment.attributes, segment.place = attributes, alternation.place
                decisive, varied = -1, VARIED
                again = startswith(key, pos)
        if again:
            continue
        following = _next_key(data, pos, end, body_max)
        known = routes.get(following)
        if known is None or known.publisher is not route.publisher:
            outcome = Outcome.OTHER
            break
        if granted and route.resolve is not None:
            route.resolve.passed(granted - ahead)
            granted = ahead = 0
        route, key, alternation = known, following, None
        key_bytes = len(key)
    if granted and route.resolve is not None:
        route.resolve.passed(granted - ahead)
    if segment is not None and target is not None:
        _leave(segment, target)
    if walked and attributes is not None and len(template) <= LAST_BYTES_MAX:
        publisher.remember(LastHeader(template, stride, header_bytes, attributes))
    return pos, outcome, route


def _leave(segment: Segment, route: PublishRoute) -> None:
    """The last messages of the segment were of `route`, and the next may belong to another route."""
    if segment.heads is not None:
        segment.name_heads(route.head)
    if segment.mix is not None:
        segment.mix.leave(segment)


def _switch(
    segments: list[Segment],
    segment: Segment | None,
    before: PublishRoute | None,
    route: PublishRoute,
    attributes: Attributes,
) -> Segment:
    """Return the segment for messages of `route`: the last one if they fit, another one of its mix, or a new
    one.
    """
    mix: Mix | None = None
    if segment is None:
        if segments:
            segment = segments[-1]
            mix = segment.mix
            if mix is None:
                if segment.heads is None and segment.route is route and segment.turns_to(attributes):
                    return segment
                if segment.takes(route) and segment.turns_to(attributes):
                    segment.name_heads(segment.route.head)
                    return segment
    elif before is not None:
        mix = segment.mix
        if mix is None and segment.takes(route) and segment.turns_to(attributes):
            segment.name_heads(before.head)
            return segment
        _leave(segment, before)
    lane: Segment | None = None
    if mix is not None:
        lane = mix.lane(route, attributes, segments)
    elif (
        segment is not None
        and segment.may_turn_to(attributes)
        and segment.route.publisher is route.publisher
        and 0 < len(segment.route.targets) <= MIXED_QUEUES_MAX
    ):
        mix = Mix(segment)
        lane = mix.lane(route, attributes, segments)
        if lane is None:
            segment.mix = None
    if lane is not None:
        return lane
    segment = Segment(route, attributes)
    segments.append(segment)
    return segment


def _may_be_header(data: bytes, at: int, end: int, channel: int, size_max: int) -> bool:
    """True if the available bytes at `at` may be the beginning of a content header of this channel."""
    if at >= end:
        # The taken bytes, which are a part of the received ones, may end within the publish frame.
        return True
    known = min(end - at, 3)
    if data[at : at + known] != (b"\x02" + channel.to_bytes(2, "big"))[:known]:
        return False
    return end - at < 7 or 14 <= int.from_bytes(data[at + 3 : at + 7], "big") <= size_max


def _next_key(data: bytes, pos: int, end: int, frame_bytes_max: int) -> bytes:
    """Return the publish frame at `pos`, b"" if there is none or if it is incomplete."""
    if end - pos < 12 or not data.startswith(_PUBLISH, pos + 7) or data[pos] != 1:
        return b""
    after = pos + 8 + int.from_bytes(data[pos + 3 : pos + 7], "big")
    if after > end or after - pos > frame_bytes_max:
        return b""
    return data[pos:after]


_PUBLISH: Final = b"\x00\x3c\x00\x28"
