"""Transactions: the open ones of all clients, those that a cluster has not decided, and decisions that not
all queues have answered. An open one is rolled back for an operator, an undecided one is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from amqp_server.broker.access.users import ADMINISTRATOR, MONITORING, POLICYMAKER
from amqp_server.connection.session import Session
from amqp_server.errors import PreconditionFailed
from amqp_server.management.changes.answers import ANSWER_S
from amqp_server.management.request.answer import NO_CONTENT, Answer, Refusal, not_authorised
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Column, Row, Table
from amqp_server.management.request.listing import listing
from amqp_server.management.request.other_nodes import ask_others
from amqp_server.streams.members.parts import StreamPart
from quorum_queue.consumer_groups.parts import GroupPart
from quorum_queue.machine.parts import Part, TransactionId

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker
    from amqp_server.broker.open_transactions import OpenTransaction
    from amqp_server.cluster.coordinator.transactions import Transactions

REASON_CHARACTERS_MAX = 100
#: States of a transaction.
OPEN, UNDECIDED, COMMITTED, ABORTED = "open", "undecided", "committed", "aborted"


class Listed(NamedTuple):
    """A transaction as far as one node knows it. See COLUMNS."""

    id: str
    state: str
    vhost: str
    node: str
    age_ms: int
    messages: int = 0
    message_bytes: int = 0
    acks: int = 0
    participants: list[str] = []
    waiting_for: list[str] = []
    connection: str | None = None
    channel: int | None = None
    user: str | None = None


COLUMNS = Table(
    "Transaction",
    (
        #: What to abort it by.
        Column("id", "string", "id"),
        #: open; undecided; or committed or aborted, while queues still have to answer.
        Column("state", "string", "state"),
        Column("vhost", "string", "vhost"),
        #: The node of its client.
        Column("node", "string", "node"),
        #: Since its first publish or ack; of others, since a node has seen that they are not done.
        Column("age_ms", "integer", "age_ms"),
        Column("messages", "integer", "messages"),
        Column("message_bytes", "integer", "message_bytes"),
        Column("acks", "integer", "acks"),
        #: Its queues, at most a hundred of an open one.
        Column("participants", "array", "participants"),
        #: Queues, and perhaps a node, that have not answered yet.
        Column("waiting_for", "array", "waiting_for"),
        #: Those of the client, null if it does not wait for the commit any more.
        Column("connection", "string?", "connection"),
        Column("channel", "integer?", "channel"),
        Column("user", "string?", "user"),
    ),
)
_row = COLUMNS.rows(None)


def name_of(transaction: TransactionId) -> str:
    return ":".join(map(str, transaction))


def _parsed(name: str) -> TransactionId | None:
    """Return the transaction that a cluster decides about, None if the name is that of an open one."""
    node, *numbers = name.rsplit(":", 2)
    if len(numbers) < 2 or not all(
        each.isascii() and each.isdecimal() and len(each) < 20 for each in numbers
    ):
        return None
    return node, int(numbers[0]), int(numbers[1])


def _unknown(name: str) -> Refusal:
    return Refusal(404, "not_found", f"no transaction '{name[:200]}' is open or undecided")


def _conflict(reason: str) -> Refusal:
    return Refusal(409, "conflict", reason)


# -- rows ----------------------------------------------------------------------------------------------------


def _open_ones(broker: Broker, node: str) -> Iterator[Row | None]:
    transactions = broker.open_transactions
    for each in transactions.all():
        # It may have ended since.
        yield _row(_listed(broker, node, each)) if each.number else None


def _listed(broker: Broker, node: str, transaction: OpenTransaction) -> Listed:
    channel, transactions = transaction.channel, broker.open_transactions
    client = channel.connection.client
    return Listed(
        id=transactions.name_of(transaction),
        state=OPEN,
        vhost=channel.vhost.name,
        node=node,
        age_ms=transactions.age_ms(transaction),
        messages=transaction.published_count,
        message_bytes=transaction.published_bytes,
        acks=transaction.settled_count,
        participants=transaction.participants(),
        connection=client.name,
        channel=channel.number,
        user=client.username,
    )


def _sizes(part: Any) -> tuple[int, int, int]:
    """Return the messages of a part, their bytes, and its acks."""
    if isinstance(part, Part):
        return part.count, part.message_bytes, part.unacked_count
    if isinstance(part, StreamPart):
        appends = part.appends
        return (
            sum(count for append in appends for count, _, _ in append.stamps),
            sum(len(append.items) for append in appends),
            0,
        )
    assert isinstance(part, GroupPart)
    return 0, 0, sum(holder.count for _, holder in part.held)


def _parts_of(broker: Broker, coordinator: Transactions) -> Iterator[Row]:
    """Yield what this node knows of transactions that are not decided: their parts in the queues that it
    leads, and its clients that wait for the commit. Rows of one transaction are put together by `_merged`.
    """
    for host, part, age_ms in coordinator.parts_here():
        messages, message_bytes, acks = _sizes(part)
        transaction, queue = part.transaction, host.queue
        row = _row(
            Listed(
                id=name_of(transaction),
                state=UNDECIDED,
                vhost=queue.vhost.name,
                node=transaction[0],
                age_ms=age_ms,
                messages=messages,
                message_bytes=message_bytes,
                acks=acks,
                participants=[queue.name],
            )
        )
        assert row is not None
        yield row | {"queues": part.participants if part.prepared else []}
    for transaction, channel in broker.open_transactions.under_way():
        client = channel.connection.client
        row = _row(
            Listed(
                id=name_of(transaction),
                state=UNDECIDED,
                vhost=channel.vhost.name,
                node=transaction[0],
                age_ms=0,
                connection=client.name,
                channel=channel.number,
                user=client.username,
            )
        )
        assert row is not None
        yield row | {"queues": []}


def _merged(found: Iterable[Row]) -> dict[str, Row]:
    """Put the rows of each transaction together."""
    merged: dict[str, Row] = {}
    for row in found:
        known = merged.setdefault(row["id"], row)
        if known is row:
            continue
        for name in ("messages", "message_bytes", "acks"):
            known[name] += row[name]
        for name in ("participants", "queues"):
            known[name] = list(dict.fromkeys([*known[name], *row[name]]))
        for name in ("vhost", "connection", "channel", "user"):
            known[name] = known[name] or row[name]
        known["age_ms"] = max(known["age_ms"], row["age_ms"])
    return merged


def _add_decisions(broker: Broker, coordinator: Transactions, rows: dict[str, Row]) -> None:
    """Add what is decided, and not done everywhere."""
    queues: dict[int, Any] = getattr(broker.hosts, "queues", {})
    for transaction, committed, left, age_ms in coordinator.decisions():
        state, names, vhost = COMMITTED if committed else ABORTED, list[str](), ""
        for queue_id in left:
            queue = queues.get(queue_id)
            if not queue_id:
                names.append(f"node {transaction[0]}")
            elif queue is None or queue.deleted:
                names.append("a deleted queue")
            else:
                names.append(queue.name)
                vhost = queue.vhost.name
        told = _row(Listed(name_of(transaction), state, vhost, transaction[0], age_ms, waiting_for=names))
        assert told is not None
        known = rows.setdefault(told["id"], told)
        if known is not told:
            known |= {"state": state, "waiting_for": names, "age_ms": max(age_ms, known["age_ms"])}


def _coordinator(call: Call) -> Transactions | None:
    return None if call.parts.cluster is None else call.parts.cluster.transactions


async def _of_cluster(call: Call, others: Iterable[Row]) -> dict[str, Row]:
    """Return all transactions that are undecided, or decided and not done, by their names."""
    coordinator = _coordinator(call)
    if coordinator is None:
        return {}
    rows = _merged([*_parts_of(call.broker, coordinator), *others])
    await call.slices.rest()
    _add_decisions(call.broker, coordinator, rows)
    return rows


async def transactions(call: Call) -> Any:
    node, coordinator = call.parts.config.node, _coordinator(call)
    if call.local:
        own = () if coordinator is None else _parts_of(call.broker, coordinator)
        return await listing(call, [*_open_ones(call.broker, node), *own])
    told = (await ask_others(call)).all_rows()
    undecided = await _of_cluster(call, (row for row in told if "queues" in row))
    return await listing(call, _shown(call, node, told, undecided))


def _shown(call: Call, node: str, told: list[Row], undecided: dict[str, Row]) -> Iterator[Row | None]:
    for row in _open_ones(call.broker, node):
        yield row
    for row in told:
        yield None if "queues" in row else row
    for row in undecided.values():
        row.pop("queues", None)
        yield row


# -- aborting ------------------------------------------------------------------------------------------------


async def abort(call: Call) -> Any:
    """Administrators may abort each transaction, policymakers those in their vhosts, and users their own open
    ones, as they may close their own connections.
    """
    name = call.path["id"]
    transaction = _parsed(name)
    if transaction is not None:
        return await _abort_undecided(call, name, transaction)
    node = name.rsplit(":", 2)[0]
    if node == call.parts.config.node:
        return _abort_open(call, name)
    others = call.parts.others
    if call.local or others is None or node not in others.names():
        raise _unknown(name)
    answers = await ask_others(call, [node])
    if answers.missing:
        raise Refusal(
            503, "unavailable", f"node '{node}', which has the transaction's client, does not answer"
        )
    for refusal in answers.refusals.values():
        raise refusal
    return NO_CONTENT


def _allow(call: Call, name: str, vhost: str, identity: str | None) -> None:
    """Refuse if the user may not end a transaction in this vhost; `identity` is that of its own user."""
    if call.may(ADMINISTRATOR) or identity == call.identity:
        return
    if call.may(POLICYMAKER) and call.opens(vhost):
        return
    raise (
        not_authorised("User not authorised to end this transaction")
        if call.may(MONITORING)
        else _unknown(name)
    )


def _abort_open(call: Call, name: str) -> Answer:
    found = call.broker.open_transactions.find(name)
    session = None if found is None else found.channel.connection
    if found is None or not isinstance(session, Session):
        raise _unknown(name)
    _allow(call, name, found.channel.vhost.name, session.client.identity)
    given = "".join(letter for letter in call.reason[:REASON_CHARACTERS_MAX] if letter.isprintable())
    error = PreconditionFailed(
        f"the transaction was rolled back by user '{call.user.name[:50]}', over the management API"
        + (f": {given}" if given else "")
    )
    ended: list[bool] = []
    call.broker.turn.run(lambda: ended.append(found.end(error)))
    if ended != [True]:
        raise _conflict(
            f"the client of transaction '{name}' waits for an answer to another method: try again, or close its "
            "connection"
        )
    return NO_CONTENT


async def _abort_undecided(call: Call, name: str, transaction: TransactionId) -> Any:
    coordinator = _coordinator(call)
    if coordinator is None:
        raise _unknown(name)
    if call.local:
        # Only the node that was asked decides.
        return await listing(call, [row for row in _parts_of(call.broker, coordinator) if row["id"] == name])
    told = list[bool | None]()
    decided = trio.Event()

    def watcher(committed: bool | None) -> None:
        told.append(committed)
        decided.set()

    # From before the others are asked: one that is committed meanwhile, and forgotten, is not aborted.
    coordinator.watch(transaction, watcher)
    try:
        answers = await ask_others(call)
        row = (await _of_cluster(call, answers.all_rows())).get(name)
        _allow(call, name, "" if row is None else row["vhost"], None)
        earlier = told[0] if told else coordinator.decision_of(transaction)
        if earlier is not None:
            raise _conflict(f"transaction '{name}' is already {COMMITTED if earlier else ABORTED}")
        if row is None and answers.missing:
            raise Refusal(
                503,
                "unavailable",
                f"nodes {', '.join(answers.missing)} do not answer, and may know the transaction",
            )
        if row is None:
            raise _unknown(name)
        if not row["queues"]:
            raise _conflict(
                f"the queues of transaction '{name}' have not all of it yet: it ends by itself, try again"
            )
        if not told:
            call.broker.turn.run(coordinator.abort, transaction, row["queues"])
            with trio.move_on_after(ANSWER_S):
                await decided.wait()
    finally:
        coordinator.unwatch(transaction, watcher)
    if not told or told[0] is None:
        raise Refusal(
            503, "unavailable", f"it is not known whether transaction '{name}' was aborted: look again"
        )
    if told[0]:
        raise _conflict(f"transaction '{name}' is already {COMMITTED}")
    return NO_CONTENT
