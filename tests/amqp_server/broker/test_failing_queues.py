"""On a node that stands alone, a queue raises while it applies commands: only that queue stops."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from amqp_server.broker.dead_letter import DeadLetterSender
from amqp_server.broker.declared import argument_checks
from amqp_server.broker.declared.operations import PutParameter
from amqp_server.broker.recovery import recovery, stored_queues
from amqp_server.broker.recovery.failures import PAUSE_FACTOR, PAUSE_MS, describe
from amqp_server.broker.topology import vhost
from amqp_server.config import Config
from persistence.journal import Journal
from quorum_queue.machine.machine import Machine
from tests.turns import Planted

from ..connection.node import Commits, MemoryNode, Peer, make_broker
from ..wire.published import message

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("quiet")]


class Plant:
    """Strikes when a batch holds a message whose content has this word in it, before or after the batch is
    applied.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.word = b"poison"
        self.after = False
        self.struck = 0
        run = Machine.run

        def planted(machine: Machine, meta: Any, commands: Any, effects: Any) -> None:
            found = any(
                command[0] == "enqueue" and any(self.word in item for item in command[1].contents or ())
                for command in commands
            )
            if found and not self.after:
                self.strike()
            run(machine, meta, commands, effects)
            if found:
                self.strike()

        monkeypatch.setattr(Machine, "run", planted)

    def strike(self) -> None:
        self.struck += 1
        raise Planted("poison")


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    return Plant(monkeypatch)


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
def peer(node: MemoryNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Confirm.Select())
    for name in ("bad", "good"):
        peer.call(1, commands.Queue.Declare(queue=name, durable=True))
    return peer


def publish(peer: Peer, *sent: tuple[str, bytes], **properties: Any) -> list[Any]:
    """Publish in one turn; return the answers to the publisher."""
    properties["delivery_mode"] = b"\x02"
    peer.send(*(message("", queue, body, **properties).encode(1) for queue, body in sent))
    peer.node.sync()
    return [method for _, method in peer.answers()]


def later(node: MemoryNode, ms: int) -> None:
    node.clock.now_ms += ms
    node.turn.run(node.broker.timers.run, node.clock.now_ms)
    node.sync()


def stopped(node: MemoryNode) -> list[dict[str, Any]]:
    return [describe(failure) for failure in node.broker.failures.stopped()]


def ready(node: MemoryNode, name: str) -> int:
    return node.broker.vhost("/").queues[name].host.ready_count


@pytest.mark.parametrize("after", [False, True], ids=["before", "half done"])
def test_the_queue_stops_and_comes_back_with_what_is_stored(
    node: MemoryNode, peer: Peer, plant: Plant, after: bool
) -> None:
    plant.after = after
    publish(peer, ("bad", b"first"))
    answers = publish(peer, ("good", b"one"), ("bad", b"poison"), ("good", b"two"))
    told = [type(answer).__name__ for answer in answers]
    assert "Nack" in told
    assert plant.struck == 1
    # Nothing else of that turn is lost, and the connection goes on.
    assert ready(node, "good") == 2
    assert [(each["name"], each["set_aside"]) for each in stopped(node)] == [("bad", False)]
    assert [type(answer) for answer in publish(peer, ("bad", b"refused"))] == [commands.Basic.Nack]
    later(node, PAUSE_MS)
    assert stopped(node) == []
    assert ready(node, "bad") >= 1
    assert [type(answer) for answer in publish(peer, ("bad", b"again"))] == [commands.Basic.Ack]


def test_nobody_waits_for_the_disk_that_has_the_queue(node: MemoryNode, peer: Peer, plant: Plant) -> None:
    publish(peer, ("bad", b"first"), ("good", b"one"))
    publish(peer, ("bad", b"poison"))
    reader = node.environment.reader
    reader.waits = lambda: True
    later(node, PAUSE_MS)
    assert [each["name"] for each in stopped(node)] == ["bad"]
    assert [type(answer) for answer in publish(peer, ("good", b"two"))] == [commands.Basic.Ack]
    [given] = reader.waiting
    reader.waits = lambda: False
    node.turn.run(given)
    assert stopped(node) == [] and ready(node, "bad") == 1


def test_one_that_fails_each_time_is_set_aside_and_the_node_starts_with_it(
    node: MemoryNode, peer: Peer, plant: Plant
) -> None:
    publish(peer, ("bad", b"first"))
    revivals = node.broker.config.queue_restart_tries_max
    for attempt in range(revivals + 1):
        publish(peer, ("bad", b"poison"))
        later(node, PAUSE_MS * PAUSE_FACTOR**attempt)
    (found,) = stopped(node)
    assert (found["set_aside"], found["attempts"], found["reason"]) == (True, revivals, "poison")
    later(node, 10 * PAUSE_MS * PAUSE_FACTOR**revivals)
    assert stopped(node)[0]["set_aside"]
    bad = node.broker.vhost("/").queues["bad"]
    assert node.broker.failures.find(bad) is not None
    node.turn.run(node.broker.failures.retry, bad)
    node.sync()
    assert stopped(node) == []
    assert ready(node, "bad") == 1


def test_one_that_cannot_be_read_does_not_keep_the_node_from_starting(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(peer, ("bad", b"first"), ("good", b"one"))
    fill = stored_queues.fill

    def planted(record: Any, *rest: Any) -> Any:
        if record.name == "bad":
            raise Planted("unreadable")
        return fill(record, *rest)

    monkeypatch.setattr(stored_queues, "fill", planted)
    begin_again(node)
    assert [(each["name"], each["reason"]) for each in stopped(node)] == [("bad", "unreadable")]
    assert ready(node, "good") == 1
    again = node.peer()
    again.call(1, commands.Channel.Open(), commands.Confirm.Select())
    assert [type(answer) for answer in publish(again, ("good", b"two"))] == [commands.Basic.Ack]
    monkeypatch.undo()
    later(node, PAUSE_MS)
    assert stopped(node) == []
    assert ready(node, "bad") == 1


def test_a_dead_letter_with_a_routing_key_that_is_too_long_harms_nobody(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of an earlier version may have declared a queue with it; for a new queue it is refused."""
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "k" * 300,
    }
    peer.call(2, commands.Channel.Open())
    answers = peer.call(2, commands.Queue.Declare(queue="long", durable=True, arguments=arguments))
    (closed,) = [method for _, method in answers if isinstance(method, commands.Channel.Close)]
    assert closed.reply_code == 406
    assert "routing key may have 255 bytes at most" in closed.reply_text
    # This is how that earlier version would have stored it.
    monkeypatch.setattr(vhost, "SHORT_STRING_MAX", 1000)
    peer.call(3, commands.Channel.Open())
    peer.call(3, commands.Queue.Bind(queue="good", exchange="amq.fanout"))
    for name, limit in (("long", "x-max-length"), ("timed", "x-message-ttl")):
        peer.call(3, commands.Queue.Declare(queue=name, durable=True, arguments=arguments | {limit: 1}))
    monkeypatch.undo()
    assert publish(peer, ("long", b"one"), ("long", b"two"))
    assert stopped(node) == []
    assert (ready(node, "long"), ready(node, "good")) == (1, 0)
    # Nor does the queue keep the node from starting.
    publish(peer, ("timed", b"one"))
    begin_again(node)
    again = node.peer()
    again.call(1, commands.Channel.Open(), commands.Confirm.Select())
    later(node, 10)
    assert stopped(node) == []
    assert (ready(node, "long"), ready(node, "timed"), ready(node, "good")) == (1, 0, 0)
    assert [type(answer) for answer in publish(again, ("long", b"three"))] == [commands.Basic.Ack]


AT_LEAST_ONCE = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@pytest.mark.parametrize(
    "declared", [{}, {"x-queue-type": "quorum"}, AT_LEAST_ONCE], ids=["classic", "quorum", "at least once"]
)
@pytest.mark.parametrize("by", ["argument", "policy"])
def test_a_stored_routing_key_that_is_too_long_harms_nobody_when_a_message_expires(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch, by: str, declared: dict[str, Any]
) -> None:
    """The message brings its expiration: one ends before the node starts again, the other one after that."""
    dead_letters = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "k" * 300}
    peer.call(1, commands.Queue.Bind(queue="good", exchange="amq.fanout"))
    with monkeypatch.context() as earlier:
        earlier.setattr(vhost, "SHORT_STRING_MAX", 1000)
        earlier.setattr(argument_checks, "SHORT_STRING_MAX", 1000)
        arguments = dict(declared)
        if by == "argument":
            arguments |= {f"x-{key}": value for key, value in dead_letters.items()}
        else:
            record = node.broker.runtime.policies.prepare(
                "/",
                "long",
                pattern="^long$",
                definition=dead_letters,
                priority=0,
                apply_to="all",
                operator=False,
            )
            node.turn.run(node.broker.propose, PutParameter(record))
        peer.call(1, commands.Queue.Declare(queue="long", durable=True, arguments=arguments))
    found = node.broker.vhost("/").queues["long"]
    assert found.effective.dead_letter_routing_key == "k" * 300
    assert publish(peer, ("long", b"one"), expiration=b"\x0210")
    later(node, 20)
    assert (ready(node, "long"), ready(node, "good"), stopped(node)) == (0, 0, [])
    publish(peer, ("long", b"two"), expiration=b"\x0210")
    assert ready(node, "long") == 1
    begin_again(node)
    assert node.broker.vhost("/").queues["long"].effective.dead_letter_routing_key == "k" * 300
    again = node.peer()
    again.call(1, commands.Channel.Open(), commands.Confirm.Select())
    later(node, 20)
    later(node, 10_000)
    assert (ready(node, "long"), ready(node, "good"), stopped(node)) == (0, 0, [])
    answers = publish(again, ("long", b"three"), ("good", b"one"))
    assert {type(answer) for answer in answers} == {commands.Basic.Ack}
    assert ready(node, "good") == 1


def begin_again(node: MemoryNode) -> None:
    """Start the node again from its disk."""
    marks = node.broker.services.marks
    node.broker = broker = make_broker(
        Config(), node.environment, node.clock, Commits(node.environment), marks=marks
    )
    node.turn = broker.turn
    node.turn.run(recovery.recover, broker, Journal(node.environment))


@pytest.mark.parametrize("how", ["expires", "comes back"])
def test_a_timer_that_raises_stops_its_queue_and_nothing_else(
    node: MemoryNode, peer: Peer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Dead letters are sent, and sent again, by timers, without any client that waits."""
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "good" if how == "expires" else "nowhere",
        "x-message-ttl": 100,
    }
    if how == "comes back":
        arguments |= {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    peer.call(1, commands.Queue.Declare(queue="timed", durable=True, arguments=arguments))
    publish(peer, ("timed", b"one"))
    if how == "comes back":
        later(node, 200)
        assert len(node.broker.vhost("/").queues["timed"].host.machine.dead_lettering) == 1  # type: ignore[attr-defined]

    def planted(*rest: Any) -> bool:
        raise Planted("letter")

    monkeypatch.setattr(DeadLetterSender, "_made", planted)
    later(node, 2_000)
    assert [each["name"] for each in stopped(node)] == ["timed"]
    assert [type(answer) for answer in publish(peer, ("good", b"one"))] == [commands.Basic.Ack]
    monkeypatch.undo()
    later(node, PAUSE_MS)
    assert stopped(node) == []
