"""Messages moved to another queue, and dead letters moved back to where they died."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.topology.consumer_groups import refuse_publish
from amqp_server.errors import NotFound
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.changes.internal_session import Direct, Got
from amqp_server.management.messages import peeking
from amqp_server.management.messages.by_hand import refuse_while_blocked, require_read
from amqp_server.management.messages.conditions import Conditions, Message, given, require_version, wanted
from amqp_server.management.request.answer import bad_request, known, not_found
from amqp_server.management.request.call import Call
from quorum_queue.machine import versions
from quorum_queue.machine.ready import Place

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.queue import Queue


#: Messages that are moved before the request waits for their confirms.
MOVED_AT_ONCE = 100
#: A place before all messages that wait, and behind all others.
BEFORE_WAITING = "-1.0"
#: Header with the queue in which a dead letter died first.
FIRST_DEATH = "x-first-death-queue"
#: What conditions are called.
NAMES = ", ".join(Conditions.__struct_fields__)
#: Messages that one request may move; clients that want to move more send another one.
MOVE_MAX = 10_000


def _source(call: Call, vhost: str, name: str) -> Queue:
    """Return the queue to move messages from. The user needs the same permissions as a client that consumes
    from it and publishes by the default exchange.
    """
    require_read(call, vhost, name)
    call.require_own(vhost, "exchange", "", "write")
    queue = call.broker.vhost(vhost).queues.get(name)
    if queue is None:
        raise not_found()
    return queue


async def _to_move(call: Call, queue: Queue, count: int | None) -> int:
    """Return how many messages to move: those that are ready, with all that clients of any node have had
    answers to, and `count` of them at most.
    """
    if count is not None and not 1 <= count <= MOVE_MAX:
        raise bad_request(f"count must be 1 to {MOVE_MAX}")

    def ask(told: Callable[[object], None]) -> None:
        queue.host.catch_up(lambda *refused: told(refused))

    await answers_of(call.broker.turn, ask, ANSWER_S)
    return min(queue.host.ready_count, MOVE_MAX if count is None else count)


class MoveRequest(Conditions, kw_only=True):
    #: Queue in the same vhost.
    destination: str
    #: Number of messages from the head of the queue, or of messages that fulfil the conditions; all that it
    #: has now unless given.
    count: int | None = None
    #: With conditions, or `waiting`: the place of a message; begin behind it. By default at the head.
    after: str = ""
    #: Also messages that wait. Their wait goes on in the other queue.
    waiting: bool = False


async def move(call: Call) -> Any:
    """Answer with the number of moved messages, and with the number of messages after them that the other
    queue refused. With conditions: of those in a part of the queue; `next` is its end.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(MoveRequest)
    queue = _source(call, vhost, name)
    if asked.destination == name:
        raise bad_request("destination is the queue itself")
    if not given(asked) and not asked.waiting:
        if asked.after:
            raise bad_request(f"after needs conditions: {NAMES}")
        count = await _to_move(call, queue, asked.count)
        moved, refused = await move_messages(call, queue, asked.destination, count)
        return {"moved": moved, "refused": refused}
    broker = call.broker
    refuse_while_blocked(broker)
    destination = destination_of(broker, vhost, asked.destination)
    part = await matching(call, queue, asked, asked.after, asked.count, waiting=asked.waiting)
    moved = refused = 0
    async with confirming(broker, vhost) as direct:
        for places in portions(part.places):
            got = await _pick(call, direct, queue, asked, places)
            taken = await direct.hand_on(
                destination, got, call.parts.commits.barrier, call.slices.rest, one_by_one=True
            )
            moved += taken
            if taken < len(got):
                refused = len(got) - taken
                break
    return {"moved": moved, "refused": refused, "looked_at": part.looked_at, "next": part.next}


class PurgeRequest(Conditions, kw_only=True):
    #: Number of messages that are purged, at most; all that fulfil the conditions unless given.
    count: int | None = None
    #: The place of a message; begin behind it. By default at the head.
    after: str = ""
    #: Also messages that wait.
    waiting: bool = False


async def purge(call: Call) -> Any:
    """Purge messages that fulfil conditions, in a part of the queue. Answer with their number; `next` is the
    end of the part.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(PurgeRequest)
    require_read(call, vhost, name)
    queue = known(call.broker.vhost(vhost).queues.get(name))
    if not given(asked):
        raise bad_request(f"no condition is given: {NAMES}")
    part = await matching(call, queue, asked, asked.after, asked.count, waiting=asked.waiting)
    purged = 0
    with Direct(call.broker, vhost, ITSELF) as direct:
        for places in portions(part.places):
            got = await _pick(call, direct, queue, asked, places)
            await direct.ack(got, call.slices.rest)
            purged += len(got)
    return {"purged": purged, "looked_at": part.looked_at, "next": part.next}


class Part(NamedTuple):
    """The messages in a part of a queue that fulfil conditions."""

    #: Of those that wait, with the time (ms since 1970) when they are due.
    places: list[tuple[Place, int | None]]
    looked_at: int
    #: Where to go on, None at the end of the queue.
    next: str | None


async def matching(
    call: Call,
    queue: Queue,
    asked: Conditions,
    after: str,
    count: int | None,
    *,
    waiting: bool = False,
    ids: str | None = None,
) -> Part:
    """Look at as many messages as one request may. Raises Refusal."""
    if queue.type.is_stream:
        raise bad_request(f"queue '{queue.name}' is a stream: its messages stay")
    if count is not None and not 1 <= count <= MOVE_MAX:
        raise bad_request(f"count must be 1 to {MOVE_MAX}")
    require_version(call, versions.CANCELS if waiting else versions.PICKS)
    query = peeking.Query(
        after=after, count=peeking.COUNT_MAX, truncate=0, waiting=waiting, ids=ids, **given(asked)
    )
    held_before = call.held.bytes
    page = await peeking.look(call, queue, query)
    rows, end = page["messages"], page["next"]
    # Only their places go on: a request may look at many parts.
    call.held.give(call.held.bytes - held_before)
    if count is not None and len(rows) > count:
        rows = rows[:count]
        end = rows[-1]["place"]
    return Part([(peeking.place_of(row["place"]), row.get("due")) for row in rows], page["looked_at"], end)


Places = Sequence[tuple[Place, int | None]]


def portions(places: Places) -> Iterator[Places]:
    for start in range(0, len(places), MOVED_AT_ONCE):
        yield places[start : start + MOVED_AT_ONCE]


async def _pick(call: Call, direct: Direct, queue: Queue, asked: Conditions, places: Places) -> list[Got]:
    """Take the messages at these places that fulfil the conditions. After a restart of a node, others may
    have the positions of transient ones that were lost; they return to their places in the end.
    """
    # When a message came only the queue knows, and those that come later have fulfilled that, too.
    wants = list(wanted(msgspec.structs.replace(asked, since=None), 0))
    due = dict(places)
    found = await direct.pick(queue, [place for place, _ in places], call.slices.rest)
    return [
        each._replace(due_ms=due[each.place])
        for each in found
        if all(fulfils(_as_message(each)) for fulfils in wants)
    ]


def _as_message(got: Got) -> Message:
    body = got.content.body
    assert isinstance(body, bytes)
    exchange, routing_key, properties = got.carried.exchange, got.carried.routing_key, got.content.properties
    return Message("", exchange, routing_key, bool(got.ok.redelivered), lambda: properties, body)


class RedriveRequest(msgspec.Struct):
    #: Number of messages from the head of the queue; all that it has now unless given.
    count: int | None = None
    #: Also messages that wait, behind the others. Their wait goes on in the queues that they go back to.
    waiting: bool = False


async def redrive(call: Call) -> Any:
    """Move dead letters back to the queues in which they died first. Answer with the number of those, and of
    messages that stay: no dead letters, those whose queue is gone, and those that it refused.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(RedriveRequest)
    queue = _source(call, vhost, name)
    if asked.waiting:
        require_version(call, versions.CANCELS)
    count = await _to_move(call, queue, asked.count)
    moved, kept = await redrive_messages(call, queue, count)
    if asked.waiting:
        left = (MOVE_MAX if asked.count is None else asked.count) - moved - kept
        more, others = await redrive_messages(call, queue, left, BEFORE_WAITING)
        moved, kept = moved + more, kept + others
    return {"moved": moved, "kept": kept}


# -- of the broker


def destination_of(broker: Broker, vhost: str, name: str) -> Queue:
    """Return the queue to move messages to. Raises NotFound, and AccessRefused for a consumer group."""
    queue = broker.vhost(vhost).queues.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    if queue.type.is_group:
        raise refuse_publish(queue)
    return queue


@asynccontextmanager
async def confirming(broker: Broker, vhost: str) -> AsyncIterator[Direct]:
    """Open a session in which publishes are confirmed."""
    with Direct(broker, vhost, ITSELF) as direct:
        await direct.ask(commands.Confirm.Select())
        yield direct


async def move_messages(call: Call, source: Queue, destination: str, count: int) -> tuple[int, int]:
    """Move the first messages of a queue to another one; return how many went, and how many it refused.

    A message is removed from the first queue after the other one has confirmed it. If the node dies in
    between, it is in both queues.
    """
    broker = call.broker
    refuse_while_blocked(broker)
    queue = destination_of(broker, source.vhost.name, destination)
    moved = refused = 0
    async with confirming(broker, source.vhost.name) as direct:

        async def hand_on(got: list[Got]) -> bool:
            nonlocal moved, refused
            taken = await direct.hand_on(queue, got, call.parts.commits.barrier, call.slices.rest)
            moved, refused = moved + taken, len(got) - taken
            return not refused

        await _take(call, direct, source, count, "", hand_on)
    return moved, refused


async def redrive_messages(call: Call, source: Queue, count: int, after: str = "") -> tuple[int, int]:
    """Move the first messages behind a place to the queues in which they died first; return how many went,
    and how many stay at their places.
    """
    broker, vhost = call.broker, source.vhost.name
    refuse_while_blocked(broker)
    moved = 0
    async with confirming(broker, vhost) as direct:

        async def hand_on(got: list[Got]) -> bool:
            nonlocal moved
            for queue, letters in _by_first_death(broker, vhost, source.name, got):
                moved += await direct.hand_on(
                    queue, letters, call.parts.commits.barrier, call.slices.rest, one_by_one=True
                )
            return True

        seen = await _take(call, direct, source, count, after, hand_on)
    return moved, seen - moved


async def _take(
    call: Call,
    direct: Direct,
    queue: Queue,
    count: int,
    after: str,
    hand_on: Callable[[list[Got]], Awaitable[bool]],
) -> int:
    """Take messages out of a queue in their order until `hand_on` returns False; return how many it got.

    They are not got as a client does it: what stays must not come nearer to its delivery limit.
    """
    seen, place, everything = 0, after, Conditions()
    while seen < count:
        part = await matching(call, queue, everything, place, count - seen, waiting=after == BEFORE_WAITING)
        for places in portions(part.places):
            got = await _pick(call, direct, queue, everything, places)
            seen += len(got)
            if got and not await hand_on(got):
                return seen
        if part.next is None:
            break
        place = part.next
    return seen


def _by_first_death(
    broker: Broker, vhost: str, source: str, got: Sequence[Got]
) -> Iterator[tuple[Queue, list[Got]]]:
    """Yield the dead letters among these messages in their order, those for one queue together."""
    before: Queue | None = None
    letters: list[Got] = []
    for each in got:
        name = (each.content.properties.headers or {}).get(FIRST_DEATH)
        queue = broker.vhost(vhost).queues.get(name) if isinstance(name, str) and name != source else None
        if queue is None or queue.type.is_group:
            continue
        if letters and queue is not before and before is not None:
            yield before, letters
            letters = []
        before = queue
        letters.append(each)
    if letters and before is not None:
        yield before, letters
