"""Limits of queues, exchanges and bindings on three nodes: two nodes may take the last place at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from amqp_server.broker.declared.operations import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeclareSuperStream,
    PutParameter,
    Room,
    decode,
    encode,
)
from amqp_server.broker.declared.parameters import VHOST_LIMITS
from amqp_server.broker.declared.records import BindingRecord, ExchangeRecord, QueueRecord, encoded
from amqp_server.broker.topology.limits import LIMITS, QUEUES
from amqp_server.broker.topology.replication import Result
from tests.amqp_server.cluster.test_simulation_scenes import Scene

pytestmark = pytest.mark.usefixtures("hand")


def queue_record(name: str) -> QueueRecord:
    return QueueRecord("/", name, 0, False, encoded({}), node="a")


def exchange_record(name: str, type_: str = "direct", **arguments: Any) -> ExchangeRecord:
    return ExchangeRecord("/", name, type_, False, False, encoded(arguments), durable=True)


def binding_record(key: str) -> BindingRecord:
    return BindingRecord("/", "amq.direct", "one", "queue", key, encoded({}))


def partitions(name: str, room: Room | None) -> DeclareSuperStream:
    records = tuple(
        QueueRecord(
            "/",
            f"{name}-{number}",
            0,
            False,
            encoded({"x-queue-type": "stream"}),
            type="stream",
            members=("a", "b", "c"),
            leader="a",
        )
        for number in range(2)
    )
    return DeclareSuperStream(
        exchange_record(name, "x-super-stream", **{"x-partitions": 2}), 0, records, room
    )


Make = Callable[[str, Room | None], Any]
LAST_PLACE: dict[str, tuple[Make, Room, str]] = {
    "queue": (
        lambda name, room: DeclareQueue(queue_record(name), room),
        Room(queues=2, exchanges=99, bindings=99),
        "cannot declare queue 'b': queue limit in cluster (2) is reached",
    ),
    "exchange": (
        lambda name, room: DeclareExchange(exchange_record(name), room),
        Room(queues=99, exchanges=1, bindings=99),
        "cannot declare exchange 'b' in vhost '/': exchange limit of 1 is reached",
    ),
    "binding": (
        lambda name, room: Bind(binding_record(name), room),
        Room(queues=99, exchanges=99, bindings=1),
        "cannot bind to exchange 'amq.direct' in vhost '/': binding limit of 1 is reached",
    ),
    "super stream": (
        partitions,
        Room(queues=3, exchanges=99, bindings=99),
        "cannot declare queue 'b': queue limit in cluster (3) is reached",
    ),
}


def counts(scene: Scene) -> set[tuple[int, int, int]]:
    every = [node.broker.counts for node in scene.running]
    return {(each.queues, each.exchanges, each.bindings) for each in every}


def at_once(scene: Scene, *proposed: tuple[str, Any]) -> list[Result]:
    """Let several nodes propose changes, each before it has heard of the others."""
    answers: dict[int, Any] = {}
    for number, (name, operation) in enumerate(proposed):
        scene.nodes[name].cluster.replication.propose(operation, partial(answers.__setitem__, number))
    scene.wait(lambda: len(answers) == len(proposed))
    scene.settle()
    return [answers[number] for number in range(len(proposed))]


@pytest.mark.parametrize("what", LAST_PLACE)
def test_two_nodes_take_the_last_place_at_once(what: str) -> None:
    make, room, text = LAST_PLACE[what]
    scene = Scene()
    scene.propose("a", DeclareQueue(queue_record("one")))
    # Both go into the log in this order or the other one: whichever is second is refused, everywhere.
    results = at_once(scene, ("c", make("a", room)), ("b", make("b", room)))
    assert sorted(each.changed for each in results) == [False, True], results
    loser = "ab"[[each.changed for each in results].index(False)]
    assert [each.error for each in results if not each.changed] == [text.replace("'b'", f"'{loser}'")]
    assert len(counts(scene)) == 1
    # One that exists is no news and takes no place.
    winner = "ba"["ab".index(loser)]
    assert at_once(scene, ("a", make(winner, room))) == [Result(False)]
    if what != "super stream":
        # The simulation's clients would look for queues behind the partitions.
        scene.finish()


def test_the_limit_of_a_vhost_when_two_nodes_declare_at_once() -> None:
    scene = Scene()
    parameters = scene.nodes["a"].broker.runtime.parameters
    scene.propose("a", PutParameter(parameters.prepare("/", VHOST_LIMITS, LIMITS, {QUEUES: 1})))
    scene.settle()
    room = Room(99, 99, 99)
    results = at_once(
        scene, ("b", DeclareQueue(queue_record("q"), room)), ("c", DeclareQueue(queue_record("r"), room))
    )
    assert sorted(each.changed for each in results) == [False, True]
    assert [each.error.partition(": ")[2] for each in results if each.error] == [
        "queue limit in vhost '/' (1) is reached"
    ]
    assert {each[0] for each in counts(scene)} == {1}
    scene.finish()


def test_operations_of_nodes_that_know_no_room() -> None:
    record = queue_record("q")
    without = bytes((1,)) + msgspec.msgpack.encode(
        [7, *msgspec.msgpack.decode(msgspec.msgpack.encode([record]))]
    )
    assert decode(without) == DeclareQueue(record)
    assert decode(encode(DeclareQueue(record, Room(1, 2, 3)))) == DeclareQueue(record, Room(1, 2, 3))
