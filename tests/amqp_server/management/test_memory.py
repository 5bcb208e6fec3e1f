"""The memory of requests and answers, and the places that are left to administrators."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import trio

from amqp_server.management.changes.internal_session import COPY_BYTES
from amqp_server.management.messages.by_hand import get_messages, publish_message
from amqp_server.management.parts import ManagedParts
from amqp_server.management.request.answer import Refusal
from amqp_server.management.request.memory_budget import LITTLE_BYTES, Memory
from amqp_server.management.request.payloads import CHUNK_BYTES, PIECE_BYTES, Messages, MessageView
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.resources import queues
from amqp_server.management.serving.http import Slots

from .conftest import Connect
from .test_server import LONG_S, SHORT_S, handled, log_in, serving

MIB = 1 << 20


def test_what_requests_hold_is_bounded_for_all_and_for_each_user() -> None:
    memory = Memory(16 * MIB)
    one = memory.hold("a", administrator=False)
    # However large, it may be alone.
    one.add(20 * MIB)
    one.give(15 * MIB)
    two, other = memory.hold("a", administrator=False), memory.hold("b", administrator=False)
    assert two.has_room(3 * MIB) and not two.has_room(4 * MIB)
    two.add(3 * MIB)
    assert memory.hold("a", administrator=False).has_room(LITTLE_BYTES)
    other.add(5 * MIB)
    # An eighth is left to administrators.
    with pytest.raises(Refusal) as refused:
        other.add(2 * MIB)
    assert refused.value.status == 503
    administrator = memory.hold("c", administrator=True)
    administrator.add(3 * MIB)
    for each in (one, two, other, administrator):
        with each:
            pass
    assert memory.bytes == 0 and memory.by_user == {}


def test_slots_are_left_to_administrators_and_bodies_take_none() -> None:
    slots = Slots(16, 3)
    with slots.counted("a"), slots.counted("a"), slots.counted("a"):
        with pytest.raises(Refusal), slots.counted("a"):
            pass
        # Their bodies have not come: all places are free.
        places = [slots.taken(administrator=False) for _ in range(14)]
        for place in places:
            place.__enter__()
        with pytest.raises(Refusal), slots.taken(administrator=False):
            pass
        mine = slots.taken(administrator=True), slots.taken(administrator=True)
        with mine[0], mine[1], pytest.raises(Refusal), slots.taken(administrator=True):
            pass
        for place in places:
            place.__exit__(None, None, None)
    with slots.counted("a"), slots.taken(administrator=False):
        pass


@pytest.mark.trio
async def test_users_with_slow_bodies_keep_no_administrator_out(parts: ManagedParts) -> None:
    """Users without any permission begin as many requests as there are places, and send no body."""
    limits = {"http_requests_max": 8, "http_requests_per_user_max": 4}
    async with serving(parts, **limits) as dial:
        for user in ("manager", "policies", "watcher", "admin"):
            await log_in(dial, user)
        for user in ("manager", "policies", "watcher"):
            for _ in range(4):
                slow = await dial()
                await slow.send("POST", "/api/queues/%2F/q/get", login=user, body=b"{", length=9)
        await handled(dial)
        for _ in range(3):
            assert await (await dial()).ask("GET", "/api/overview", login="admin") == 200
            assert await (await dial()).ask("PUT", "/api/vhosts/v", login="admin", body=b"{}") in (201, 204)


@pytest.mark.trio
async def test_connections_of_one_address_push_out_no_others(parts: ManagedParts) -> None:
    async with serving(parts, http_connections_max=16) as dial:
        await log_in(dial, "manager")
        mine = await dial(source="127.0.0.3")
        await mine.send("PUT", "/api/queues/%2F/q", login="manager", body=b"{", length=2)
        await handled(dial)
        crowd = [await dial(source="127.0.0.2") for _ in range(60)]
        for each in crowd[:44]:
            await each.ends()
        await mine.stream.send_all(b"}")
        assert await mine.status() == 201
        assert await (await dial()).ask("GET", "/health") == 200


@pytest.mark.trio
async def test_an_answer_that_is_taken_too_slowly_ends(parts: ManagedParts) -> None:
    for number in range(300):
        name = f"{number}-" + "x" * 240
        await queues.declare(parts.broker, "/", name, durable=False, auto_delete=False, arguments={})
    limits = {"http_send_timeout_s": LONG_S, "http_answer_timeout_s": SHORT_S}
    async with serving(parts, **limits) as dial:
        client = await dial(receive_buffer_bytes=4_096)
        for _ in range(100):
            await client.send("GET", "/api/queues", login="admin")
        # The client reads now and then, and far too little in all.
        with trio.fail_after(LONG_S):
            try:
                while await client.stream.receive_some(256):
                    await trio.sleep(SHORT_S / 10)
            except trio.BrokenResourceError:
                pass
        assert await (await dial()).ask("GET", "/health") == 200


def message(body: bytes, **headers: Any) -> MessageView:
    return MessageView(
        exchange="x",
        routing_key="k",
        redelivered=False,
        message_count=3,
        properties=lambda: {"headers": headers},
        body=body,
        size=len(body) + 512,
    )


async def told(
    found: list[tuple[int | None, MessageView]], *, encoding: str = "auto", truncate: int | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows, and the size of the largest chunk."""
    memory = Memory(1 << 40)
    with memory.hold("a", administrator=False) as held:
        for _, each in found:
            held.add(each.size)
        messages = Messages(found, Slices(1_000), held, encoding=encoding, truncate=truncate)
        chunks = [chunk async for chunk in messages.chunks()]
        # Each message is given back when it was sent.
        assert held.bytes == 0
    return json.loads(b"".join(chunks)), max(map(len, chunks))


TEXT = 'ü"\\\n\x00é€😀' * 20_000


@pytest.mark.trio
@pytest.mark.parametrize("cut", range(4))
async def test_large_bodies_are_encoded_piece_by_piece(cut: int) -> None:
    body = b"x" * cut + TEXT.encode()
    found: list[tuple[int | None, MessageView]] = [
        (None, message(body, a=[1, b"\xff"])),
        (None, message(b"\xff" * 100_000)),
    ]
    (text, binary), largest = await told(found)
    assert text["payload"].encode() == body and text["payload_encoding"] == "string"
    assert text["payload_bytes"] == len(body) and text["message_count"] == 3
    assert text["properties"] == {"headers": {"a": [1, "/w=="]}}
    assert base64.b64decode(binary["payload"]) == b"\xff" * 100_000
    assert binary["payload_encoding"] == "base64"
    # A piece of text may become six times as long.
    assert largest < CHUNK_BYTES + 7 * PIECE_BYTES
    ((text, binary), _) = await told(found, encoding="base64")
    assert base64.b64decode(text["payload"]) == body


@pytest.mark.trio
async def test_rows_of_a_stream_and_payloads_that_are_cut_off() -> None:
    rows, _ = await told([(7, message("ü".encode())), (9, message(b""))], truncate=1)
    assert [row["offset"] for row in rows] == [7, 9]
    assert all("message_count" not in row for row in rows)
    assert [row["payload_encoding"] for row in rows] == ["base64", "string"]
    assert rows[0]["payload"] == base64.b64encode("ü".encode()[:1]).decode() and rows[0]["payload_bytes"] == 2
    assert await told([]) == ([], 2)


@pytest.mark.trio
async def test_gets_beyond_the_memory_get_fewer_messages(connect: Connect, parts: ManagedParts) -> None:
    await queues.declare(parts.broker, "/", "q", durable=False, auto_delete=False, arguments={})
    for _ in range(4):
        await publish_message(parts.broker, "/", "", "q", {}, b"x" * 1_000, "guest")
    asked = {"count": 4, "ackmode": "ack_requeue_false", "encoding": "auto"}

    async def takes(size: int, before: int) -> bool:
        return before < 3

    got = await get_messages(parts.broker, "/", "q", 4, "requeue", takes)
    assert len(got) == 3
    # All four are still there.
    answer = await connect("admin").post("/queues/%2F/q/get", json=asked)
    assert answer.status_code == 200, answer.text
    assert [row["payload_bytes"] for row in answer.json()] == [1_000] * 4


@pytest.mark.trio
@pytest.mark.parametrize("size", [0, 1, COPY_BYTES, COPY_BYTES + 1, 3 * COPY_BYTES + 7])
async def test_bodies_are_read_from_chunks_that_end_anywhere(parts: ManagedParts, size: int) -> None:
    """Also in pieces: then others run in between, and the copy is as good."""
    await queues.declare(parts.broker, "/", "q", durable=False, auto_delete=False, arguments={})
    body = bytes(number % 251 for number in range(size))
    await publish_message(parts.broker, "/", "", "q", {"headers": {"a": 1}}, body, "guest")
    rests = 0

    async def rest() -> None:
        nonlocal rests
        rests += 1

    (got,) = await get_messages(parts.broker, "/", "q", 2, "requeue", rest=rest)
    assert bytes(got.body) == body and got.properties() == {"headers": {"a": 1}}
    assert rests >= (size // COPY_BYTES if size > COPY_BYTES else 0)
    (whole,) = await get_messages(parts.broker, "/", "q", 2, "ack")
    assert bytes(whole.body) == body
    assert await get_messages(parts.broker, "/", "q", 2, "ack") == []
