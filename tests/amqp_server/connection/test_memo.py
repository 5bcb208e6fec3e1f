"""The memory that connections use to remember frames is bounded in bytes, over all of them, and is freed with
them.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.memo import Memo, MemoBudget
from amqp_server.wire.intake import Publisher

from ..wire.published import long, message, short
from .node import MemoryNode, Peer

LIMIT = 1 << 20
COUNT = 4_000


def opened(node: MemoryNode, exchange_type: str = "headers") -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Exchange.Declare(exchange="e", exchange_type=exchange_type))
    peer.call(1, commands.Queue.Declare(queue="q", arguments={"x-max-length": 1}))
    arguments: Any = {"x": "y"}
    peer.call(1, commands.Queue.Bind(queue="q", exchange="e", routing_key="q", arguments=arguments))
    peer.answers()
    return peer


def table(size: int, number: int) -> bytes:
    field = short(b"number") + b"l" + struct.pack(">q", number) + short(b"text") + b"S"
    return long(field + long(b"x" * size))


def distinct_keys(number: int) -> bytes:
    return message("e", f"{number:06}".ljust(255, "k"), b"").encode(1)


def distinct_headers(number: int) -> bytes:
    return message("e", "k", b"", headers=table(900, number)).encode(1)


def long_headers(number: int) -> bytes:
    """Header tables of different lengths, and so of different shapes."""
    return message("e", "k", b"", headers=table(30_000 + number, number)).encode(1)


def both(number: int) -> bytes:
    headers = table(900, number)
    return message("e", f"{number % 8:06}", b"", headers=headers).encode(1)


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


@pytest.mark.parametrize("one", [distinct_keys, distinct_headers, long_headers, both])
def test_one_connection_fills_no_more_than_the_limit(
    traced: Callable[[], int], one: Callable[[int], bytes]
) -> None:
    node = MemoryNode(memo_bytes_max=LIMIT)
    peer = opened(node)
    before = traced()
    for number in range(COUNT // 10 if one is long_headers else COUNT):
        peer.send(one(number))
        assert node.broker.memo.used <= LIMIT
    assert traced() - before < 2 * LIMIT
    node.turn.run(peer.session.lost)
    assert node.broker.memo.used == 0


def test_many_connections_together(traced: Callable[[], int]) -> None:
    node = MemoryNode(memo_bytes_max=LIMIT)
    peers = [opened(node) for _ in range(20)]
    before = traced()
    for number in range(400):
        for peer in peers:
            peer.send(distinct_headers(number))
    assert 0 < node.broker.memo.used <= LIMIT
    assert traced() - before < 2 * LIMIT
    for peer in peers:
        node.turn.run(peer.session.lost)
    assert node.broker.memo.used == 0


def test_an_alarm_clears_it_and_what_is_estimated_is_near_what_there_is(traced: Callable[[], int]) -> None:
    node = MemoryNode()
    peer = opened(node)
    peer.send(distinct_headers(COUNT))
    before = traced()
    for number in range(COUNT):
        peer.send(distinct_headers(number))
    used = node.broker.memo.used
    assert used > COUNT * 900
    assert 0.5 < (traced() - before) / used < 2
    node.turn.run(node.broker.alarms.set, "memory", True)
    assert node.broker.memo.used == 0
    assert traced() - before < used // 10


def test_messages_go_where_they_went() -> None:
    """Though the memo is emptied again and again, even within a read."""
    node = MemoryNode(memo_bytes_max=1 << 16)
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Exchange.Declare(exchange="e", exchange_type="headers"))
    for parity in (0, 1):
        name = f"q{parity}"
        peer.call(1, commands.Queue.Declare(queue=name))
        peer.call(1, commands.Queue.Bind(queue=name, exchange="e", arguments={"odd": parity}))

    def numbered(number: int) -> bytes:
        odd = short(b"odd") + b"l" + struct.pack(">q", number % 2)
        text = short(b"text") + b"S" + long(b"x" * 500) + short(b"n") + b"l" + struct.pack(">q", number)
        return message("e", f"{number % 3}", str(number).encode(), headers=long(odd + text)).encode(1)

    peer.send(*map(numbered, range(1_000)))
    for parity in (0, 1):
        found = [item.split(b"\x03\0\1")[-1][4:-1] for _, item, _ in node.contents()[f"q{parity}"]]
        assert found == [str(number).encode() for number in range(parity, 1_000, 2)]


def test_long_headers_are_not_learnt() -> None:
    forgotten: list[None] = []
    budget = MemoBudget(LIMIT, lambda: forgotten.append(None))
    publisher = Publisher(131_072, b"guest", 1 << 20, memo=Memo(budget))
    for number in range(100):
        payload = message("e", "k", b"", headers=table(50_000 + number, number)).header
        attributes, mask = publisher.properties(payload, 12, len(payload), 0x2000, 1, True)
        assert attributes is not None and not mask
    assert budget.used == 0 and not forgotten
