"""Messages that wait are cancelled by their ids: for operators, and for clients that ask by messages to
amq.mqd.cancel (see broker.questions.cancels).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.access.users import MANAGEMENT, User
from amqp_server.broker.message_status import id_of
from amqp_server.broker.questions.answering import Answer, refusal
from amqp_server.broker.questions.cancels import Request
from amqp_server.errors import AMQPError, InternalError, Unavailable
from amqp_server.management.changes.answers import ANSWER_S, answers_of
from amqp_server.management.changes.internal_session import Direct
from amqp_server.management.messages.by_hand import require_read
from amqp_server.management.messages.conditions import Conditions, message_id_of
from amqp_server.management.messages.moving import BEFORE_WAITING, matching, portions
from amqp_server.management.request.answer import Refusal, bad_request, known, refusal_of
from amqp_server.management.request.call import Call
from amqp_server.management.request.time_slices import Slices
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue
    from amqp_server.management.parts import ManagedParts

log = logging.getLogger("mqd.management")
#: Searches under way at a time.
SEARCHES_MAX = 2
#: Time after which a search lets other work go first: after about every look at 1,000 messages.
SLICE_MS = 0.5
#: The permissions of clients were checked where they asked.
SCOPES = ("read:*/*",)


#: Messages that one request to cancel some looks at, about.
CANCEL_LOOKS = 100_000


class CancelRequest(msgspec.Struct):
    message_id: str
    #: True if the id is given by its bytes, in hexadecimal digits.
    hex: bool = False
    #: The place of a message that waits; begin behind it. By default at the first.
    after: str = BEFORE_WAITING


async def cancel(call: Call) -> Any:
    """Delete messages that wait and have this message-id. Answer with their number; `next` is None when all
    messages that wait were looked at.
    """
    vhost, name = call.own_vhost(), call.path["name"]
    asked = call.read(CancelRequest)
    require_read(call, vhost, name)
    queue = known(call.broker.vhost(vhost).queues.get(name))
    try:
        message_id = id_of(asked.message_id, hex=asked.hex)
    except AMQPError as error:
        raise refusal_of(error) from None
    if not asked.after.startswith("-"):
        raise bad_request("after must be the place of a message that waits, such as -1798000000000.17")
    cancelled, looked_at, after = await cancel_waiting(call, queue, [message_id], asked.after, CANCEL_LOOKS)
    return {"cancelled": cancelled.get(message_id, 0), "looked_at": looked_at, "next": after}


async def cancel_waiting(
    call: Call, queue: Queue, ids: Sequence[bytes], after: str | None, looks_max: int
) -> tuple[dict[bytes, int], int, str | None]:
    """Delete messages that wait behind a place and have one of these ids. Return how many of each id there
    were, how many messages were looked at, and where to go on. Raises Refusal, AMQPError.
    """
    cancelled: dict[bytes, int] = {}
    looked_at = 0
    text = ",".join(each.hex() for each in ids)
    with Direct(call.broker, queue.vhost.name, ITSELF) as direct:
        while after is not None and looked_at < looks_max:
            held = call.held.bytes
            part = await matching(call, queue, Conditions(), after, None, waiting=True, ids=text)
            # Copies of the messages that were looked at.
            call.held.give(call.held.bytes - held)
            looked_at, after = looked_at + part.looked_at, part.next
            for places in portions(part.places):
                found = await direct.pick(queue, [place for place, _ in places], call.slices.rest)
                got = [each for each in found if message_id_of(each.content.properties) in ids]
                await direct.ack(got, call.slices.rest)
                for each in got:
                    message_id = message_id_of(each.content.properties)
                    cancelled[message_id] = cancelled.get(message_id, 0) + 1
        if cancelled:
            await _settled(call, queue)
    return cancelled, looked_at, after


async def _settled(call: Call, queue: Queue) -> None:
    """Wait until the queue has the acks, and they are on the disk: what was answered does not come back."""

    def ask(told: Callable[[tuple[Refused, ...]], None]) -> None:
        queue.host.barrier(lambda *why: told(why))

    answers = await answers_of(call.broker.turn, ask, ANSWER_S)
    if not answers or answers[0]:
        why = answers[0][0].text if answers else f"no answer within {ANSWER_S:g} s"
        raise Unavailable(f"queue '{queue.name}': {why}; whether messages were cancelled is not known")
    await call.parts.commits.barrier()


# -- for clients ---------------------------------------------------------------------------------------------


async def cancel_for_clients(parts: ManagedParts, begun: trio.MemoryReceiveChannel[None]) -> None:
    """Answer requests until cancelled. `begun` gets something when there are some."""
    slices = Slices(SLICE_MS, parts.clients_wait)
    places = trio.CapacityLimiter(SEARCHES_MAX)

    async def search(requests: list[Request]) -> None:
        async with places:
            answers = await _answers(parts, slices, requests)

        def tell() -> None:
            for request, answer in zip(requests, answers, strict=True):
                request.done(answer)

        parts.broker.turn.run(tell)

    async with trio.open_nursery() as searching:
        async for _ in begun:
            while requests := parts.broker.cancels.take():
                searching.start_soon(search, requests)


async def _answers(parts: ManagedParts, slices: Slices, requests: list[Request]) -> list[Answer]:
    queue = requests[0].queue
    path = {"vhost": queue.vhost.name, "name": queue.name}
    user = User(ITSELF, "", (MANAGEMENT,))
    call = Call(parts, user, path, {}, b"", slices, 0, method="POST", scopes=SCOPES)
    ids = list(dict.fromkeys(request.message_id for request in requests))
    try:
        cancelled, looked_at, _ = await cancel_waiting(call, queue, ids, BEFORE_WAITING, 1 << 62)
    except Refusal as refused:
        error: AMQPError = Unavailable(str(refused.body.get("reason", refused)))
    except AMQPError as failed:
        error = failed
    except Exception:
        log.exception("messages of queue '%s' could not be cancelled", queue.name)
        error = InternalError("the request failed; the node's log says more")
    else:
        return [_told(queue.name, request, cancelled, looked_at) for request in requests]
    finally:
        call.end()
    return [refusal(error) for _ in requests]


def _told(name: str, request: Request, cancelled: dict[bytes, int], looked_at: int) -> Answer:
    text = request.message_id.decode(errors="replace")
    return {
        "queue": name,
        "message_id": text,
        # The first of several requests for one id has cancelled them.
        "cancelled": cancelled.pop(request.message_id, 0),
        "looked_at": looked_at,
    }


__all__ = ["cancel_for_clients"]
