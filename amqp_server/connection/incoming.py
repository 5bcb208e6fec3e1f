"""Reads what comes from one client: bytes become frames, runs of publishes and acks become commands.

The buffer is walked by offset and trimmed once. Publishes and acks, which are nearly all frames, go to `wire.intake` and
`wire.acks` in runs; other content is put together here frame by frame; every other frame is the session's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pamqp import commands

from amqp_server.broker.answers import AnswerAwaited
from amqp_server.broker.memo import Memo
from amqp_server.channel import publish
from amqp_server.channel.channel import Assembly, Channel
from amqp_server.channel.unfinished import Unfinished
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

if TYPE_CHECKING:
    from amqp_server.broker.queue import Target
    from amqp_server.connection.session import Session

#: Body frames from this size on are taken as they come, not when they are whole.
LARGE_FRAME = 16 * 1024
#: A piece of a body that is a smaller part of what was read is copied out of it.
PIECE_SHARE = 4

#: Bytes of publishes that are taken at once; then the turn may be over. A larger message is taken with what follows it.
TAKEN_BYTES = 128 * 1024
#: Acks that are taken at once.
ACKS_MAX = 1024
#: What a route takes up beside its names, and a tuple of targets beside them, bytes.
ROUTE_BYTES, TARGETS_BYTES = 600, 200

#: What is taken to come before tx.commit: as much as the kernel may keep on both sides of a socket.
TX_BYTES_BEFORE_COMMIT = 16 * 1024 * 1024

KINDS = (frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT)
_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
#: basic.publish, ack, reject and nack.
_PASS_WHILE_BLOCKED = (_PUBLISH, _ACK, b"\x00\x3c\x00\x5a", b"\x00\x3c\x00\x78")


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
        "_session",
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
        self.received_bytes = 0
        #: Reads that brought bytes.
        self.received_count = 0
        self.unfinished = Unfinished()
        self._tail = b""
        #: Offset behind the frame that is being handled.
        self._after = 0
        #: The turn is over before all frames are handled.
        self._cut = False
        #: Met in the turn before: it closes a channel, or the connection, when what was published is handed over.
        self._closing: tuple[Channel, SoftError, tuple[int, int]] | None = None
        self._error: AMQPError | None = None
        #: Bytes still to come of a large body frame, and its channel.
        self._body_left = 0
        self._body_channel: Channel | None = None
        #: The memo: publish frames to routes, as of one generation of the topology.
        self.routes: dict[bytes, PublishRoute] = {}
        #: Their keys, by channel.
        self._keys: dict[Channel, list[bytes]] = {}
        #: One tuple for each combination of queues that routes lead to.
        self._targets: dict[tuple[Target, ...], tuple[Target, ...]] = {}
        #: The bytes of both, and of what routes remember themselves.
        self._memo = Memo(session.broker.memo)
        self._generation = session.broker.generation
        #: Messages that were published and not yet handed to the queues.
        self.segments: list[Segment] = []
        #: The hand-over to many queues that is under way.
        self._wide: Iterator[object] | None = None
        #: The client has published something.
        self.published = False
        #: connection.blocked was sent: an alarm stands, and what is published is held back.
        self.blocked = False
        self._held_bytes = 0
        #: So much may be published though an alarm stands, to finish what was begun; and it has been.
        self._pass_bytes = 0
        self._passed = False
        #: Too much is held back: nothing more is read until the alarm is over.
        self.stalled = False
        #: The rest of a read waits until the client has taken answers: one read may ask for any number of messages.
        self.congested = False

    def receive(self, data: bytes) -> None:
        """Handle what came from the client. Errors in it become close methods."""
        self.received_bytes += len(data)
        self.received_count += 1
        position = 0
        if self._body_left:
            position = self._more_body(data)
            if position == len(data):
                return
        self._handle(self._tail + data if self._tail else data, position)

    def _more_body(self, data: bytes) -> int:
        """Add to the body frame that is still coming, as it comes; return the offset of what follows it."""
        channel = self._body_channel
        assembly = channel.assembly if channel is not None else None
        taken = min(self._body_left, len(data))
        self._body_left -= taken
        if assembly is None:
            return taken
        assembly.add(_piece(data, 0, taken))
        if self.broker.alarms.active:
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
        """Take the beginning of a large body frame before its end has come; False if it is unexpected."""
        channel = self._session.channels.get(number)
        assembly = channel.assembly if channel is not None and not channel.closing else None
        if assembly is None or assembly.header is None or assembly.received + size > assembly.body_size:
            return False
        assembly.received += size
        assembly.oversized = assembly.oversized or size + frames.OVERHEAD > self._session.limits.frame_max
        assembly.add(_piece(data, pos, end))
        if self.broker.alarms.active:
            self._hold(end - pos)
        self._body_left = pos + size + frames.OVERHEAD - end
        self._body_channel = channel
        return True

    def _large_bodies(self, data: bytes, pos: int, number: int, end: int) -> int:
        """Take the large body frames of one message at `pos` without a copy; return the offset behind them, `pos` if the
        first one is unexpected."""
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
                # What is wrong with it is told elsewhere.
                break
            assembly.received += size
            pos = self._after = after
        if pos == begin:
            return pos
        if self.broker.alarms.active:
            self._hold(pos - begin)
        assembly.add(_piece(data, begin, pos))
        if assembly.received == assembly.body_size:
            channel.assembly = None
            self._assembled(channel, assembly)
        else:
            self._check_unfinished()
        return pos

    def go_on(self) -> None:
        """Handle what is in the buffer: the login is done, an answer came, or an alarm is over."""
        self._handle(self._tail)

    @property
    def backlogged(self) -> bool:
        """True if so much has come behind a method whose answer is awaited that no more is read."""
        waiting = self._session.suspended is not None
        return waiting and len(self._tail) > self.config.suspended_input_bytes_max

    def _handle(self, data: bytes, position: int = 0) -> None:
        """Handle the frames in data[position:]."""
        if self._session.suspended is not None:
            self._tail = data[position:]
            return
        self.congested = False
        try:
            self.forget_old_routes()
            if not self.flush_segments():
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
                # What was published before the error is handed over first.
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
        """The turn is over: handle data[position:] in a later one."""
        self._tail = data[position:]
        self._after -= position
        self._session.go_on_later()

    def _rest(self, data: bytes, error: AMQPError) -> int:
        """Look for a connection.close of the client behind the error, if frames can be told apart."""
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
            # RabbitMQ lets 8 bytes more pass than its text says, and clients rely on it.
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
                if signature == _PUBLISH and fast:
                    channel = self._session.channels.get(number)
                    if channel is not None and channel.assembly is None and not channel.closing:
                        taken = self._publishes(data, pos, after, end, channel)
                        if taken is None:
                            break
                        pos = taken
                        continue
                elif signature == _ACK and fast:
                    channel = self._session.channels.get(number)
                    if channel is not None and channel.assembly is None and not channel.closing:
                        taken = self._acks(data, pos, end, channel)
                        if taken > pos:
                            pos = taken
                            if self._session.suspended is not None:
                                break
                            continue
            if self._held_bytes and self._must_wait(data, pos, kind):
                self.stalled = True
                break
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
        """Have done what was sent before a method, because answers count it; False if the turn is over first.

        An ack has no answer, and the fast path applies nothing for it and for publishes either.
        """
        turn = self._session.turn
        if not turn.scheduled or signature in (_PUBLISH, _ACK):
            return True
        others, turn.cut = turn.cut, False
        turn.apply()
        whole = not turn.cut
        turn.cut = turn.cut or others
        return whole

    def _publishes(self, data: bytes, pos: int, after: int, end: int, channel: Channel) -> int | None:
        """Take the publishes at `pos`; None if the next one is not complete."""
        self.forget_old_routes()
        key = data[pos:after]
        route = self.routes.get(key)
        if route is None:
            if not self.flush_segments():
                self._cut = True
                return None
            route = self._new_route(key, channel)
            if route is None:
                # The frame is read again when it is known whether the user may publish so.
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
        if self.broker.alarms.active and pos != begin:
            self._hold(pos - begin)
        if outcome is Outcome.OTHER:
            return pos
        if outcome is Outcome.MORE:
            return None if pos == begin else pos
        channel.assembly = Assembly(route)
        return pos + len(route.key)

    def _new_route(self, key: bytes, channel: Channel) -> PublishRoute | None:
        """Decode, check and route a publish frame not seen before; None if that closed the channel, or has to wait."""
        # What is no frame at all is told without its name.
        method = methods.decode(key[7:-1])
        assert isinstance(method, commands.Basic.Publish)
        try:
            return self._make_route(key, channel, method)
        except AnswerAwaited as awaited:
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
        # The frame, its decoded names, and the objects around them.
        self._memo.add(ROUTE_BYTES + 3 * len(key))
        return route

    def remembered(self, size: int) -> None:
        """A route has remembered something itself."""
        self._memo.add(size)

    def targets(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """Return the one tuple for these queues, so that routes to the same queues are told by identity."""
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
        """Forget all that is only remembered to be fast."""
        self._forget_routes()
        self.publisher.forget()

    def _acks(self, data: bytes, pos: int, end: int, channel: Channel) -> int:
        # A part at a time: each may be in no order, and a range of its own.
        pos, ranges = acks.take(data, pos, min(end, pos + ACKS_MAX * acks.FRAME_BYTES))
        try:
            self._acknowledge(channel, ranges)
        except SoftError as error:
            self._close_channel(channel, error, (60, 80))
        return pos

    def _acknowledge(self, channel: Channel, ranges: list[tuple[int, int]]) -> None:
        """Raises PreconditionFailed."""
        for index, (low, high) in enumerate(ranges):
            if low == acks.NO_TAG:
                raise PreconditionFailed("unknown delivery tag 0")
            if not low and channel.unacked.are_many(high):
                self._session.handle(channel, (60, 80))
                channel.acknowledge_many(
                    "settle", high, partial(self._acknowledge, channel, ranges[index + 1 :])
                )
                return
            channel.acknowledge("settle", low, high)

    def content(self, kind: int, number: int, payload: bytes, whole: bytes) -> None:
        channel = self._session.channels.get(number)
        if channel is not None and channel.closing:
            return
        if channel is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        assembly = channel.assembly
        if assembly is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if self.broker.alarms.active:
            # Messages that are never finished take up memory, too.
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
            assembly.add(whole)
        if assembly.header is not None and assembly.received == assembly.body_size:
            channel.assembly = None
            self._assembled(channel, assembly)
        else:
            self._check_unfinished()

    def _check_unfinished(self) -> None:
        if self.unfinished.bytes > self.config.unfinished_bytes_max:
            raise ResourceError(
                f"a connection may have {self.config.unfinished_bytes_max} bytes of unfinished messages "
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
            # Its body frames are skipped like everything else for a closing channel.
            return
        assembly.header = payload
        assembly.body_size = size
        assembly.add(whole)

    def _assembled(self, channel: Channel, assembly: Assembly) -> None:
        assembly.release()
        self.unfinished.finished += 1
        self.forget_old_routes()
        try:
            self._add_segment(channel, assembly)
        except AnswerAwaited as awaited:
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
        """Hand what was published to the channels, unless an alarm holds it back.

        False if the turn is over first, and not all of it is wanted.
        """
        if self._held_bytes:
            return True
        if self._wide is not None and not self._hand_over(whole):
            return False
        if not self.segments:
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
            # It refers to the segment: together they would stay until the collector comes.
            segment.mix = None
            if self._wide is not None and not self._hand_over(whole):
                self.segments = segments[index + 1 :] + self.segments
                return False
        return True

    def _hand_over(self, whole: bool) -> bool:
        """Go on with the messages that go to many queues; False if the turn is over first."""
        turn = self._session.turn
        for _ in self._wide or ():
            if whole or not turn.is_full():
                continue
            # The queues take longer than the hand-over. Those of other clients that share the turn would come behind all
            # that have something then.
            if turn.alone:
                turn.apply()
            if turn.is_full():
                return False
        self._wide = None
        return True

    def _close_channel(self, channel: Channel, error: SoftError, where: tuple[int, int]) -> None:
        """Close a channel for an error, when all that was published before it is handed over."""
        if self.flush_segments():
            self._session.close_channel(channel, error, where)
        else:
            self._closing = channel, error, where

    def flush(self, *, release: bool = False) -> None:
        """Hand over what was published and have it applied. `release`: even if an alarm stands."""
        if release:
            self._held_bytes = 0
        self.flush_segments(whole=release)
        self._session.turn.apply()

    def _hold(self, size: int) -> None:
        """An alarm stands: keep what is published, and tell the client once."""
        if self._pass_bytes > 0:
            self._pass_bytes -= size
            return
        self._held_bytes += size
        if not self.blocked:
            self.blocked = True
            if self._session.client.can("connection.blocked"):
                self._session.send(commands.Connection.Blocked(self.broker.alarms.reason))
        if self._passed or self._held_bytes > self.config.blocked_input_bytes_max:
            self.stalled = True

    def let_pass(self, size: int) -> None:
        """Let so much be published though an alarm stands, once the session goes on."""
        self._pass_bytes = size
        self._passed = True
        self._held_bytes = 0
        self.stalled = False

    @property
    def missing_bytes(self) -> int:
        """What is to come before all is finished: of contents, the body that they lack; of transactions, a guess."""
        missing = 0
        for channel in self._session.channels.values():
            if channel.assembly is not None:
                missing += channel.assembly.body_size - channel.assembly.received
            if channel.tx is not None and channel.tx.published_bytes:
                missing += TX_BYTES_BEFORE_COMMIT
        return missing

    def _must_wait(self, data: bytes, pos: int, kind: int) -> bool:
        """While publishes are held back, only acks, heartbeats and content pass: others would overtake."""
        if kind != frames.METHOD:
            return False
        return data[pos + 7 : pos + 11] not in _PASS_WHILE_BLOCKED

    def unblock(self) -> None:
        """The alarm is over."""
        self._pass_bytes, self._passed = 0, False
        if not self.blocked:
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
        """Forget what an alarm holds back of a channel's transaction."""
        for segment in self.segments:
            if segment.route.publisher is channel:
                segment.mix = None
        self.segments = [segment for segment in self.segments if segment.route.publisher is not channel]

    def forget(self) -> None:
        """Nothing of what has come is to be handled any more."""
        self._tail = b""

    def clear(self) -> None:
        """The connection is over."""
        for segment in self.segments:
            segment.mix = None
        self.segments = []
        self._wide = self._closing = self._error = None
        self._held_bytes = 0
        self.forget_memos()

    def end(self) -> None:
        """The session is gone, and nothing will come any more."""
        self.clear()
        self._body_channel = None
        del self._session


def _piece(data: bytes, start: int, stop: int) -> bytes | memoryview:
    """Return data[start:stop], uncopied if it is much of what it would keep in memory."""
    if PIECE_SHARE * (stop - start) >= len(data):
        return memoryview(data)[start:stop]
    return data[start:stop]
