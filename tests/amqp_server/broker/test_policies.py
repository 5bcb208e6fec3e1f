"""Policies: their settings, and how these reach queues."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.operations import ClearParameter, DeleteVhost, PutParameter
from amqp_server.broker.declared.parameters import OPERATOR_POLICY, POLICY, ParameterRefused
from amqp_server.broker.declared.policy import APPLIES, AppliedPolicies, Policy, check_definition, joined
from amqp_server.broker.declared.queue_types import CLASSIC, GROUP, QUORUM, STREAM
from amqp_server.broker.pattern import compile_policy
from amqp_server.broker.recovery import recovery
from amqp_server.broker.topology import policies
from amqp_server.broker.topology.policies import Policies
from amqp_server.config import Config
from amqp_server.turn import Turn
from persistence.journal import Journal
from tests.amqp_server.connection.node import Commits, MemoryNode, Peer, make_broker
from tests.amqp_server.wire.published import message


def put(
    broker: Broker,
    name: str,
    definition: dict[str, Any],
    pattern: str = "",
    *,
    operator: bool = False,
    priority: int = 0,
    apply_to: str = "all",
) -> None:
    record = broker.runtime.policies.prepare(
        "/",
        name,
        pattern=pattern,
        definition=definition,
        priority=priority,
        apply_to=apply_to,
        operator=operator,
    )
    broker.turn.run(broker.propose, PutParameter(record))


def clear(broker: Broker, name: str, component: str = POLICY) -> None:
    broker.turn.run(broker.propose, ClearParameter("/", component, name))


def declare(peer: Peer, queue: str, **arguments: Any) -> None:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    peer.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=named))


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
def peer(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    return peer


def publish(peer: Peer, queue: str, headers: bytes = b"\0\0\0\0") -> None:
    peer.send(message("", queue, delivery_mode=b"\x02", headers=headers).encode(1))


JOINED = [
    (QueueArguments(), {"max-length": 5}, {"max_length": 5}),
    (QueueArguments(max_length=3), {"max-length": 5}, {"max_length": 3}),
    (QueueArguments(max_length=7), {"max-length": 5}, {"max_length": 5}),
    (QueueArguments(expires_ms=7), {"expires": 5}, {"expires_ms": 5}),
    (QueueArguments(overflow="drop-head"), {"overflow": "reject-publish"}, {"overflow": "drop-head"}),
    (QueueArguments(), {"overflow": "reject-publish"}, {"overflow": "reject-publish"}),
    (QueueArguments(dead_letter_exchange="a"), {"dead-letter-exchange": "b"}, {"dead_letter_exchange": "a"}),
    # For these settings RabbitMQ gives the policy precedence.
    (
        QueueArguments("quorum", overflow="drop-head", expires_ms=3),
        {"overflow": "reject-publish", "expires": 5},
        {"overflow": "reject-publish", "expires_ms": 5},
    ),
    (
        QueueArguments("stream", max_age_ms=1, max_length_bytes=3),
        {"max-age": "1s", "max-length-bytes": 5},
        {"max_age_ms": 1000, "max_length_bytes": 5},
    ),
    (QueueArguments("stream"), {"stream-max-segment-size-bytes": 0}, {"segment_bytes": None}),
    # This queue is declared without a limit.
    (QueueArguments("quorum", delivery_limit=-1), {"delivery-limit": 5}, {"delivery_limit": 5}),
    (QueueArguments("quorum", delivery_limit=2), {"delivery-limit": 5}, {"delivery_limit": 2}),
    (QueueArguments(), {"deduplication-count": 5}, {"deduplication_count": 5, "deduplication": True}),
    (QueueArguments(deduplication=False), {"deduplication-count": 5}, {"deduplication": False}),
    (QueueArguments(), {"alternate-exchange": "x"}, {}),
]


@pytest.mark.parametrize(("declared", "definition", "changed"), JOINED)
def test_what_a_queue_does_by_its_arguments_and_its_policy(
    declared: QueueArguments, definition: dict[str, Any], changed: dict[str, Any]
) -> None:
    found = joined(declared, definition)
    assert {name: getattr(found, name) for name in changed} == changed
    for name in QueueArguments.__dataclass_fields__:
        if name not in changed and name not in ("overflow", "deduplication_count"):
            assert getattr(found, name) == getattr(declared, name)


def test_the_smaller_value_of_policy_and_operator_policy_holds() -> None:
    def policy(**definition: Any) -> Policy:
        named = {name.replace("_", "-"): value for name, value in definition.items()}
        return Policy("/", "p", "", "all", 0, named)

    assert AppliedPolicies(policy(max_length=2, overflow="drop-head"), policy(max_length=1)).definition == {
        "max-length": 1,
        "overflow": "drop-head",
    }
    assert AppliedPolicies(policy(expires=2), policy(max_length=1)).definition == {
        "expires": 2,
        "max-length": 1,
    }
    # No delivery limit is more than any.
    for own, operators in ((-1, 9), (9, -1), (9, 12)):
        both = AppliedPolicies(policy(delivery_limit=own), policy(delivery_limit=operators))
        assert both.definition == {"delivery-limit": 9}
    assert AppliedPolicies(None, policy(max_length=1)).definition == {"max-length": 1}
    assert AppliedPolicies().definition == {}


@pytest.mark.parametrize(
    ("key", "own", "operators", "applies"),
    [
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        ("target-group-size", 3, 5, 5),
        ("target-group-size", 5, 3, 5),
        ("delayed-retry-min", 1_000, 500, 1_000),
        ("delayed-retry-min", 500, 1_000, 1_000),
        ("delayed-retry-max", 2_000, 1_000, 1_000),
        ("queue-version", 2, 1, 1),
    ],
)
def test_keys_of_which_not_the_smaller_value_holds(
    key: str, own: object, operators: object, applies: object
) -> None:
    both = [
        Policy("/", "p", "", "all", 0, check_definition({key: each}, operator=True))
        for each in (own, operators)
    ]
    assert AppliedPolicies(*both).definition == {key: applies}


def test_the_argument_stays_for_what_operators_may_say_too() -> None:
    declared = QueueArguments("classic", overflow="reject-publish", queue_version=2)
    definition = {"overflow": "drop-head", "queue-version": 1}
    assert joined(declared, definition) == declared


def test_a_policy_is_for_types_of_queues_that_know_all_of_it(node: MemoryNode) -> None:
    broker = node.broker
    put(broker, "few", {"delivery-limit": 1, "max-length": 1}, priority=3)
    put(broker, "log", {"max-age": "1D"}, priority=2)
    put(broker, "bytes", {"max-length-bytes": 9}, priority=1, apply_to="queues")
    put(broker, "classic", {"max-length": 9}, priority=9, apply_to="classic_queues")
    put(broker, "exchange", {"alternate-exchange": "amq.fanout"}, priority=9, apply_to="exchanges")

    def name(type: Any) -> str:
        policy = broker.runtime.policies.of_queue("/", "q", type).policy
        return policy.name if policy is not None else ""

    assert [name(type) for type in (CLASSIC, QUORUM, STREAM)] == ["classic", "few", "log"]
    clear(broker, "classic")
    clear(broker, "few")
    clear(broker, "log")
    assert [name(type) for type in (CLASSIC, QUORUM, STREAM)] == ["bytes"] * 3
    found = broker.runtime.policies.of_exchange("/", "amq.topic").policy
    assert found is not None and found.name == "exchange"


@pytest.mark.parametrize("pattern", ["", "^q", "(?=q)q", "q$"])
def test_the_empty_pattern_of_a_policy_matches_all(node: MemoryNode, pattern: str) -> None:
    """The empty pattern matches all, unlike that of a permission."""
    put(node.broker, "p", {"max-length": 1}, pattern)
    assert node.broker.runtime.policies.of_queue("/", "q", CLASSIC).policy is not None
    assert (node.broker.runtime.policies.of_queue("/", "x", CLASSIC).policy is None) == bool(pattern)


@pytest.mark.parametrize("pattern", ["(", "a{2000}{2000}"])
def test_patterns_that_are_none(node: MemoryNode, pattern: str) -> None:
    with pytest.raises(ParameterRefused, match="pattern should be regular expression but is invalid"):
        put(node.broker, "p", {"max-length": 1}, pattern)


def test_no_more_than_allowed() -> None:
    node = MemoryNode(parameters_max=1, parameter_bytes_max=1024)
    put(node.broker, "a", {"max-length": 1})
    put(node.broker, "a", {"max-length": 2})
    with pytest.raises(ParameterRefused, match="parameters_max"):
        put(node.broker, "b", {"max-length": 1})
    with pytest.raises(ParameterRefused, match="parameter_bytes_max"):
        put(node.broker, "a", {"max-length": 1}, pattern="x" * 1024)


def test_no_more_bytes_than_allowed() -> None:
    node = MemoryNode(parameters_bytes_max=65_536, parameter_bytes_max=65_536)
    pattern = "x" * 4_000
    exchange = "e" * 250
    for number in range(15):
        put(node.broker, f"p{number}", {"dead-letter-exchange": exchange}, pattern)
    with pytest.raises(ParameterRefused, match="parameters_bytes_max"):
        put(node.broker, "more", {"dead-letter-exchange": exchange}, pattern)
    # A policy fits if it replaces another one, and after others have gone.
    put(node.broker, "p0", {"dead-letter-exchange": exchange}, pattern)
    clear(node.broker, "p1")
    put(node.broker, "more", {"dead-letter-exchange": exchange}, pattern)
    with pytest.raises(ParameterRefused, match="parameters_bytes_max"):
        put(node.broker, "p1", {"dead-letter-exchange": exchange}, pattern)


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_settings_change_under_messages(node: MemoryNode, peer: Peer, type: str) -> None:
    declare(peer, "q", queue_type=type)
    queue: Any = node.broker.vhost("/").queues["q"]
    for _ in range(5):
        publish(peer, "q")
    put(node.broker, "p", {"max-length": 3})
    assert queue.host.ready_count == 3
    put(node.broker, "o", {"max-length": 2}, operator=True)
    assert queue.host.ready_count == 2
    clear(node.broker, "o", OPERATOR_POLICY)
    publish(peer, "q")
    publish(peer, "q")
    assert queue.host.ready_count == 3
    clear(node.broker, "p")
    publish(peer, "q")
    assert queue.host.ready_count == 4
    assert queue.settings == queue.declared_settings == queue.host.settings


def test_a_lease_begins_with_its_policy(node: MemoryNode, peer: Peer) -> None:
    broker = node.broker
    declare(peer, "q", expires=3_600_000)
    node.clock.now_ms += 60_000
    put(broker, "p", {"expires": 1_000})
    node.clock.now_ms += 900
    broker.turn.run(broker.timers.run, node.clock.now_ms)
    assert "q" in broker.vhost("/").queues
    node.clock.now_ms += 200
    broker.turn.run(broker.timers.run, node.clock.now_ms)
    assert "q" not in broker.vhost("/").queues


def test_deduplication_begins_and_ends_with_a_policy(node: MemoryNode, peer: Peer) -> None:
    def send() -> None:
        headers = b"\x10x-deduplication-idS\0\0\0\x01a"
        headers = bytes((len(b"x-deduplication-id"),)) + headers[1:]
        publish(peer, "q", len(headers).to_bytes(4, "big") + headers)

    declare(peer, "q")
    queue = node.broker.vhost("/").queues["q"]
    send()
    send()
    assert queue.host.ready_count == 2
    put(node.broker, "p", {"deduplication": True})
    send()
    send()
    assert queue.host.ready_count == 3
    # Also after a restart.
    node.sync()
    node.environment.crash()
    broker = make_broker(Config(), node.environment, node.clock, Commits(node.environment))
    recovery.recover(broker, Journal(node.environment))
    host: Any = broker.vhost("/").queues["q"].host
    assert host.ready_count == 3
    assert host.machine.dedup is not None and len(host.machine.dedup) == 1
    clear(broker, "p")
    assert not host.wants_ids
    put(broker, "p", {"deduplication": True})
    assert len(host.machine.dedup) == 0
    node.environment.flush()
    node.environment.crash()
    broker = make_broker(Config(), node.environment, node.clock, Commits(node.environment))
    recovery.recover(broker, Journal(node.environment))
    host = broker.vhost("/").queues["q"].host
    assert host.ready_count == 3
    assert len(host.machine.dedup) == 0


def test_policies_come_back(node: MemoryNode, peer: Peer) -> None:
    declare(peer, "q")
    put(node.broker, "p", {"max-length": 3, "alternate-exchange": "amq.fanout"})
    put(node.broker, "o", {"max-length": 2}, operator=True)
    for _ in range(5):
        publish(peer, "q")
    node.sync()
    node.environment.crash()
    broker = make_broker(Config(), node.environment, node.clock, Commits(node.environment))
    recovery.recover(broker, Journal(node.environment))
    queue: Any = broker.vhost("/").queues["q"]
    assert queue.settings.max_length == queue.host.settings.max_length == 2
    assert queue.host.ready_count == 2
    exchange = broker.vhost("/").router.get("amq.topic")
    assert exchange is not None and exchange.alternate == "amq.fanout"


def test_they_go_with_their_vhost(node: MemoryNode) -> None:
    broker = node.broker
    broker.add_vhost("v")
    record = broker.runtime.policies.prepare(
        "v", "p", pattern="", definition={"max-length": 1}, priority=0, apply_to="all", operator=False
    )
    broker.propose(PutParameter(record))
    assert len(broker.runtime.parameters) == 1
    broker.propose(DeleteVhost("v"))
    assert len(broker.runtime.parameters) == 0
    broker.propose(PutParameter(record))
    assert len(broker.runtime.parameters) == 0


@pytest.mark.pure
def test_many_queues_follow_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    node = MemoryNode()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    for number in range(20):
        declare(peer, f"q{number}")
    queues = node.broker.vhost("/").queues.values()
    done: list[int] = []
    turn = node.turn
    asked = [0]

    def overdue(turn: Turn) -> bool:
        asked[0] += 1
        return asked[0] % 4 == 0

    monkeypatch.setattr(Turn, "overdue", overdue)
    put(node.broker, "p", {"max-length": 3}, apply_to="queues")
    node.broker.runtime.policies.when_applied(lambda: done.append(1))
    assert not done
    assert 0 < sum(queue.settings.max_length == 3 for queue in queues) < 20
    for _ in range(200):
        turn.catch_up()
    assert done
    assert all(queue.settings.max_length == 3 for queue in queues)


@pytest.mark.pure
def test_changes_meet_while_queues_follow_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    node = MemoryNode()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    for number in range(20):
        declare(peer, f"q{number}")
    vhost = node.broker.vhost("/")
    monkeypatch.setattr(Turn, "overdue", lambda turn: True)
    done: list[int] = []
    put(node.broker, "first", {"max-length": 1}, "^q", apply_to="queues")
    node.broker.runtime.policies.when_applied(lambda: done.append(1))
    for number in range(20):
        put(node.broker, f"p{number}", {"max-length": 100 + number}, f"^q{number}$", priority=1)
    put(node.broker, "alternate", {"alternate-exchange": "amq.fanout"}, "topic", apply_to="exchanges")
    clear(node.broker, "p7")
    node.broker.runtime.policies.when_applied(lambda: done.append(2))
    assert 0 < sum(queue.settings.max_length is not None for queue in vhost.queues.values()) < 20
    assert not done
    # Two rounds, however many changes: one that was under way, and one for all changes that came meanwhile.
    for _ in range(2 * (20 + len(list(vhost.router.exchanges())))):
        node.turn.run(node.turn.catch_up)
    assert done == [1, 2]
    for number in range(20):
        assert vhost.queues[f"q{number}"].settings.max_length == (1 if number == 7 else 100 + number)
    exchange = vhost.router.get("amq.topic")
    assert exchange is not None and exchange.alternate == "amq.fanout"


def test_a_change_is_no_work_for_policies_and_queues_that_it_is_not_about(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        declare(peer, f"q{number}")
        put(node.broker, f"p{number}", {"max-length": 5}, f"^q{number}$")
    compiled: list[str] = []
    looked: list[str] = []

    def compile_one(pattern: str, *limits: int) -> Any:
        compiled.append(pattern)
        return compile_policy(pattern, *limits)

    def of_queue(self: Policies, vhost: str, name: str, type: Any) -> AppliedPolicies:
        looked.append(name)
        return before(self, vhost, name, type)

    before = Policies.of_queue
    monkeypatch.setattr(policies, "compile_policy", compile_one)
    monkeypatch.setattr(Policies, "of_queue", of_queue)
    put(node.broker, "more", {"max-length": 3}, "^q1.$", priority=1)
    # Compiled once to check it, and once to set it.
    assert compiled == ["^q1.$"] * 2
    assert looked == [f"q{number}" for number in range(10, 20)]
    looked.clear()
    put(node.broker, "more", {"max-length": 3}, "^q2$", priority=1)
    assert looked == ["q2", *(f"q{number}" for number in range(10, 20))]
    looked.clear()
    clear(node.broker, "more")
    assert looked == ["q2"]
    queues = node.broker.vhost("/").queues.values()
    assert [queue.settings.max_length for queue in queues] == [5] * 20


CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.none() | st.tuples(st.integers(-2, 2), st.sampled_from(sorted(APPLIES)), st.sampled_from("xyz")),
    ),
    max_size=20,
)


@given(CHANGES)
def test_policies_that_come_and_go_are_tried_by_their_priorities(changes: list[Any]) -> None:
    node = MemoryNode()
    peer = node.peer()
    peer.call(1, commands.Channel.Open())
    declare(peer, "xy")
    declare(peer, "z", queue_type="quorum")
    there: dict[str, Any] = {}
    for name, change in changes:
        if change is None:
            clear(node.broker, name)
            there.pop(name, None)
        else:
            priority, apply_to, pattern = there[name] = change
            put(node.broker, name, {"expires": 1}, pattern, priority=priority, apply_to=apply_to)
        for queue in node.broker.vhost("/").queues.values():
            best = min(
                [
                    (-priority, each)
                    for each, (priority, apply_to, pattern) in there.items()
                    if queue.type.name in APPLIES[apply_to] and pattern in queue.name
                ],
                default=None,
            )
            policy = queue.policies.policy
            assert (None if policy is None else policy.name) == (None if best is None else best[1])


def test_no_policy_applies_to_a_consumer_group(node: MemoryNode) -> None:
    put(node.broker, "p", {"max-length-bytes": 5, "expires": 7})
    put(node.broker, "o", {"expires": 5}, operator=True, apply_to="queues")
    assert node.broker.runtime.policies.of_queue("/", "q", CLASSIC).definition == {
        "max-length-bytes": 5,
        "expires": 5,
    }
    assert node.broker.runtime.policies.of_queue("/", "q", GROUP).definition == {}
