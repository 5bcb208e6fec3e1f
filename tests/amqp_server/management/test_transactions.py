"""Open transactions are listed with what they hold, whichever node has them, and end for who may end them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pamqp import commands

from amqp_server.management.resources import transactions
from amqp_server.streams.members.entries import Append
from amqp_server.streams.members.parts import StreamPart
from quorum_queue.consumer_groups.group import Member
from quorum_queue.consumer_groups.parts import GroupPart
from quorum_queue.machine.parts import Part
from tests.amqp_server.management.test_everywhere import Two, ask, two

from .conftest import published

__all__ = ["ask", "two"]
Ask = Callable[..., httpx.AsyncClient]


def open_one(two: Two, node: str = "n2", *, count: int = 2, user: str = "") -> None:
    peer = two.peers[node]
    peer.call(1, commands.Queue.Declare(queue="q"), commands.Queue.Declare(queue="p"))
    peer.call(1, commands.Tx.Select())
    for key in ("q", "p")[:count]:
        peer.send(published(1, "", key, b"body"))
    peer.answers()
    if user:
        peer.session.client.username = peer.session.client.identity = user


async def listed(ask: Ask, node: str = "n1", user: str = "admin") -> list[dict[str, Any]]:
    answer = await ask(node, user).get("transactions")
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()
    return rows


def closes(two: Two, node: str) -> list[commands.Channel.Close]:
    two.nodes[node].sync()
    return [each for _, each in two.peers[node].answers() if isinstance(each, commands.Channel.Close)]


async def test_open_transactions_of_all_nodes_are_listed(two: Two, ask: Ask) -> None:
    open_one(two)
    open_one(two, "n1", count=1)
    peer = two.peers["n1"]
    peer.call(2, commands.Channel.Open())
    peer.call(2, commands.Queue.Declare(queue="acked"))
    peer.send(published(2, "", "acked", b"1"), published(2, "", "acked", b"2"))
    peer.call(1, commands.Basic.Get(queue="acked"), commands.Basic.Get(queue="acked"))
    peer.call(1, commands.Basic.Ack(delivery_tag=2, multiple=True))
    for node in two.nodes.values():
        node.clock.now_ms += 1_234
    for asked in ("n1", "n2"):
        rows = {row["node"]: row for row in await listed(ask, asked)}
        here, there = rows["n1"], rows["n2"]
        for row, port in ((here, 1), (there, 2)):
            assert (row["state"], row["age_ms"], row["vhost"], row["user"]) == ("open", 1_234, "/", "guest")
            assert (row["connection"], row["channel"]) == (f"127.0.0.1:{port} -> 127.0.0.1:5672", 1)
            assert row["waiting_for"] == [] and row["message_bytes"] > 0
        assert (there["messages"], there["acks"], there["participants"]) == (2, 0, ["q", "p"])
        assert (here["messages"], here["acks"], here["participants"]) == (1, 2, ["q", "acked"])
    page = (await ask("n1").get("transactions?page=1&page_size=1&sort=messages&sort_reverse=true")).json()
    assert (page["total_count"], [row["messages"] for row in page["items"]]) == (2, [2])
    names = (await ask("n1").get("transactions?columns=node,acks&sort=acks")).json()
    assert names == [{"node": "n2", "acks": 0}, {"node": "n1", "acks": 2}]
    two.peers["n2"].call(1, commands.Tx.Commit())
    peer.call(1, commands.Tx.Rollback())
    assert await listed(ask) == []


@pytest.mark.parametrize("asked", ["n1", "n2"])
async def test_an_open_transaction_is_aborted(
    two: Two, ask: Ask, asked: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mqd.audit")
    open_one(two)
    (row,) = await listed(ask)
    answer = await ask(asked).delete(f"transactions/{row['id']}", headers={"x-reason": "too old"})
    assert answer.status_code == 204
    assert [each.getMessage() for each in caplog.records if each.name == "mqd.audit"] == [
        f"user 'admin' from 127.0.0.1: DELETE /api/transactions/{row['id']}: 204"
    ]
    (told,) = closes(two, "n2")
    assert told.reply_code == 406
    assert told.reply_text == (
        "PRECONDITION_FAILED - the transaction was rolled back by user 'admin', over the management API: too old"
    )
    assert two.nodes["n2"].ready("q") == 0
    assert await listed(ask) == []
    answer = await ask(asked).delete(f"transactions/{row['id']}")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "not_found", "reason": f"no transaction '{row['id']}' is open or undecided"},
    )


@pytest.mark.parametrize(
    "name",
    ["x", "n1:open-0:1", "n9:open-0:1", "n1:1:2", "n1:x:1", "n1:1:99999999999999999999999", "%F0%9F%90%87"],
)
async def test_unknown_ids(two: Two, ask: Ask, name: str) -> None:
    open_one(two)
    answer = await ask("n1").delete(f"transactions/{name}")
    assert answer.status_code == 404 and "is open or undecided" in answer.json()["reason"]
    assert len(await listed(ask)) == 1


async def test_a_node_that_does_not_answer_may_have_it(two: Two, ask: Ask) -> None:
    answer = await ask("n1").delete("transactions/n3:open-0:1")
    assert answer.status_code == 503
    assert "node 'n3', which has the transaction's client, does not answer" in answer.json()["reason"]


@pytest.mark.parametrize(
    ("user", "tags", "vhost", "own", "status"),
    [
        ("boss", ("administrator",), False, False, 204),
        ("maker", ("policymaker",), True, False, 204),
        # A policymaker needs permissions in the vhost.
        ("maker", ("policymaker",), False, False, 404),
        ("watch", ("monitoring",), True, False, 401),
        ("plain", ("management",), True, False, 404),
        ("plain", ("management",), True, True, 204),
    ],
)
async def test_who_may_abort(
    two: Two, ask: Ask, user: str, tags: tuple[str, ...], vhost: bool, own: bool, status: int
) -> None:
    from .conftest import sha256

    for node in two.nodes.values():
        node.broker.access.users.put(user, sha256(user), tags)
        if vhost:
            node.broker.access.permissions.set(user, "/", "", "", "")
    # A client of the same name that has logged in in another way is another user.
    open_one(two, user=user if own else "")
    if not own:
        two.peers["n2"].session.client.username = user
        two.peers["n2"].session.client.identity = f"{user}\0token"
    (row,) = await listed(ask)
    assert row["user"] == user
    for asked in ("n1", "n2") if status != 204 else ("n1",):
        answer = await ask(asked, user).delete(f"transactions/{row['id']}")
        assert answer.status_code == status, answer.text
    assert len(await listed(ask)) == (status != 204)
    assert len(closes(two, "n2")) == (status == 204)


async def test_who_may_list(two: Two, ask: Ask) -> None:
    open_one(two)
    assert len(await listed(ask, user="watcher")) == 1
    assert (await ask("n1", "manager").get("transactions")).status_code == 401


@pytest.mark.pure
async def test_a_client_that_waits_for_an_answer(two: Two, ask: Ask) -> None:
    open_one(two)
    (row,) = await listed(ask)
    session: Any = two.peers["n2"].session
    session.suspended = object()
    answer = await ask("n1").delete(f"transactions/{row['id']}")
    assert answer.status_code == 409 and "waits for an answer to another method" in answer.json()["reason"]
    assert len(await listed(ask)) == 1


async def test_names_of_participants_are_bounded(two: Two, ask: Ask) -> None:
    peer = two.peers["n1"]
    peer.call(1, commands.Tx.Select())
    for number in range(150):
        peer.call(1, commands.Queue.Declare(queue=f"q{number}"))
        peer.send(published(1, "", f"q{number}", b"body"))
    (row,) = await listed(ask)
    assert row["messages"] == 150
    assert row["participants"] == [f"q{number}" for number in range(100)]


def test_what_parts_hold() -> None:
    queue, stream, group = Part(("n", 1, 1), 0), StreamPart(("n", 1, 1)), GroupPart(("n", 1, 1))
    queue.count, queue.message_bytes, queue.unacked_count = 2, 30, 4
    stream.appends += [
        Append(b"", b"", memoryview(b"x" * size), [(count, size // count, 0)])
        for size, count in ((10, 2), (9, 3))
    ]
    for verb, tags in (("settle", 3), ("return", 2)):
        member = Member(("c", 1, 1, 1, "t", False), channel=("c", 1, 1, 1))
        member.count = tags
        group.held.append((verb, member))
    assert [transactions._sizes(part) for part in (queue, stream, group)] == [
        (2, 30, 4),
        (5, 19, 0),
        (0, 0, 5),
    ]
