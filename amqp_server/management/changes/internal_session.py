"""A connection of the management API itself: a session without a socket, which speaks AMQP to the broker.

So the same code, with the same checks and refusals, declares a queue for a request and for a client. A
session lives for one request. If other nodes have to answer, the request waits for them.
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import trio
from pamqp import base, commands

from amqp_server.broker.broker import Broker
from amqp_server.broker.topology.events import ACTING
from amqp_server.broker.topology.queue import Queue
from amqp_server.channel.moving import Picked, pick, publish_unchanged, put_back
from amqp_server.connection.outbox import UnheldOutbox
from amqp_server.connection.session import Session
from amqp_server.errors import AMQPError, InternalError, PreconditionFailed, Unavailable
from amqp_server.management.changes.answers import ANSWER_S
from amqp_server.management.request.time_slices import Rest
from amqp_server.wire import content, frames, methods, tables
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.ports import Refused

CHANNEL = 1
#: Time to read a stream, s: with a filter, nothing says that there are no more matching messages.
READ_S = 2.0
#: Messages of a stream that are delivered before the first of them is acked.
READ_AHEAD = 4
#: What a message takes up besides its contents.
MESSAGE_BYTES = 512
#: Bytes of a body that are copied in one step.
COPY_BYTES = 512 * 1024
#: Messages that are picked, or acked, in one step: about 0.2 ms.
AT_ONCE = 10
_TIMESTAMP = struct.Struct(">Q")


#: Returns whether a message of this size, after so many others, is taken. May raise.
Takes = Callable[[int, int], Awaitable[bool]]


class Content(NamedTuple):
    properties: content.Properties
    body: bytes | memoryview

    @property
    def size(self) -> int:
        """Bytes of the message in memory."""
        return MESSAGE_BYTES + len(self.body) + sum(map(len, self.properties.raw.values()))


class Carried(NamedTuple):
    """A message on its way to another queue, with the exchange and the routing key of its publish."""

    exchange: str
    routing_key: str
    content: Content
    #: How long it waits there, ms.
    wait_ms: int = 0


class Got(NamedTuple):
    """A message that was got from a queue and is not settled."""

    ok: commands.Basic.GetOk
    content: Content
    #: Where it was picked.
    place: Place = HEAD
    #: Until when it waits, ms since 1970; None if it does not.
    due_ms: int | None = None

    @property
    def tag(self) -> int:
        return self.ok.delivery_tag or 0

    @property
    def carried(self) -> Carried:
        return Carried(self.ok.exchange or "", self.ok.routing_key or "", self.content)


class Read(NamedTuple):
    """A message of a stream."""

    deliver: commands.Basic.Deliver
    content: Content

    @property
    def offset(self) -> int:
        value = (self.content.properties.headers or {}).get("x-stream-offset", 0)
        return value if isinstance(value, int) else 0


class Direct:
    """Use as a context manager: its exit closes the session, which requeues the unacked messages.

    See connection.session.Edge, and amqp_server.turn.Sender.
    """

    def __init__(self, broker: Broker, vhost: str, username: str, access: str = "") -> None:
        self._turn = broker.turn
        self._wall_ms = broker.clock.wall_ms
        self._frame_max = broker.config.frame_max_bytes
        self._depth = broker.config.table_depth_max
        self._outbox = UnheldOutbox(broker.turn, self, 1 << 62)
        self._answered = trio.Event()
        self._hears: Callable[[Direct], None] = _nothing
        self._session = Session.logged_in(
            broker,
            self._outbox,
            self,
            name="management",
            user=username,
            access=access,
            vhost=broker.vhost(vhost),
            frame_max=self._frame_max,
            channel_max=CHANNEL,
        )
        self._session.client.acting = ACTING.get()
        self._session.client.operates = True

    def opened(self) -> None: ...

    def resumed(self) -> None:
        self._answered.set()
        self._hears(self)

    def flush(self) -> None:
        """Answers stay in the outbox until the request takes them; wake the request, which may be waiting."""
        self._answered.set()
        self._hears(self)

    def open(self, hears: Callable[[Direct], None]) -> None:
        """`hears` is called when there may be answers."""
        self._hears = hears
        self.__enter__()

    def close(self) -> None:
        self._turn.run(self._turn.contain, self._session, self._session.lost)

    def __enter__(self) -> Direct:
        self.tell(commands.Channel.Open())
        self.answers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def ask(self, method: base.Frame, *more: bytes) -> list[base.Frame | Content]:
        """Send a method, and frames behind it; return the answers. Raises errors that close the channel."""
        await self._asked(method, *more)
        return self.answers()

    async def _asked(self, method: base.Frame, *more: bytes) -> None:
        """Send a method, and frames behind it; return when it was answered."""
        self._answered = trio.Event()
        self.tell(method, *more)
        while self.waits:
            await self._answered.wait()
            self._answered = trio.Event()

    def tell(self, method: base.Frame, *more: bytes) -> None:
        """Send a method, and frames behind it, as a turn or as a part of one. Raises PreconditionFailed."""
        self._turn.receive(self._session, b"".join((_encoded(method), *more)))

    @property
    def waits(self) -> bool:
        """True if a method has no answer yet."""
        return self._session.suspended is not None or self._session.unfinished

    def answers(self) -> list[base.Frame | Content]:
        """Take the answers that have arrived. Raises the error that closes the channel."""
        return list(self._answers(b"".join(self._outbox.take())))

    async def publish(
        self, method: commands.Basic.Publish, properties: Mapping[str, Any], body: bytes
    ) -> bool:
        """Return True if it was routed; the method has to be mandatory.

        Properties have their AMQP names; a timestamp is a number of seconds.
        """
        header = encode_properties(properties, self._depth).encode(len(body))
        framed = content.build(header, body, CHANNEL, self._frame_max)
        answers = await self.ask(method, framed)
        return not any(isinstance(answer, commands.Basic.Return) for answer in answers)

    async def get(self, queue: str, rest: Rest | None = None) -> Got | None:
        """Take the first message of a queue, None if there is none. `rest` is called within a long one."""
        await self._asked(methods.make(commands.Basic.Get, queue=queue))
        answers = self.answers() if rest is None else [answer async for answer in self._taken(rest)]
        if len(answers) != 2:
            return None
        told, message = answers
        assert isinstance(told, commands.Basic.GetOk) and isinstance(message, Content)
        return Got(told, message)

    async def read(
        self,
        stream: str,
        arguments: Mapping[str, Any],
        count: int,
        bytes_max: int,
        end: int,
        takes: Takes,
        rest: Rest,
    ) -> list[Read]:
        """Read a stream as a consumer with these arguments, at most to the offset before `end`."""
        found: list[Read] = []
        size = 0
        await self.ask(commands.Basic.Qos(prefetch_count=min(count, READ_AHEAD)))
        consume = methods.make(
            commands.Basic.Consume, queue=stream, consumer_tag="management", arguments=dict(arguments)
        )
        await self._asked(consume)
        deliver: commands.Basic.Deliver | None = None
        with trio.move_on_after(READ_S):
            while True:
                self._answered = trio.Event()
                heard = False
                async for answer in self._taken(rest):
                    heard = True
                    if isinstance(answer, commands.Basic.Deliver):
                        deliver = answer
                    elif isinstance(answer, Content) and deliver is not None:
                        if len(found) < count and not await takes(answer.size, len(found)):
                            return found
                        found.append(Read(deliver, answer))
                        size += answer.size
                if len(found) >= count or size >= bytes_max or (found and found[-1].offset >= end - 1):
                    break
                if deliver is not None:
                    tag, deliver = deliver.delivery_tag or 0, None
                    await self._asked(commands.Basic.Ack(tag, True))
                elif not heard:
                    await self._answered.wait()
        return found[:count]

    async def pick(self, queue: Queue, places: Sequence[Place], rest: Rest) -> list[Got]:
        """Take the messages at these places out of a queue, as many as are still there, in this order.
        Those that are not acked return to their places when the session ends. `rest` is called in between.

        Raises NotFound, ResourceLocked, Unavailable.
        """
        found: list[Got] = []
        refused: list[Refused] = []
        left, done = len(places), trio.Event()

        def told(got: Picked | Refused | None) -> None:
            nonlocal left
            left -= 1
            if isinstance(got, Refused):
                refused.append(got)
            elif got is not None:
                payload, body = content.split(got.item)
                ok = commands.Basic.GetOk(got.tag, got.redelivered, got.exchange, got.routing_key)
                properties = content.Properties.parse(payload, checked=True)
                found.append(Got(ok, Content(properties, body), got.place))
            if not left:
                done.set()

        for start in range(0, len(places), AT_ONCE):
            await rest()
            channel = self._session.channels.get(CHANNEL)
            if channel is None:
                self.answers()
                raise Unavailable(f"queue '{queue.name}': the session has ended; try again")
            self._turn.run(pick, channel, queue, places[start : start + AT_ONCE], told)
        with trio.move_on_after(ANSWER_S):
            if places:
                await done.wait()
        if refused or left:
            text = refused[0].text if refused else f"no answer in {ANSWER_S:g} s; try again"
            raise Unavailable(f"queue '{queue.name}': {text}")
        return sorted(found, key=lambda got: got.tag)

    async def hand_on(
        self,
        queue: Queue,
        got: Sequence[Got],
        synced: Callable[[], Awaitable[None]],
        rest: Rest,
        *,
        one_by_one: bool = False,
    ) -> int:
        """Publish the messages of `got` to another queue, and ack those that it has confirmed; return how
        many. `one_by_one`: other messages that were got before them stay unsettled. `rest` is called in
        between.

        The channel is in confirm mode. Messages that the queue refuses stay unsettled, and all of them if it
        does not answer: they are requeued when the session ends.
        """
        now_ms = self._wall_ms()
        messages = [
            each.carried if each.due_ms is None else each.carried._replace(wait_ms=each.due_ms - now_ms)
            for each in got
        ]
        taken = await self.give(queue, messages, synced, rest)
        if len(taken) == len(got) and not one_by_one:
            await self.ask(commands.Basic.Ack(got[-1].tag, True))
        else:
            await self.ack([got[index] for index in taken], rest)
        return len(taken)

    async def ack(self, got: Sequence[Got], rest: Rest) -> None:
        """Ack these messages and no others, some in each turn."""
        for start in range(0, len(got), AT_ONCE):
            await rest()
            acks = [commands.Basic.Ack(each.tag, False) for each in got[start : start + AT_ONCE]]
            await self.ask(acks[0], *map(_encoded, acks[1:]))

    def put_back(self) -> None:
        """Give what was got, and is not settled, back to its queue, as if nobody had looked at it."""
        channel = self._session.channels.get(CHANNEL)
        if channel is not None:
            self._turn.run(self._turn.contain, self._session, put_back, channel)

    async def give(
        self,
        queue: Queue,
        messages: Sequence[Carried],
        synced: Callable[[], Awaitable[None]],
        rest: Rest,
    ) -> list[int]:
        """Publish messages to a queue, and to no other; return the indexes of those that it has confirmed.
        `rest` is called in between. Raises Unavailable.

        The channel is in confirm mode.
        """
        channel = self._session.channels[CHANNEL]
        confirms = channel.confirms
        assert confirms is not None
        indexes: dict[int, int] = {}
        for index, each in enumerate(messages):
            await rest()
            number, routed = confirms.next_number, list[bool]()
            self._turn.run(self._turn.contain, self._session, self._hand_on, queue, each, routed)
            if routed == [True]:
                indexes[number] = index
        with trio.move_on_after(ANSWER_S) as waiting:
            await synced()
            taken = await self._confirmed(indexes)
        if waiting.cancelled_caught:
            raise Unavailable(f"queue '{queue.name}' has not answered; it may have some of the messages")
        return taken

    async def _confirmed(self, indexes: dict[int, int]) -> list[int]:
        """Wait for the answers to publishes, of which each number stands for an index; return the indexes of
        messages that were confirmed.
        """
        taken: list[int] = []
        while indexes:
            self._answered = trio.Event()
            answers = self.answers()
            for answer in answers:
                if not isinstance(answer, (commands.Basic.Ack, commands.Basic.Nack)):
                    continue
                last = answer.delivery_tag or 0
                numbers = [
                    number for number in indexes if number == last or (answer.multiple and number < last)
                ]
                answered = [indexes.pop(number) for number in numbers]
                if isinstance(answer, commands.Basic.Ack):
                    taken += answered
            if indexes and not answers:
                await self._answered.wait()
        return taken

    def _hand_on(self, queue: Queue, message: Carried, routed: list[bool]) -> None:
        channel, (properties, body) = self._session.channels.get(CHANNEL), message.content
        assert isinstance(body, bytes)
        if channel is None:
            # The session has ended meanwhile; what it got returns.
            return
        routed.append(
            publish_unchanged(
                channel, queue, message.exchange, message.routing_key, properties, body, message.wait_ms
            )
        )

    def _answers(self, data: bytes) -> Iterator[base.Frame | Content]:
        frames_ = _Frames([data])
        while (answer := frames_.next_answer()) is not None:
            yield answer.whole() if isinstance(answer, _Body) else answer

    async def _taken(self, rest: Rest) -> AsyncIterator[base.Frame | Content]:
        """Take the answers that have arrived, as `answers` does, and copy large bodies piece by piece."""
        frames_ = _Frames(self._outbox.take())
        while (answer := frames_.next_answer()) is not None:
            if not isinstance(answer, _Body):
                yield answer
            elif answer.size <= COPY_BYTES:
                yield answer.whole()
            else:
                yield await answer.whole_in_pieces(rest)


class _Body(NamedTuple):
    """A message as it is in the answers, not copied."""

    properties: content.Properties
    parts: list[memoryview]
    size: int

    def whole(self) -> Content:
        return Content(self.properties, b"".join(self.parts))

    async def whole_in_pieces(self, rest: Rest) -> Content:
        # Pages of an anonymous map are made when first written; zeros for a whole `bytearray` would take
        # as long as the copy.
        body, at = memoryview(mmap.mmap(-1, self.size)), 0
        for part in self.parts:
            for start in range(0, len(part), COPY_BYTES):
                await rest()
                piece = part[start : start + COPY_BYTES]
                body[at : at + len(piece)] = piece
                at += len(piece)
        return Content(self.properties, body)


class _Frames:
    """Reads frames out of chunks, which may end anywhere."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks: deque[memoryview] = deque(memoryview(chunk) for chunk in chunks if len(chunk))

    def next_answer(self) -> base.Frame | _Body | None:
        """Return the next method, or the next whole message; None if there is none. Raises the error that
        closes the channel.
        """
        header: content.Properties | None = None
        wanted, parts = 0, list[memoryview]()
        while self._chunks:
            kind, _, size = frames.prefix.unpack(b"".join(self._take(7)))
            payload = self._take(size)
            self._take(1)
            if kind == frames.METHOD:
                return _method(b"".join(payload))
            if kind == frames.HEADER:
                raw = b"".join(payload)
                header = content.Properties.parse(raw)
                wanted = int.from_bytes(raw[4:12], "big")
            elif kind == frames.BODY:
                parts += payload
                wanted -= size
            if header is not None and wanted == 0:
                return _Body(header, parts, sum(map(len, parts)))
        return None

    def _take(self, count: int) -> list[memoryview]:
        """Take the next bytes, without a copy."""
        found: list[memoryview] = []
        while count and self._chunks:
            chunk = self._chunks.popleft()
            if len(chunk) > count:
                self._chunks.appendleft(chunk[count:])
                chunk = chunk[:count]
            count -= len(chunk)
            if chunk:
                found.append(chunk)
        return found


def _nothing(_: Direct) -> None: ...


def _encoded(method: base.Frame) -> bytes:
    try:
        return frames.method_frame(CHANNEL, method)
    except (TypeError, ValueError, OverflowError) as error:
        raise PreconditionFailed(f"a name or an argument cannot be encoded: {error}") from None


def encode_properties(given: Mapping[str, Any], depth: int) -> content.Properties:
    """Encode properties under their AMQP names. Raises PreconditionFailed for invalid values."""
    encoded = content.Properties()
    try:
        for name, value in given.items():
            if name == "headers":
                try:
                    encoded.raw[name] = tables.encode(value, depth)
                except tables.TableTooDeep:
                    raise tables.TableTooDeep(depth) from None
            elif name in ("delivery_mode", "priority"):
                encoded.raw[name] = bytes((value,))
            elif name == "timestamp":
                encoded.raw[name] = _TIMESTAMP.pack(value)
            else:
                encoded.set_text(name, value)
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        raise PreconditionFailed(f"a property cannot be encoded: {error}") from None
    return encoded


def _method(payload: bytes) -> base.Frame:
    method = methods.decode(payload)
    if isinstance(method, (commands.Channel.Close, commands.Connection.Close)):
        raise _error(method, hard=isinstance(method, commands.Connection.Close))
    return method


def _error(close: commands.Channel.Close | commands.Connection.Close, *, hard: bool) -> AMQPError:
    kinds = [kind for parent in AMQPError.__subclasses__() for kind in parent.__subclasses__()]
    for kind in kinds:
        if kind.code == close.reply_code and kind.hard is hard:
            return kind(close.reply_text.removeprefix(f"{kind.name} - "))
    return InternalError(close.reply_text)
