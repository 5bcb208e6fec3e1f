"""The memory of a queue that no client uses. There may be a hundred thousand of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from pamqp import commands

from quorum_queue.empty import NO_DEQUE, NO_DICT, NO_LIST

from ..connection.node import MemoryNode, Peer

pytestmark = pytest.mark.pure

QUEUES = 400
#: A queue with its binding. Interpreted code takes more than the compiled classes: attributes of some classes
#: are in dictionaries.
BYTES_MAX = 2_800


def declare(peer: Peer, name: str, count: int, **options: Any) -> None:
    for number in range(count):
        queue = f"{name}-{number:04}"
        peer.call(1, commands.Queue.Declare(queue=queue, **options))
        peer.call(1, commands.Queue.Bind(queue=queue, exchange="amq.direct", routing_key=queue))
    peer.answers()
    peer.output, peer._read = b"", 0


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_at_rest_is_small(durable: bool) -> None:
    node = MemoryNode()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    declare(peer, "warm", 50, durable=durable)
    tracemalloc.start()
    try:
        declare(peer, "queue", QUEUES, durable=durable)
        taken = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Here the store is in memory, which it is not in a broker.
    taken = taken.filter_traces(
        [
            tracemalloc.Filter(False, f"*/{each}")
            for each in ("persistence/*", "tests/*", "broker/metadata.py")
        ]
    )
    each = sum(trace.size for trace in taken.traces) / QUEUES
    by_line = taken.statistics("lineno")[:40]
    assert each < BYTES_MAX, "\n".join(f"{line.size / QUEUES:7.0f} {line.traceback}" for line in by_line)


@pytest.mark.parametrize("add", [
    lambda: NO_DICT.update(a=1),
    lambda: NO_DICT.setdefault("a", 1),
    lambda: NO_LIST.append(1),
    lambda: NO_LIST.extend([1]),
    lambda: NO_DEQUE.append(1),
])  # fmt: skip
def test_nobody_adds_to_what_queues_at_rest_share(add: Any) -> None:
    with pytest.raises(TypeError, match="stays empty"):
        add()
    assert not (NO_DICT or NO_LIST or NO_DEQUE)
