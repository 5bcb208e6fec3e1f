"""One answer for the whole cluster: this node sends the request to the other nodes, and each answers with its
own part.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
import trio

from amqp_server.errors import AMQPError
from amqp_server.management.request.answer import Answer, Refusal, encode, not_found, refusal_of
from amqp_server.management.request.call import Call
from amqp_server.management.request.listing import Rows
from amqp_server.management.request.questions import Part, Question, Told

log = logging.getLogger("mqd.management")

Row = dict[str, Any]
#: Fields of the query that go to the other nodes; the node that the client asked sorts, filters and pages.
PASSED_ON = tuple(
    f"{name}_{part}"
    for name in ("lengths", "msg_rates", "data_rates", "node_stats")
    for part in ("age", "incr")
)
#: Bytes of rows in one part of an answer: a part is decoded in one step.
PART_BYTES = 16_384
#: Decoded rows take so many times the memory of their JSON.
ROWS_SHARE = 4


class Answers:
    """The rows of the other nodes, and the nodes that did not answer."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.bodies: dict[str, Any] = {}
        self.missing: list[str] = []
        #: What nodes have refused.
        self.refusals: dict[str, Refusal] = {}

    def all_rows(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]

    def complete(self) -> list[Any]:
        """Return the bodies. Raises Refusal if a node has refused, or does not answer."""
        for refusal in self.refusals.values():
            raise refusal
        for name in self.missing:
            raise Refusal(503, "unavailable", f"node {name} does not answer")
        return list(self.bodies.values())


class Instead(NamedTuple):
    """A request (GET) that the other nodes get, with the parts of this call's path, instead of its own."""

    route: str
    query: dict[str, str]


async def ask_others(
    call: Call,
    nodes: Sequence[str] | None = None,
    part: Part | None = None,
    passed_on: Sequence[str] = PASSED_ON,
    instead: Instead | None = None,
    *,
    with_body: bool = False,
) -> Answers:
    """Send the request of this call to the other nodes, or to some; each answers with its own part. They get
    these fields of its query, and its body if `with_body`.
    """
    answers = Answers()
    assert call.everywhere or instead is not None, f"other nodes do not answer {call.method} {call.route}"
    others = call.parts.others
    if call.local or others is None:
        return answers
    query = {name: call.query[name] for name in passed_on if name in call.query}
    question = encode(
        Question(
            method=call.method if instead is None else "GET",
            path=call.route if instead is None else instead.route,
            parts=dict(call.path),
            query=query if instead is None else instead.query,
            user=call.user.name,
            reason=call.reason,
            scopes=None if call.scopes is None else list(call.scopes),
            tags=list(call.user.tags),
            part=part,
            body=call.body.decode() if with_body else "",
        )
    )

    refused: list[Refusal] = []

    async def ask(node: str) -> None:
        parts = await others.ask(node, question)
        if parts is None:
            answers.missing.append(node)
            return
        try:
            call.held.add(ROWS_SHARE * sum(map(len, parts)))
        except Refusal as refusal:
            refused.append(refusal)
            return
        rows: list[Row] = []
        for part in parts[:-1]:
            await call.slices.rest()
            rows += msgspec.json.decode(part)
        told = msgspec.json.decode(parts[-1], type=Told)
        answers.rows[node] = rows
        if told.status < 300 and told.body is not None:
            answers.bodies[node] = told.body
        elif told.status in (200, 204):
            answers.bodies.setdefault(node, None)
        elif isinstance(told.body, dict) and told.body.keys() >= {"error", "reason"}:
            answers.refusals[node] = Refusal(told.status, told.body["error"], told.body["reason"])

    async with trio.open_nursery() as nursery:
        for node in others.names() if nodes is None else nodes:
            nursery.start_soon(ask, node)
    if refused:
        raise refused[0]
    answers.missing.sort()
    call.missing = sorted({*call.missing, *answers.missing})
    return answers


def once_per_node(call: Call, rows: Iterable[Row], *fields: str) -> list[Row]:
    """Return one row for each node and each value of these fields, with the node's name: that of the first of
    its workers which has one. The rows have the names of workers as `node`.
    """
    administration = call.parts.administration
    if administration is None:
        return list(rows)
    found: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda row: str(row["node"])):
        node = administration.node_of(row["node"])
        found.setdefault((node, *(row[name] for name in fields)), row | {"node": node})
    return list(found.values())


async def ask_workers(call: Call) -> Answers:
    """Ask the other workers of this node, which is one for whoever asks it."""
    node = call.parts.administration
    return Answers() if node is None else await ask_others(call, node.other_workers())


async def ask_whole_node(call: Call, name: str) -> tuple[bool, Answers]:
    """Ask all workers of a node, or the one worker of this name. Return whether this process is one of them,
    and the answers of the others. Raises Refusal if there is no node of this name.
    """
    own, others, cluster = call.parts.config.node, call.parts.others, call.parts.administration
    if call.local:
        return True, Answers()
    asked = [name] if cluster is None else cluster.workers_of(name) or [name]
    if name != own and (others is None or asked[0] not in (own, *others.names())):
        raise not_found()
    return own in asked, await ask_others(call, [each for each in asked if each != own])


async def ask_node(
    call: Call, name: str, passed_on: Sequence[str] = PASSED_ON, instead: Instead | None = None
) -> Answers:
    """Ask one other node. Raises Refusal if there is no node of this name."""
    others = call.parts.others
    if call.local or others is None or name not in others.names():
        raise not_found()
    return await ask_others(call, [name], passed_on=passed_on, instead=instead)


Handler = Callable[[Call], Awaitable[Any]]


async def answer(
    question: bytes, make: Callable[[Question], tuple[Handler, Call]]
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of this node's answer."""
    status, body = 200, None
    call: Call | None = None
    try:
        handler, call = make(msgspec.json.decode(question, type=Question))
        told = await call.permitted(handler)
        if isinstance(told, Answer):
            status, body = told.status, told.body
        elif isinstance(told, Rows):
            async with aclosing(told.parts(PART_BYTES)) as parts:
                async for part in parts:
                    yield part
        else:
            body = told
    except Refusal as refusal:
        status, body = refusal.status, refusal.body
    except AMQPError as error:
        refused = refusal_of(error)
        status, body = refused.status, refused.body
    finally:
        if call is not None:
            call.end()
    yield encode(Told(status, body))
