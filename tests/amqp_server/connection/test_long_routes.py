"""A message with a long way to its queues does not hold up other clients: its publisher waits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from amqp_server.broker import dead_letter
from exchanges.binding import Binding
from exchanges.router import AT_ONCE
from tests.amqp_server.connection.node import Delivery
from tests.amqp_server.wire.published import message
from tests.amqp_server.wire.published import method as method_bytes

from .test_slices import SlicedNode, bystander, called, opened

#: Exchanges of a long way.
MANY = 6 * AT_ONCE
#: Instructions of the longest turn.
TURN_MAX = 512_000


@pytest.fixture
def sliced() -> SlicedNode:
    return SlicedNode(alternates_max=2 * MANY)


def chain(sliced: SlicedNode, kind: str, count: int = MANY, last: str = "last") -> None:
    """Make exchanges x0, x1, ..., each with the next one as its alternate; the last one leads to the queue
    "last".
    """
    router = sliced.broker.vhost("/").router
    for number in range(count):
        router.declare(f"x{number}", kind, arguments={"alternate-exchange": f"x{number + 1}"})
    router.declare(f"x{count}", "fanout")
    router.bind(Binding(f"x{count}", last, "queue", ""))
    sliced.broker.changed()


def said(peer: Any) -> list[base.Frame | Delivery]:
    return [answer for _, answer in peer.answers()]


def bodies(peer: Any, queue: str = "last") -> list[bytes]:
    got: list[bytes] = []
    while True:
        (answer,) = called(peer, commands.Basic.Get(queue=queue, no_ack=True))
        if not isinstance(answer, Delivery):
            return got
        got.append(answer.body)


def publish(exchange: str, key: str, body: bytes, mandatory: bool = False, **properties: Any) -> bytes:
    return message(exchange, key, body, mandatory=mandatory, **properties).encode(1)


def headers(**told: Any) -> bytes:
    from amqp_server.wire import tables

    return tables.encode(told)


@pytest.mark.parametrize("kind", ["direct", "headers", "x-random"])
def test_one_message_through_a_long_chain_takes_many_short_turns(sliced: SlicedNode, kind: str) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"))
    chain(sliced, kind)
    between = bystander(sliced)
    sliced.turns.clear()
    sliced.feed(peer, publish("x0", "k", b"far") + publish("", "last", b"near"))
    assert sliced.drive(between=between) > 1
    assert max(sliced.turns) < TURN_MAX
    # The order of the client's messages is kept.
    assert bodies(peer) == [b"far", b"near"]


def test_many_keys_over_a_chain_take_many_short_turns(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"))
    chain(sliced, "direct", 20)
    between = bystander(sliced)
    sliced.turns.clear()
    keys = [f"{number}" for number in range(200)]
    sliced.feed(peer, publish("x0", "k", b"1", headers=headers(CC=keys)))
    sliced.feed(peer, publish("x0", "k", b"2", headers=headers(BCC=keys)))
    sliced.feed(peer, publish("x0", "k", b"3"))
    assert sliced.drive(between=between) > 1
    assert max(sliced.turns) < TURN_MAX
    assert bodies(peer) == [b"1", b"2", b"3"]


def test_a_way_is_remembered_until_the_topology_changes(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"), commands.Queue.Declare(queue="other"))
    kinds: list[tuple[str, dict[str, Any]]] = [("direct", {}), ("headers", {"headers": headers(a=1)})]
    for kind, properties in kinds:
        chain(sliced, kind)
        one = publish("x0", "k", b"m", **properties)
        sliced.feed(peer, one)
        assert sliced.drive() > 1
        # Now it is known.
        sliced.feed(peer, one * 3)
        assert not sliced.turn.behind
        called(
            peer, commands.Queue.Bind(queue="other", exchange=f"x{MANY - 1}", arguments={"x-match": "any"})
        )
        called(peer, commands.Exchange.Bind(destination=f"x{MANY}", source="amq.fanout"))
        sliced.feed(peer, one)
        assert sliced.drive() > 1
        assert len(bodies(peer)) == 5
        for name in [f"x{number}" for number in range(MANY + 1)]:
            sliced.broker.vhost("/").router.delete(name)
        sliced.broker.changed()


def test_a_topology_that_changes_all_the_time_does_not_keep_a_message_from_its_queue(
    sliced: SlicedNode,
) -> None:
    peer, other = opened(sliced), opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"))
    chain(sliced, "headers")
    number = itertools.count()

    def change() -> None:
        other.send(method_bytes(1, commands.Exchange.Declare(exchange=f"more{next(number)}")))

    sliced.feed(peer, publish("x0", "k", b"1", headers=headers(CC=["a", "b"])))
    sliced.feed(peer, publish("x0", "k", b"2"))
    sliced.feed(peer, publish("x0", "k", b"3", headers=headers(a=1)) * 2)
    assert sliced.drive(between=change) > 4
    assert bodies(peer) == [b"1", b"2", b"3", b"3"]


def test_mandatory_messages_and_confirms(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"), commands.Confirm.Select())
    chain(sliced, "headers", last="none")
    sliced.feed(
        peer,
        publish("x0", "k", b"back", mandatory=True)
        + publish("", "last", b"taken")
        + publish("x0", "k", b"lost"),
    )
    sliced.drive()
    answers = said(peer)
    assert [answer.body for answer in answers if isinstance(answer, Delivery)] == [b"back"]
    acks = [answer for answer in answers if isinstance(answer, commands.Basic.Ack)]
    assert max(ack.delivery_tag or 0 for ack in acks) == 3
    assert bodies(peer) == [b"taken"]


def test_a_transaction_with_long_ways(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"), commands.Tx.Select())
    chain(sliced, "headers")
    sliced.feed(peer, b"".join(publish("x0", "k", b"%d" % number) for number in range(3)))
    sliced.drive()
    assert bodies(peer) == []
    assert [type(answer) for answer in called(peer, commands.Tx.Commit())] == [commands.Tx.CommitOk]
    assert bodies(peer) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("what", ["connection", "channel", "queue"])
def test_what_ends_while_a_way_is_looked_for(sliced: SlicedNode, what: str) -> None:
    peer, other = opened(sliced), opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"))
    chain(sliced, "headers")
    memory = sliced.broker.services.memory
    before = memory.used
    sliced.feed(peer, publish("x0", "k", b"m" * 1_000))
    assert sliced.turn.behind and memory.used > before
    if what == "queue":
        called(other, commands.Queue.Delete(queue="last"))
    elif what == "channel":
        sliced.turn.run(sliced.turn.catch_up)
        sliced.turn.run(
            peer.session.channels[1].connection.close_channel, peer.session.channels[1], _failure(), (60, 40)
        )
    else:
        sliced.turn.run(peer.session.lost)
    sliced.drive()
    assert memory.used == before
    if what == "queue":
        assert [type(answer) for answer in called(peer, commands.Channel.Open())]
    assert sliced.broker.vhost("/").queues.get("last") is None or bodies(other) == []


def _failure() -> Any:
    from amqp_server.errors import PreconditionFailed

    return PreconditionFailed("planted")


def test_a_way_that_is_too_long_is_refused() -> None:
    sliced = SlicedNode(alternates_max=2 * MANY, routing_steps_max=MANY)
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"))
    chain(sliced, "headers")
    sliced.feed(peer, publish("x0", "k", b"m"))
    sliced.drive()
    (closed,) = said(peer)
    assert isinstance(closed, commands.Channel.Close) and closed.reply_code == 406
    assert f"more than {MANY} steps (routing_steps_max)" in closed.reply_text


def test_dead_letters_with_a_long_way(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    arguments: Any = {"x-dead-letter-exchange": "x0", "x-max-length": 1}
    called(
        peer, commands.Queue.Declare(queue="last"), commands.Queue.Declare(queue="from", arguments=arguments)
    )
    chain(sliced, "headers")
    between = bystander(sliced)
    sliced.turns.clear()
    sliced.feed(peer, b"".join(publish("", "from", b"%d" % number) for number in range(4)))
    assert sliced.drive(between=between) > 3
    assert max(sliced.turns) < TURN_MAX
    assert bodies(peer) == [b"0", b"1", b"2"]


def test_dead_letters_with_a_long_history(sliced: SlicedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    # The client's deaths are taken for the broker's, which alone count.
    monkeypatch.setattr(dead_letter, "LETTER_CHANNEL", 1)
    peer = opened(sliced)
    arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "last", "x-max-length": 0}
    called(
        peer,
        commands.Queue.Declare(queue="last"),
        commands.Queue.Declare(queue="from", arguments=arguments),
    )
    between = bystander(sliced)
    deaths = [{"queue": f"q{number}", "reason": "expired", "count": 2} for number in range(600)]
    sliced.turns.clear()
    sliced.feed(peer, publish("", "from", b"m", headers=headers(**{"x-death": deaths})))
    assert sliced.drive(between=between) > 1
    assert max(sliced.turns) < TURN_MAX
    (got,) = called(peer, commands.Basic.Get(queue="last", no_ack=True))
    assert isinstance(got, Delivery) and got.properties.headers is not None
    told: Any = got.properties.headers["x-death"]
    assert [(each["queue"], each["reason"], each["count"]) for each in told] == [
        ("from", "maxlen", 1), *((f"q{number}", "expired", 2) for number in range(600))
    ]  # fmt: skip


def test_events_and_copies_with_a_long_way(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last"))
    chain(sliced, "headers")
    called(peer, commands.Exchange.Bind(destination="x0", source="amq.rabbitmq.trace", routing_key="#"))
    vhost = sliced.broker.vhost("/")
    vhost.tracing = True
    between = bystander(sliced)
    sliced.turns.clear()
    sliced.feed(peer, publish("amq.fanout", "", b"traced"))
    assert sliced.drive() > 1
    assert max(sliced.turns) < TURN_MAX
    vhost.tracing = False
    del between
    assert b"traced" in bodies(peer)


def test_a_passive_declare_that_looks_behind_a_long_chain(sliced: SlicedNode) -> None:
    peer = opened(sliced)
    called(peer, commands.Queue.Declare(queue="last", arguments={"x-deduplication": True}))
    chain(sliced, "headers")
    between = bystander(sliced)
    question = commands.Exchange.Declare(exchange="x0", passive=True, arguments={"x-deduplication": True})
    sliced.turns.clear()
    sliced.feed(peer, method_bytes(1, question))
    assert sliced.drive(between=between) > 0
    assert max(sliced.turns) < TURN_MAX
    assert [type(answer) for answer in said(peer)] == [commands.Exchange.DeclareOk]


KINDS = st.lists(st.sampled_from(["direct", "fanout", "headers", "topic"]), min_size=3, max_size=3)
EDGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from(["1", "2", "#"])), max_size=10
)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["1", "2"]),
        st.sampled_from([{}, {"h": "1"}, {"h": "2"}, {"CC": ["2", "3"]}]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=15)
@given(KINDS, EDGES, MESSAGES, st.lists(st.integers(0, 5), max_size=3))
def test_messages_reach_the_same_queues_however_long_their_ways(
    kinds: list[str],
    edges: list[tuple[int, int, str]],
    messages: list[tuple[int, str, dict[str, Any]]],
    changes: list[int],
) -> None:
    """The same topology with and without a long detour in front of each exchange."""

    def outcome(detour: int) -> dict[str, list[bytes]]:
        sliced = SlicedNode(alternates_max=10 * AT_ONCE)
        peer = opened(sliced)
        called(peer, *(commands.Queue.Declare(queue=f"q{number}") for number in range(3)))
        router = sliced.broker.vhost("/").router
        for number, kind in enumerate(kinds):
            router.declare(f"x{number}", kind)
            for place in range(detour):
                router.declare(f"{number}-{place}", "fanout")
                following = f"{number}-{place + 1}" if place + 1 < detour else f"x{number}"
                router.declare(following, "fanout")
                router.bind(Binding(f"{number}-{place}", following, "exchange", ""))
        for source, destination, key in edges:
            arguments: dict[str, Any] = {"h": key}
            if destination < 3:
                router.bind(Binding(f"x{source}", f"x{destination}", "exchange", key, arguments))
            else:
                router.bind(Binding(f"x{source}", f"q{destination - 3}", "queue", key, arguments))
        sliced.broker.changed()
        for number, (exchange, key, fields) in enumerate(messages):
            properties: dict[str, Any] = {"headers": headers(**fields)} if fields else {}
            one = publish(f"{exchange}-0" if detour else f"x{exchange}", key, b"%d" % number, **properties)
            sliced.feed(peer, one * 2)
            sliced.drive()
            if number < len(changes):
                router.bind(
                    Binding(f"x{changes[number] % 3}", f"q{changes[number] // 2}", "queue", "1", {"h": "1"})
                )
                sliced.broker.changed()
        return {f"q{number}": bodies(peer, f"q{number}") for number in range(3)}

    assert outcome(0) == outcome(AT_ONCE // 2)
