"""Reads bytes from one client: they become frames, and runs of publishes and acks become commands.

The buffer is walked by offset and trimmed once. Publishes and acks, which are nearly all frames, go to
`wire.intake` and `wire.acks` in runs; other content is assembled here frame by frame; the session handles all
other frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pamqp import commands

from amqp_server.broker.awaited import Awaited
from amqp_server.broker.memo import Memo
from amqp_server.channel import publish
from amqp_server.channel.assembly import LARGE_BODY_BYTES, Assembly
from amqp_server.channel.channel import Channel
from amqp_server.channel.delays import read_waits
from amqp_server.channel.unfinished_count import Unfinished
from amqp_server.connection.frame_errors import expected, first_octets, octets
from amqp_server.connection.state import State
from amqp_server.errors import (
    AMQPError,
    FrameError,
    HardError,
    PreconditionFailed,
    ResourceError,
    SoftError,
    UnexpectedFrame,
)
from amqp_server.wire import acks, frames, intake, methods
from amqp_server.wire.intake import Outcome, Publisher, PublishRoute, Segment
from amqp_server.wire.stamps import stamps_of

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Target
    from amqp_server.config import Config
    from amqp_server.connection.session import Session

#: Body frames from this size on are taken piece by piece, before they are complete.
LARGE_FRAME = 16 * 1024
#: A piece of a body that is a smaller part of a read than this is copied out of the read.
PIECE_SHARE = 4

#: Room for the frames of a message beside its body.
FRAMES_ROOM_BYTES = 1 << 20
#: Bytes of publishes that are taken before the turn may end. A larger message is taken with the messages
#: behind it.
TAKEN_BYTES = 128 * 1024
#: Acks that are taken before the turn may end.
ACKS_MAX = 1024
#: Memory of a route without its names, and of a tuple of targets without the targets, bytes.
ROUTE_BYTES, TARGETS_BYTES = 600, 200

#: Bytes assumed to come before tx.commit: as much as the kernel may keep on both sides of a socket.
TX_BYTES_BEFORE_COMMIT = 16 * 1024 * 1024

KINDS = (frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT)
_PUBLISH = b"\x00\x3c\x00\x28"
_ACKS = (acks.ACK, acks.REJECT, acks.NACK)
#: Methods that no answer follows at once.
_UNANSWERED = (_PUBLISH, *_ACKS)
#: Also connection.update-secret, as an alarm may outlast a token.
_PASS_WHILE_BLOCKED = (*_UNANSWERED, b"\x00\x0a\x00\x46")


class Incoming:
    """The reading half of a session."""

    __slots__ = (
        "_after",
        "_body_channel",
        "_body_left",
        "_closing",
        "_cut",
        "_error",
        "_generation",
        "_held_bytes",
        "_keys",
        "_making_bytes",
        "_session",
        "_stamps",
        "_tail",
        "_targets",
        "_wide",
        "blocked",
        "_memo",
        "_pass_bytes",
        "_passed",
        "broker",
        "config",
        "congested",
        "published",
        "publisher",
        "received_bytes",
        "received_count",
        "routes",
        "segments",
        "stalled",
        "unfinished",
    )
    #: For mypyc; see `end`.
    __deletable__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session
        self.broker = session.broker
        self.config = session.config
        self.publisher = Publisher(
            session.limits.frame_max,
            b"",
            self.config.message_bytes_max,
            self.config.table_depth_max,
            Memo(session.broker.memo),
        )
        config = self.config
        #: What the node writes into messages that arrive.
        self._stamps = stamps_of(
            config.incoming_timestamp, config.incoming_routing_node, config.node, config.table_depth_max
        )
        self.received_bytes = 0
        #: Reads that brought bytes.
        self.received_count = 0
        self.unfinished = Unfinished()
        self._tail = b""
        #: Offset behind the frame that is being handled.
        self._after = 0
        #: True if the turn was over before all frames were handled.
        self._cut = False
        #: Errors from an earlier turn: they close a channel, or the connection, as soon as earlier publishes
        #: are handed over.
        self._closing: tuple[Channel, SoftError, tuple[int, int]] | None = None
        self._error: AMQPError | None = None
        #: Missing bytes of a large body frame, and its channel.
        self._body_left = 0
        self._body_channel: Channel | None = None
        #: The memo: publish frames to routes, as of one generation of the topology.
        self.routes: dict[bytes, PublishRoute] = {}
        #: The keys of routes by channel.
        self._keys: dict[Channel, list[bytes]] = {}
        #: One tuple for each combination of queues that routes lead to.
        self._targets: dict[tuple[Target, ...], tuple[Target, ...]] = {}
        #: Counts the bytes of both, and of the routes' own memos.
        self._memo = Memo(session.broker.memo)
        self._generation = session.broker.generation
        #: Messages that were published and not yet handed to the queues.
        self.segments: list[Segment] = []
        #: The hand-over to many queues in progress.
        self._wide: Iterator[object] | None = None
        #: Bytes of large messages that are being encoded for their queues.
        self._making_bytes = 0
        #: True if the client has published anything.
        self.published = False
        #: True if connection.blocked was sent: while an alarm is raised, publishes are held back.
        self.blocked = False
        self._held_bytes = 0
        #: Bytes that may be published in spite of an alarm, to finish messages; and whether they were
        #: published.
        self._pass_bytes = 0
        self._passed = False
        #: True if too much is held back: read nothing more until the alarm is cleared.
        self.stalled = False
        #: True if the rest of a read waits until the client has taken answers, because one read may ask for
        #: any number of messages.
        self.congested = False

    def receive(self, data: bytes) -> None:
        """Handle bytes from the client. Errors in them become close methods."""
        self.received_bytes += len(data)
        self.received_count += 1
        position = 0
        if self._body_left:
            position = self._more_body(data)
            if position == len(data):
                return
        self._handle(self._tail + data if self._tail else data, position)

    def _more_body(self, data: bytes) -> int:
        """Add received bytes to an incomplete body frame; return the offset behind them."""
        channel = self._body_channel
        assembly = channel.assembly if channel is not None else None
        taken = min(self._body_left, len(data))
        self._body_left -= taken
        if assembly is None:
            return taken
        assembly.add(_piece(data, 0, taken))
        if self._holds:
            self._hold(taken)
        try:
            self._check_unfinished()
            if self._body_left:
                return taken
            self._body_channel = None
            if data[taken - 1] != frames.END:
                raise FrameError(f"type 3: {{invalid_frame_end_marker,{data[taken - 1]}}}")
            assert channel is not None
            if assembly.received == assembly.body_size:
                channel.assembly = None
                self._assembled(channel, assembly)
        except AMQPError as error:
            self.flush(release=True)
            self._session.fail(error, (0, 0))
            return len(data)
        if taken == len(data) and not self.flush_segments():
            self._session.go_on_later()
        return taken

    def _begin_body(self, data: bytes, pos: int, number: int, size: int, end: int) -> bool:
        """Take the beginning of an incomplete large body frame; False if the frame is unexpected."""
        channel = self._session.channels.get(number)
        assembly = channel.assembly if channel is not None and not channel.closing else None
        if assembly is None or assembly.header is None or assembly.received + size > assembly.body_size:
            return False
        assembly.received += size
        assembly.oversized = assembly.oversized or size + frames.OVERHEAD > self._session.limits.frame_max
        assembly.add(_piece(data, pos, end))
        if self._holds:
            self._hold(end - pos)
        self._body_left = pos + size + frames.OVERHEAD - end
        self._body_channel = channel
        return True

    def _large_bodies(self, data: bytes, pos: int, number: int, end: int) -> int:
        """Take the large body frames of one message at `pos` without a copy; return the offset behind them,
        `pos` if the first one is unexpected.
        """
        channel = self._session.channels.get(number)
        assembly = channel.assembly if channel is not None and not channel.closing else None
        if channel is None or assembly is None or assembly.header is None:
            return pos
        begin, largest = pos, self._session.limits.frame_max - frames.OVERHEAD
        while end - pos >= 7:
            kind, of, size = frames.prefix.unpack_from(data, pos)
            after = pos + size + frames.OVERHEAD
            if (
                kind != frames.BODY
                or of != number
                or not LARGE_FRAME <= size <= largest
                or after > end
                or data[after - 1] != frames.END
                or assembly.received + size > assembly.body_size
            ):
                # The slow path reports its error.
                break
            assembly.received += size
            pos = self._after = after
        if pos == begin:
            return pos
        if self._holds:
            self._hold(pos - begin)
        assembly.add(_piece(data, begin, pos))
        if assembly.received == assembly.body_size:
            channel.assembly = None
            self._assembled(channel, assembly)
        else:
            self._check_unfinished()
        return pos

    def go_on(self) -> None:
        """Handle the buffer: the login is done, an answer has arrived, or an alarm was cleared."""
        self._handle(self._tail)

    @property
    def is_idle(self) -> bool:
        """True if everything that the client has sent is handled, and nothing is held back."""
        return not (
            self._tail
            or self._body_left
            or self.segments
            or self._wide is not None
            or self._closing is not None
            or self._error is not None
            or self._making_bytes
            or self._held_bytes
            or self.blocked
            or self.stalled
            or self.congested
        )

    @property
    def backlogged(self) -> bool:
        """True if reading must stop, because much has arrived behind a method that waits for its answer."""
        return len(self._tail) > self.config.suspended_input_bytes_max

    def _handle(self, data: bytes, position: int = 0) -> None:
        """Handle the frames in data[position:]."""
        if self._session.suspended is not None:
            self._tail = data[position:]
            return
        self.congested = False
        try:
            if (self.segments or self._wide is not None) and not self.flush_segments():
                return self._leave(data, position)
            if self._closing is not None:
                closing, self._closing = self._closing, None
                self._session.close_channel(*closing)
            if self._error is not None:
                raise self._error
            if self._session.state is State.HEADER:
                position = self._session.protocol_header(data)
            position = self._frames(data, position)
        except AMQPError as error:
            if not self.flush_segments():
                # First hand over the messages published before the error.
                self._error = error
                return self._leave(data, position)
            self._error = None
            self.flush(release=True)
            self._session.fail(error, (0, 0))
            position = self._rest(data, error)
        self._tail = data[position:] if self._session.state is not State.CLOSED else b""
        self.flush_segments()
        left = (self.segments or self._wide is not None) and not self._held_bytes
        if self._cut or self._closing is not None or left:
            self._cut = False
            self._session.go_on_later()

    def _leave(self, data: bytes, position: int) -> None:
        """The turn is over: keep data[position:] for a later turn."""
        self._tail = data[position:]
        self._after -= position
        self._session.go_on_later()

    def _rest(self, data: bytes, error: AMQPError) -> int:
        """Look for a connection.close of the client behind the error, if frames can still be delimited."""
        if isinstance(error, FrameError):
            return len(data)
        try:
            return self._frames(data, self._after)
        except AMQPError:
            return len(data)

    def _frames(self, data: bytes, pos: int) -> int:
        """Handle the whole frames in data[pos:]; return the offset of the first byte left."""
        end = len(data)
        unpack = frames.prefix.unpack_from
        fast = self.config.switch_fast_path
        # A message that is changed is taken frame by frame.
        fast_publish = fast and self._stamps is None
        outbox = self._session.outbox
        full_bytes = 2 * outbox.high_bytes
        overdue = self._session.turn.overdue
        begin = pos
        while end - pos >= 7 and not self.stalled and self._closing is None:
            if pos != begin and overdue():
                self._cut = True
                break
            state = self._session.state
            if state is State.CLOSED or state is State.AUTHENTICATING or state is State.HEADER:
                break
            kind, number, size = unpack(data, pos)
            # RabbitMQ accepts 8 bytes more than its text says, and clients rely on that.
            frame_max = self._session.limits.frame_max
            if size > frame_max:
                raise FrameError(octets(data, pos, size, f"{{frame_too_large,{size},{frame_max - 8}}}"))
            after = self._after = pos + size + frames.OVERHEAD
            if after > end:
                if kind not in KINDS:
                    raise FrameError(first_octets(data, pos, "unknown_frame"))
                if (
                    kind == frames.BODY
                    and size >= LARGE_FRAME
                    and self._begin_body(data, pos, number, size, end)
                ):
                    return end
                break
            if data[after - 1] != frames.END:
                raise FrameError(octets(data, pos, size, f"{{invalid_frame_end_marker,{data[after - 1]}}}"))
            if state is State.RUNNING and kind == frames.METHOD and number:
                signature = data[pos + 7 : pos + 11]
                if signature == _PUBLISH and fast_publish:
                    channel = self._session.channels.get(number)
                    if channel is not None and channel.assembly is None and not channel.closing:
                        taken = self._publishes(data, pos, after, end, channel)
                        if taken is None:
                            break
                        pos = taken
                        continue
                elif signature in _ACKS and fast:
                    channel = self._session.channels.get(number)
                    if channel is not None and channel.assembly is None and not channel.closing:
                        taken = self._acks(data, pos, end, channel)
                        if taken > pos:
                            pos = taken
                            if self._session.suspended is not None:
                                break
                            continue
            if kind == frames.BODY and size >= LARGE_FRAME:
                taken = self._large_bodies(data, pos, number, end)
                if taken > pos:
                    pos = taken
                    if self._session.suspended is not None:
                        break
                    continue
            if kind == frames.METHOD:
                if not self.flush_segments():
                    self._cut = True
                    break
                if self._held_bytes and self._must_wait(data, pos):
                    self.stalled = True
                    break
                if number and not self._applied(data[pos + 7 : pos + 11]):
                    self._cut = True
                    break
            self._session.frame(kind, number, data[pos + 7 : after - 1], data[pos:after])
            pos = after
            if self._session.suspended is not None:
                break
            if outbox.size > full_bytes and state is State.RUNNING:
                self.congested = True
                break
        return pos

    def _applied(self, signature: bytes) -> bool:
        """Apply everything sent before a method, because the method's answer must include its effects; return
        False if the turn is over first.

        Not for acks, rejects and nacks, which have no answer: like publishes, the fast path does not apply
        them either.
        """
        turn = self._session.turn
        if not turn.scheduled or signature in _UNANSWERED:
            return True
        return turn.part(turn.apply)

    def _publishes(self, data: bytes, pos: int, after: int, end: int, channel: Channel) -> int | None:
        """Take the publishes at `pos`; None if the next one is not complete."""
        if self._generation != self.broker.generation:
            self.forget_old_routes()
        key = data[pos:after]
        route = self.routes.get(key)
        if route is None:
            if not self.flush_segments():
                self._cut = True
                return None
            route = self._new_route(key, channel)
            if route is None:
                # Read the frame again when the permission is known.
                return after if self._session.suspended is None else None
        begin = pos
        stop = min(end, pos + TAKEN_BYTES)
        pos, outcome, route = intake.take(data, pos, stop, route, self.routes, self.publisher, self.segments)
        if outcome is Outcome.MORE and stop < end:
            if pos != begin:
                outcome = Outcome.OTHER
            else:
                pos, outcome, route = intake.take(
                    data, pos, end, route, self.routes, self.publisher, self.segments
                )
        if pos != begin and (self._held_bytes or self.broker.alarms.active):
            self._hold(pos - begin)
        if outcome is Outcome.OTHER:
            return pos
        if outcome is Outcome.MORE:
            return None if pos == begin else pos
        channel.assembly = Assembly(route)
        return pos + len(route.key)

    def _new_route(self, key: bytes, channel: Channel) -> PublishRoute | None:
        """Decode, check and route a publish frame not seen before; None if that closed the channel, or has to
        wait.
        """
        # A frame that cannot be decoded is reported without a method's name.
        method = methods.decode(key[7:-1])
        assert isinstance(method, commands.Basic.Publish)
        try:
            return self._make_route(key, channel, method)
        except Awaited as awaited:
            self._session.wait(awaited, channel, (60, 40), partial(self._route_again, key, channel, method))
            return None
        except SoftError as error:
            self._session.close_channel(channel, error, (60, 40))
            return None
        except HardError as error:
            error.method = (60, 40)
            raise

    def _route_again(self, key: bytes, channel: Channel, method: commands.Basic.Publish) -> None:
        self._make_route(key, channel, method)

    def _make_route(self, key: bytes, channel: Channel, method: commands.Basic.Publish) -> PublishRoute:
        route = publish.make_route(channel, key, method)
        if len(self.routes) >= self.config.memo_entries_max:
            self._forget_routes()
        self.routes[key] = route
        self._keys.setdefault(channel, []).append(key)
        # Counts the frame, its decoded names, and the objects around them.
        self._memo.add(ROUTE_BYTES + 3 * len(key))
        return route

    def remembered(self, size: int) -> None:
        """Count bytes that a route itself keeps."""
        self._memo.add(size)

    def targets(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """Return one shared tuple for these queues, so that routes to the same queues can be compared by
        identity.
        """
        known = self._targets.get(targets)
        if known is None:
            if len(self._targets) >= self.config.memo_entries_max:
                self._forget_routes()
            known = self._targets[targets] = targets
            self._memo.add(TARGETS_BYTES + 8 * len(targets))
        return known

    def forget_old_routes(self) -> None:
        """Forget the routes if the topology has changed."""
        if self._generation != self.broker.generation:
            self._generation = self.broker.generation
            self._forget_routes()

    def _forget_routes(self) -> None:
        self.routes.clear()
        self._keys.clear()
        self._targets.clear()
        self._memo.clear()

    def forget_memos(self) -> None:
        """Clear the memos."""
        self._forget_routes()
        self.publisher.forget()

    def _acks(self, data: bytes, pos: int, end: int, channel: Channel) -> int:
        # One part at a time: acks out of order make one range each.
        where = 60, data[pos + 10]
        pos, verb, ranges = acks.take(data, pos, min(end, pos + ACKS_MAX * acks.FRAME_BYTES))
        try:
            self._acknowledge(channel, verb, ranges, where)
        except SoftError as error:
            self._close_channel(channel, error, where)
        return pos

    def _acknowledge(
        self, channel: Channel, verb: str, ranges: list[tuple[int, int]], where: tuple[int, int]
    ) -> None:
        """Settle, return or discard ranges of deliveries, as the method `where` says. Raises
        PreconditionFailed.
        """
        for index, (low, high) in enumerate(ranges):
            if low == acks.NO_TAG:
                raise PreconditionFailed("unknown delivery tag 0")
            if not low and channel.unacked.are_many(high):
                self._session.handle(channel, where)
                rest = partial(self._acknowledge, channel, verb, ranges[index + 1 :], where)
                channel.acknowledge_many(verb, high, rest)
                return
            channel.acknowledge(verb, low, high)

    def content(self, kind: int, number: int, payload: bytes, whole: bytes) -> None:
        channel = self._session.channels.get(number)
        if channel is not None and channel.closing:
            return
        if channel is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        assembly = channel.assembly
        if assembly is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if self._holds:
            # Unfinished messages take memory, too.
            self._hold(len(whole))
        if assembly.header is None:
            if kind != frames.HEADER:
                raise UnexpectedFrame(expected(assembly), (60, 40))
            self._content_header(channel, assembly, payload, whole)
        else:
            if kind != frames.BODY:
                raise UnexpectedFrame(expected(assembly), (60, 40))
            assembly.received += len(payload)
            assembly.oversized = assembly.oversized or len(whole) > self._session.limits.frame_max
            if assembly.received > assembly.body_size:
                raise FrameError(
                    f"body of {assembly.received} bytes is longer than the {assembly.body_size} announced",
                    (60, 40),
                )
            if payload:
                # There may be very many empty frames, and some clients treat them as an error.
                assembly.add(whole)
                if assembly.framed_bytes > framed_bytes_max(self.config):
                    self._refuse_frames(channel, assembly)
                    return
        if assembly.header is not None and assembly.received == assembly.body_size:
            channel.assembly = None
            self._assembled(channel, assembly)
        else:
            self._check_unfinished()

    def _refuse_frames(self, channel: Channel, assembly: Assembly) -> None:
        """Refuse a message whose body comes in frames of a few bytes: it is kept with them, and as many times
        larger.
        """
        channel.assembly = None
        assembly.release()
        error = PreconditionFailed(
            f"message size {assembly.framed_bytes} with its frames is larger than "
            f"{framed_bytes_max(self.config)}: the frames are too small"
        )
        self._close_channel(channel, error, (60, 40))

    def _check_unfinished(self) -> None:
        if self.unfinished.bytes > self.config.unfinished_bytes_max:
            raise ResourceError(
                f"the connection has more than {self.config.unfinished_bytes_max} bytes of unfinished messages "
                "(unfinished_bytes_max)"
            )

    def _content_header(self, channel: Channel, assembly: Assembly, payload: bytes, whole: bytes) -> None:
        class_id = int.from_bytes(payload[:2], "big")
        if class_id != 60:
            raise UnexpectedFrame(
                f"expected content header for class 60, got one for class {class_id} instead", (60, 40)
            )
        if payload[2:4] != b"\0\0":
            # The weight, always 0 (spec 4.2.6.1). RabbitMQ takes anything else for no content header at all.
            raise UnexpectedFrame(expected(assembly), (60, 40))
        size = int.from_bytes(payload[4:12], "big")
        if size > self.config.message_bytes_max:
            channel.assembly = None
            limit = self.config.message_bytes_max
            error = PreconditionFailed(f"message size {size} is larger than configured max size {limit}")
            self._close_channel(channel, error, (60, 40))
            # Like all frames for a closing channel, its body frames are skipped.
            return
        if self._stamps is not None:
            payload = self._stamps.on(payload, self.broker.clock.wall_ms(), self._session.limits.frame_max)
            whole = frames.raw_frame(frames.HEADER, channel.number, payload)
        assembly.begin(payload, size)
        if size > LARGE_BODY_BYTES:
            whole = frames.raw_frame(frames.HEADER, channel.number, publish.kept_header(channel, payload))
        assembly.add(whole)

    def _assembled(self, channel: Channel, assembly: Assembly) -> None:
        assembly.release()
        self.unfinished.finished += 1
        self.forget_old_routes()
        try:
            self._add_segment(channel, assembly)
        except Awaited as awaited:
            self._session.wait(awaited, channel, (60, 40), partial(self._add_segment, channel, assembly))
        except SoftError as error:
            self._close_channel(channel, error, (60, 40))
        except HardError as error:
            error.method = (60, 40)
            raise

    def _add_segment(self, channel: Channel, assembly: Assembly) -> None:
        if assembly.generation != self.broker.generation:
            key = assembly.route.key
            method = methods.decode(key[7:-1])
            assert isinstance(method, commands.Basic.Publish)
            assembly.route = publish.make_route(channel, key, method)
        self.segments.append(publish.slow_segment(channel, assembly))

    def flush_segments(self, *, whole: bool = False) -> bool:
        """Hand published messages to the channels, unless an alarm holds them back.

        False if the turn is over first; with `whole` that does not matter.
        """
        if self._held_bytes:
            self._begin_waits()
            return True
        if self._wide is not None and not self._hand_over(whole):
            return False
        if not self.segments:
            return True
        if self.broker.alarms.elsewhere and not whole:
            node = self._short_node()
            if node:
                self._hold_for(node)
            if self._held_bytes:
                self._begin_waits()
                return True
        segments, self.segments = self.segments, []
        self.published = True
        overdue = self._session.turn.overdue
        for index, segment in enumerate(segments):
            if index and not whole and overdue():
                self.segments = segments[index:] + self.segments
                return False
            if segment.mix is not None:
                segment.mix.closed = True
            self._wide = segment.route.publisher.publish(segment)
            # Break the cycle with the segment: only the collector would free it.
            segment.mix = None
            if self._wide is not None and not self._hand_over(whole):
                self.segments = segments[index + 1 :] + self.segments
                return False
        return True

    def _begin_waits(self) -> None:
        """Messages that an alarm holds back begin to wait now (x-delay), not when it is over."""
        for segment in self.segments:
            read_waits(segment.route.publisher.connection, segment)

    def _hand_over(self, whole: bool) -> bool:
        """Continue to hand over messages that go to many queues; return False if the turn is over first."""
        turn = self._session.turn
        for _ in self._wide or ():
            if whole or not turn.is_full():
                continue
            # Queues need more time to apply messages than the hand-over needs. Apply them now, so that queues
            # of other clients in this turn do not wait behind too many messages.
            if turn.alone:
                turn.apply()
            if turn.is_full():
                return False
        self._wide = None
        return True

    def makes_ready(self, size: int) -> None:
        """Count the bytes of a large message that is being encoded for a queue, until the queue counts it."""
        memory = self.broker.services.memory
        self._making_bytes += size
        memory.used += size
        if memory.used > memory.budget_bytes:
            memory.relieve()

    def has_made_ready(self, size: int) -> None:
        """The message is encoded: stop counting it. If its client was lost meanwhile, it is not counted any
        more.
        """
        size = min(size, self._making_bytes)
        self._making_bytes -= size
        self.broker.services.memory.used -= size

    def _close_channel(self, channel: Channel, error: SoftError, where: tuple[int, int]) -> None:
        """Close a channel because of an error, after the messages published before it are handed over."""
        if self.flush_segments():
            self._session.close_channel(channel, error, where)
        else:
            self._closing = channel, error, where

    def flush(self, *, release: bool = False) -> None:
        """Hand over published messages, and apply them. `release`: even if an alarm is raised."""
        if release:
            self._held_bytes = 0
        self.flush_segments(whole=release)
        self._session.turn.apply()

    @property
    def _holds(self) -> bool:
        """True if publishes are held back: all during an alarm, or those behind one that is held."""
        return self.broker.alarms.active or self._held_bytes > 0

    def _hold(self, size: int, reason: str = "") -> None:
        """While an alarm is raised: hold publishes back, and tell the client once."""
        if self._pass_bytes > 0:
            self._pass_bytes -= size
            return
        self._held_bytes += size
        if not self.blocked:
            self.blocked = True
            if self._session.client.can("connection.blocked"):
                self._session.send(commands.Connection.Blocked(reason or self.broker.alarms.reason))
        if self._passed or self._held_bytes > self.config.blocked_input_bytes_max:
            self.stalled = True

    def _short_node(self) -> str:
        """Return the node with an alarm that a queue of the next publishes needs; empty if there is none."""
        broker = self.broker
        return publish.short_node(self.segments, broker.hosts, broker.alarms.elsewhere)

    def _hold_for(self, node: str) -> None:
        """Hold publishes back, as during an alarm of this node."""
        size = sum(len(content) for segment in self.segments for content in segment.contents)
        self._hold(size, f"{self.broker.alarms.elsewhere[node]} at node '{node}'")

    def let_pass(self, size: int) -> None:
        """Let the client publish this many bytes in spite of an alarm, when the session continues."""
        self._pass_bytes = size
        self._passed = True
        self._held_bytes = 0
        self.stalled = False

    @property
    def missing_bytes(self) -> int:
        """Number of bytes until everything is finished: the missing bodies of contents, and an estimate for
        transactions.
        """
        missing = 0
        for channel in self._session.channels.values():
            if channel.assembly is not None:
                missing += channel.assembly.body_size - channel.assembly.received
            if channel.tx is not None and channel.tx.published_bytes:
                missing += TX_BYTES_BEFORE_COMMIT
        return missing

    def _must_wait(self, data: bytes, pos: int) -> bool:
        """While publishes are held back, only acks, heartbeats, content and new tokens pass: other methods
        would overtake them. Publishes that are held back were permitted when they came.
        """
        return data[pos + 7 : pos + 11] not in _PASS_WHILE_BLOCKED

    def unblock(self) -> None:
        """The alarm was cleared."""
        self._pass_bytes, self._passed = 0, False
        if not self.blocked or (self.broker.alarms.elsewhere and self._short_node()):
            return
        self.blocked = self.stalled = False
        self._held_bytes = 0
        if self._session.client.can("connection.blocked"):
            self._session.send(commands.Connection.Unblocked())
        self.go_on()

    def drop_channel(self, channel: Channel) -> None:
        """Forget the routes of a channel that is gone."""
        for key in self._keys.pop(channel, ()):
            self.routes.pop(key, None)

    def drop_segments(self, channel: Channel) -> None:
        """Drop publishes of a channel's transaction that an alarm holds back."""
        for segment in self.segments:
            if segment.route.publisher is channel:
                segment.mix = None
        self.segments = [segment for segment in self.segments if segment.route.publisher is not channel]

    def forget(self) -> None:
        """Drop all bytes that have not been handled."""
        self._tail = b""

    def clear(self) -> None:
        """The connection is over."""
        for segment in self.segments:
            segment.mix = None
        self.segments = []
        self._wide = self._closing = self._error = None
        self.has_made_ready(self._making_bytes)
        self._held_bytes = 0
        self.forget_memos()

    def end(self) -> None:
        """Break the reference to the session, which has ended."""
        self.clear()
        self._body_channel = None
        del self._session


def framed_bytes_max(config: Config) -> int:
    """Return how many bytes a message may take with its frames: the largest body in frames of 64 bytes, and
    the largest header.
    """
    return config.message_bytes_max * 9 // 8 + config.frame_max_bytes + FRAMES_ROOM_BYTES


def _piece(data: bytes, start: int, stop: int) -> bytes | memoryview:
    """Return data[start:stop], without a copy if it is a large part of the
    object that it would keep alive.
    """
    if PIECE_SHARE * (stop - start) >= len(data):
        return memoryview(data)[start:stop]
    return data[start:stop]
