"""Dead letters: messages that a queue discards go through the dead-letter exchange, with their history in the
headers.

The headers and the rule for cycles are RabbitMQ's (https://www.rabbitmq.com/docs/dlx): each (queue, reason)
has one x-death entry with a count, the newest first; a message does not go to a queue where it has died
(including this death), unless it was rejected since then, or now.

As in RabbitMQ from 4.0 on, only deaths that the broker itself has written count. A client that publishes a
message with the headers that it came with begins a new life, and its x-death is replaced by the first death
of that. The broker tells them apart by the channel number in the frames of a message: dead letters have
the channel number 0 (LETTER_CHANNEL), which no client has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from amqp_server.broker.routing_view import RoutingView
from amqp_server.broker.topology.queue import Queue
from amqp_server.wire import content, tables
from amqp_server.wire.frames import FRAME_BYTES_MIN, SHORT_STRING_MAX, short_string
from amqp_server.wire.message_groups import name_groups
from amqp_server.wire.message_ids import message_ids_of
from exchanges.router import RoutingTooLong, walked
from quorum_queue.clock import Clock
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import LETTER_CHANNEL, Letter
from quorum_queue.machine.run import Attributes, Run

#: Targets that get a wide dead letter before the turn may end.
PART_QUEUES = 32
#: Entries of x-death that are read before the turn may end.
DEATHS_AT_ONCE = 64
_DEATH_FIELDS = (b"queue", b"reason", b"count")
_COPIES = (b"CC",)
#: A dropped cycle is logged once in this time for each queue, and for so many queues, s.
CYCLE_LOG_INTERVAL_S = 60.0
CYCLE_LOGS_MAX = 1_000

logger = logging.getLogger("mqd.queues")


class Outcome:
    """An origin that reports once whether all targets of some messages took them."""

    __slots__ = ("_done", "_left", "_taken")

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done
        #: Number of awaited answers, plus one until everything was sent.
        self._left = 1
        self._taken = True

    def expect(self, count: int) -> None:
        self._left += count

    def confirmed(self, first: int, last: int) -> None:
        self._answered(last - first + 1)

    def refused(self, first: int, last: int) -> None:
        self._taken = False
        self._answered(last - first + 1)

    def gone(self, first: int, last: int) -> None:
        self.refused(first, last)

    def sent(self, *, routed: bool) -> None:
        """All messages were handed to their targets. `routed`: each of them had one."""
        self._taken = self._taken and routed
        self._answered(1)

    def _answered(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._done(self._taken)


class DeadLetterSender:
    """Sends dead letters on. See quorum_queue.ports.DeadLetters."""

    def __init__(self, frame_max: int, clock: Clock) -> None:
        """`frame_max` is the largest frame, in bytes."""
        self._frame_max = frame_max
        self._clock = clock
        #: Dead letters that did not go to a queue because the message has died there before.
        self.cycles = 0
        #: Numbers of dead letters, by type of the queue, strategy and reason. With at-least-once, those that
        #: their targets have.
        self.counts: dict[tuple[str, str, Reason], int] = {}
        #: When a cycle was last logged, by queue, and those that were not logged since.
        self._logged: dict[tuple[str, str], tuple[int, int]] = {}

    def dead_letter(
        self,
        queue: Queue,
        run: Run,
        reason: Reason,
        done: Callable[[bool], None] | None,
        letter: Letter | None = None,
    ) -> Iterator[bool] | None:
        """Send each message of the run; call `done` with True if all found a target, and all targets took
        them.

        `letter` identifies the message to its targets. If that takes long, because a message has many targets
        or very many headers, or a long way to its targets, none of them has it yet: see
        quorum_queue.ports.DeadLetters for the steps of the returned iterator.
        """
        assert run.contents is not None
        count = len(run.contents)
        if done is None:
            self._count(queue, "at_most_once", reason, count)
        else:
            done = self._counting(queue, reason, count, done)
        parts = self._parts(queue, run, reason, done, letter)
        for _ in parts:
            return parts
        return None

    def _count(self, queue: Queue, strategy: str, reason: Reason, count: int) -> None:
        if queue.effective.dead_letter_exchange is not None:
            key = queue.type.name, strategy, reason
            self.counts[key] = self.counts.get(key, 0) + count

    def _counting(
        self, queue: Queue, reason: Reason, count: int, done: Callable[[bool], None]
    ) -> Callable[[bool], None]:
        def counted(taken: bool) -> None:
            if taken:
                self._count(queue, "at_least_once", reason, count)
            done(taken)

        return counted

    def _parts(
        self,
        queue: Queue,
        run: Run,
        reason: Reason,
        done: Callable[[bool], None] | None,
        letter: Letter | None,
    ) -> Iterator[bool]:
        assert run.contents is not None
        made: list[_Sent] = []
        for index, item in enumerate(run.contents):
            exchange, routing_key = parse_head(run.head_of(index))
            attributes = run.attributes_of(index)
            made.append((yield from self._made(queue, item, attributes, exchange, routing_key, reason)))
        wide = any(len(sent.targets) > PART_QUEUES for sent in made)
        if wide:
            # The first step has no effect yet.
            yield False
        outcome = None if done is None else Outcome(done)
        routed = True
        for sent in made:
            targets = sent.targets
            routed = routed and bool(targets)
            for start in range(0, len(targets), PART_QUEUES):
                if wide:
                    yield True
                _enqueue(targets[start : start + PART_QUEUES], sent, outcome, letter)
        if outcome is not None:
            outcome.sent(routed=routed)

    def _made(
        self,
        queue: Queue,
        item: bytes,
        attributes: Attributes,
        exchange: str,
        routing_key: str,
        reason: Reason,
    ) -> Generator[bool, None, _Sent]:
        """Make one dead letter, in several steps if it has very many headers or a long way."""
        effective = queue.effective
        vhost = queue.vhost
        target = effective.dead_letter_exchange
        if target is None or (target and vhost.router.get(target) is None):
            return _NOWHERE
        payload, body = content.split(item)
        properties = content.Properties.parse(payload, checked=True)
        headers = properties.raw.get("headers", b"")
        deaths: list[Death] = []
        if attributes.channel == LETTER_CHANNEL:
            deaths = yield from _deaths(headers)
        copies = _texts(tables.values_in(headers, _COPIES).get(b"CC"))
        keys = (
            [routing_key, *copies]
            if effective.dead_letter_routing_key is None
            else [effective.dead_letter_routing_key]
        )
        if len(keys[0].encode()) > SHORT_STRING_MAX:
            # An earlier version accepted such an argument, but no message can have a key of this length.
            return _NOWHERE
        changed = self._headers(queue, properties, deaths, exchange, [routing_key, *copies], reason)
        if effective.dead_letter_routing_key is not None:
            changed[b"CC"] = None
        properties.raw["headers"] = tables.replaced(headers, changed, checked=True)
        properties.raw.pop("expiration", None)
        # Exchanges see the new headers.
        walk = vhost.router.begin(target, keys, RoutingView(properties), vhost.next_nonce())
        try:
            for _ in walked(walk):
                yield False
        except RoutingTooLong:
            return _NOWHERE
        cycling = _cycling(queue.name, deaths, reason)
        names = walk.route.queues
        dropped = [name for name in names if name in cycling]
        if dropped:
            self._note_cycle(queue, reason, dropped)
        found = [vhost.queues.get(name) for name in names if name not in cycling]
        # Some may have been deleted while the route was looked for.
        targets = [each for each in found if each is not None]
        framed = content.build(properties.encode(len(body)), body, LETTER_CHANNEL, self._frame_max)
        size = max(len(body), 0) + 8
        largest = FRAME_BYTES_MIN if size <= FRAME_BYTES_MIN and len(payload) < 2048 else self._frame_max
        sent = Attributes(properties.persistent, attributes.priority, None, LETTER_CHANNEL, largest)
        return _Sent(targets, framed, short_string(target) + short_string(keys[0]), sent)

    def _note_cycle(self, queue: Queue, reason: Reason, names: list[str]) -> None:
        """A dead letter does not go to these queues because it would go round for ever."""
        self.cycles += len(names)
        now_ms, key = self._clock.monotonic_ms(), (queue.vhost.name, queue.name)
        logged_ms, omitted = self._logged.get(key, (-1, 0))
        if logged_ms >= 0 and now_ms - logged_ms < 1000 * CYCLE_LOG_INTERVAL_S:
            self._logged[key] = logged_ms, omitted + 1
            return
        if len(self._logged) >= CYCLE_LOGS_MAX:
            self._logged.clear()
        self._logged[key] = now_ms, 0
        logger.warning(
            "queue '%s' in vhost '%s': a dead letter (%s) for %s is dropped, because the message has died there before, "
            "in a cycle without a rejection%s",
            *(queue.name, queue.vhost.name, reason, ", ".join(f"'{name}'" for name in names[:5])),
            f" (and {omitted} more like this)" if omitted else "",
        )

    def _headers(
        self,
        queue: Queue,
        properties: content.Properties,
        deaths: list[Death],
        exchange: str,
        routing_keys: list[str],
        reason: Reason,
    ) -> dict[bytes, bytes | None]:
        """Return the header fields that change, encoded."""
        changed: dict[bytes, bytes | None] = {}
        known = next(
            (death for death in deaths if death.queue == queue.name and death.reason == reason), None
        )
        if known is None:
            fields: dict[str, object] = {
                "reason": reason,
                "queue": queue.name,
                "time": datetime.fromtimestamp(self._clock.wall_ms() // 1000, tz=UTC),
                "exchange": exchange,
                "routing-keys": routing_keys,
            }
            expiration = properties.text("expiration")
            if expiration is not None:
                fields["original-expiration"] = expiration
            newest = tables.replaced(tables.encode(fields), {b"count": _long(1)})
        else:
            newest = tables.replaced(known.table, {b"count": _long(known.times + 1)}, checked=True)
        encoded = b"".join([b"F" + table for table in (newest, *[d.table for d in deaths if d is not known])])
        changed[b"x-death"] = b"A" + len(encoded).to_bytes(4, "big") + encoded
        if not deaths:
            changed[b"x-first-death-reason"] = tables.encode_value(reason)
            changed[b"x-first-death-queue"] = tables.encode_value(queue.name)
            changed[b"x-first-death-exchange"] = tables.encode_value(exchange)
        return changed


class _Sent(NamedTuple):
    """A dead letter in the form for its targets."""

    targets: list[Queue]
    framed: bytes
    head: bytes
    attributes: Attributes


_NOWHERE = _Sent([], b"", b"", Attributes(False, 0, None, 1, 0))


def _enqueue(targets: list[Queue], sent: _Sent, outcome: Outcome | None, letter: Letter | None) -> None:
    """Hand the message to these targets, which apply it at the end of the turn."""
    for target in targets:
        run = Run(range(1), [sent.framed], sent.head, sent.attributes)
        group_header = target.group_header
        if group_header:
            name_groups(run, group_header)
        if target.host.counts_bytes:
            run = content.by_overhead(run)[0]
        if outcome is not None:
            outcome.expect(1)
        ids = (message_ids_of([sent.framed]),) if target.host.records else ()
        if letter is not None:
            target.host.submit(("enqueue_letter", run, outcome, 1, letter, *ids))
        else:
            target.host.submit(("enqueue_known" if ids else "enqueue", run, outcome, 1, *ids))


class Death(NamedTuple):
    """One entry of x-death."""

    queue: str
    reason: str
    times: int
    #: The entry as encoded bytes, with its length in front.
    table: bytes


def _deaths(headers: bytes) -> Generator[bool, None, list[Death]]:
    """Return the entries of x-death in the encoded headers table of a dead letter, newest first. Yields now
    and then, because there may be many.
    """
    deaths: list[Death] = []
    for number, table in enumerate(tables.tables_in(headers, b"x-death"), 1):
        fields = tables.values_in(table, _DEATH_FIELDS)
        queue, reason, count = (fields.get(name) for name in _DEATH_FIELDS)
        if isinstance(queue, str) and isinstance(reason, str) and isinstance(count, int):
            deaths.append(Death(queue, reason, count, table))
        if number % DEATHS_AT_ONCE == 0:
            yield False
    return deaths


def _long(number: int) -> bytes:
    """Encode a count as a long for every value, as RabbitMQ does."""
    return b"l" + number.to_bytes(8, "big", signed=True)


def _cycling(queue: str, deaths: list[Death], reason: Reason) -> set[str]:
    """Return the names of the queues where the message has died since it was last rejected, this death in
    this queue included.
    """
    cycling: set[str] = set()
    if reason != "rejected":
        cycling.add(queue)
        for death in deaths:
            if death.queue == queue and death.reason == reason:
                # This death becomes the newest entry.
                continue
            if death.reason == "rejected":
                break
            cycling.add(death.queue)
    return cycling


def carbon_copies(headers: dict[str, object] | None, name: str) -> list[str]:
    """Return the routing keys in a CC or BCC header."""
    return _texts((headers or {}).get(name))


def _texts(keys: object) -> list[str]:
    return [str(key) for key in keys] if isinstance(keys, list) else []


def parse_head(head: bytes) -> tuple[str, str]:
    """Return exchange and routing key of a run's head."""
    end = 1 + head[0]
    # A message's group may follow.
    key = head[end + 1 : end + 1 + head[end]]
    return head[1:end].decode(errors="surrogateescape"), key.decode(errors="surrogateescape")
