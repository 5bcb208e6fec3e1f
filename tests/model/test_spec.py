"""The specification by itself, and what draws programs."""

from __future__ import annotations

import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from tests.model import pairs
from tests.model.batches import decoded
from tests.model.brokers import as_old
from tests.model.campaign import Campaign, begins_old
from tests.model.generator import draw
from tests.model.judge import Judge
from tests.model.judging.requests import OWN
from tests.model.programs import Program
from tests.model.shrink import shrunk
from tests.model.spec.channels import Channel, Delivered, Session, User
from tests.model.spec.hashing import partition
from tests.model.spec.messages import Message, Presence, died
from tests.model.spec.promises import (
    NOT_FOUND,
    OK,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    Broken,
    Promise,
)
from tests.model.spec.queues import Queue
from tests.model.spec.routing import Binding, topic_matches
from tests.model.spec.state import Broker
from tests.model.spec.streams import Log, Position
from tests.model.spec.vhost import Vhost


class Answer:
    message_count = 0
    consumer_count = 0


class Talk:
    """A client of the model; each call is a step."""

    def __init__(self, broker: Broker | None = None) -> None:
        self.model = Vhost(broker or Broker())
        self.session = Session(0, User("guest"), "n1")
        self.at_s = 0.0
        self.number = 0
        self.channel = self.open(1)

    def step(self, after_s: float = 0.01) -> None:
        self.at_s += after_s
        self.model.begin_step(self.at_s)
        self.model.tick(self.at_s)

    def done(self, promise: Promise, answer: object = None) -> None:
        assert promise.codes == {0}, promise
        promise.effect(answer)

    def open(self, number: int) -> Channel:
        self.step()
        self.done(self.model.open_channel(self.session, number))
        return self.session.channels[number]

    def declare(self, name: str, kind: str = "classic", **arguments: object) -> Queue:
        self.step()
        given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        self.done(self.model.declare_queue(self.channel, name, kind, arguments=given))
        queue = self.model.queues[name]
        assert isinstance(queue, Queue)
        return queue

    def stream(self, name: str, **arguments: object) -> Log:
        self.step()
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.done(self.model.declare_queue(self.channel, name, "stream", arguments=given))
        log = self.model.queues[name]
        assert isinstance(log, Log)
        return log

    def publish(self, queue: str, count: int = 1, **message: object) -> None:
        self.step()
        for _ in range(count):
            self.number += 1
            self.model.publish(self.channel, Message(self.number, 10, "", queue, **message))  # type: ignore[arg-type]
        for each in self.model.queues.values():
            if isinstance(each, Queue):
                for copy in each.copies:
                    each.arrived(copy)

    def consume(self, queue: str, tag: str = "c", prefetch: int = 0) -> None:
        self.step()
        self.done(self.model.qos(self.channel, prefetch, False))
        self.done(self.model.consume(self.channel, queue, tag))

    def deliver(
        self, number: int, *, redelivered: bool = False, tag: str = "c", queue: str = "q", offset: int = -1
    ) -> None:
        """With an offset, a message of a stream comes to a member of a group."""
        headers: dict[str, Any] = {"x-stream-offset": offset} if offset >= 0 else {}
        key = "s" if offset >= 0 else queue
        self.model.on_delivery(
            self.channel,
            Delivered(self.channel.last_tag + 1, number, redelivered, "", key, headers, 10, tag),
        )

    def settle(self, how: str, tag: int) -> None:
        self.step()
        self.model.settle(self.channel, how, tag, False)


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_messages_come_in_order_and_once(talk: Talk) -> None:
    talk.declare("q")
    talk.publish("q", 2)
    talk.consume("q")
    assert len(talk.model.owed()) == 2
    talk.deliver(1)
    talk.deliver(2)
    assert not talk.model.owed()
    with pytest.raises(Broken, match="held by a client"):
        talk.deliver(2)


def test_a_message_is_not_overtaken(talk: Talk) -> None:
    talk.declare("q")
    talk.publish("q", 2)
    talk.consume("q", prefetch=1)
    talk.deliver(2)
    talk.step()
    with pytest.raises(Broken, match="came before message 1"):
        talk.model.settle_step()


def test_prefetch_is_a_limit(talk: Talk) -> None:
    talk.declare("q")
    talk.publish("q", 2)
    talk.consume("q", prefetch=1)
    talk.deliver(1)
    assert not talk.model.owed()
    with pytest.raises(Broken, match="more than its prefetch"):
        talk.deliver(2)


def test_a_returned_message_has_the_flag(talk: Talk) -> None:
    talk.declare("q")
    talk.publish("q")
    talk.consume("q")
    talk.deliver(1)
    talk.settle("requeue", 1)
    with pytest.raises(Broken, match="redelivered=False"):
        talk.deliver(1)
    talk.deliver(1, redelivered=True)


def test_an_expired_message_is_not_delivered(talk: Talk) -> None:
    talk.declare("q", message_ttl=100)
    talk.publish("q")
    talk.step(0.2)
    promise = talk.model.consume(talk.channel, "q", "c")
    talk.done(promise)
    assert not talk.model.owed()
    with pytest.raises(Broken, match="delivered"):
        talk.deliver(1)


def test_the_oldest_are_dead_lettered_at_the_limit(talk: Talk) -> None:
    dead = talk.declare("dead")
    talk.declare("q", max_length=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    talk.publish("q", 3)
    assert [(copy.message.number, copy.deaths[0].reason) for copy in dead.line()] == [(1, "maxlen")]
    assert talk.model.queues["q"].count() == (2, 2)


@pytest.mark.parametrize("first", [1, 3])
def test_a_settle_may_hand_out_before_the_next_one(talk: Talk, first: int) -> None:
    """A consumer gets a message although one of a higher priority has room: that got room later."""
    talk.declare("q")
    talk.publish("q", 4)
    for tag, priority, held in (("low", 0, (1, 2)), ("high", 5, (3,))):
        talk.consume("q", tag, prefetch=len(held))
        talk.channel.consumers[tag].priority = priority
        for number in held:
            talk.deliver(number, tag=tag)
    talk.step()
    for settled in (first, 4 - first):
        talk.model.settle(talk.channel, "ack", settled, False)
    talk.deliver(4, tag="low")
    if first == 1:
        talk.model.settle_step()
        return
    with pytest.raises(Broken, match="which has a higher priority, had room"):
        talk.model.settle_step()


def test_those_of_a_higher_priority_may_be_dropped_first(talk: Talk) -> None:
    dead = talk.declare("dead")
    talk.declare("q", max_length=1, max_priority=5, dead_letter_exchange="", dead_letter_routing_key="dead")
    talk.step()
    for number, priority in ((1, 0), (2, 1), (3, 5)):
        talk.model.publish(talk.channel, Message(number, 10, "", "q", priority=priority))
    first, second = dead.line()
    assert [each.message.number for each in (first, second)] == [2, 3]
    assert not first.precedes(second)


def test_of_what_comes_together_one_of_a_higher_priority_may_be_dropped_first(talk: Talk) -> None:
    dead = talk.declare("dead")
    queue = talk.declare(
        "q",
        max_priority=5,
        max_length_bytes=100,
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    talk.step()
    for number, size, priority in ((1, 20, 1), (2, 120, 0), (3, 20, 0), (4, 60, 5)):
        talk.model.publish(talk.channel, Message(number, size, "", "q", priority))
    # One by one 1 and 2 are dropped, and together 4, 1 and 2.
    letters = {copy.message.number: copy.presence for copy in dead.line()}
    assert letters == {1: Presence.SURE, 2: Presence.SURE, 4: Presence.MAYBE}
    assert [copy.message.number for copy in queue.line()] == [4, 3]


def test_of_several_whose_waits_end_any_may_be_dropped(talk: Talk) -> None:
    queue = talk.declare("q", delayed=True, max_length=1)
    for delay in (200, 400):
        talk.publish("q", headers={"x-delay": delay})
    # A lot happens before anybody looks.
    talk.step(3.0)
    assert [copy.presence for copy in queue.line()] == [Presence.MAYBE] * 2


def test_a_dead_letter_that_is_refused_is_dead_lettered(talk: Talk) -> None:
    dead = talk.declare("dead")
    full: dict[str, Any] = {"max_length": 0, "overflow": "reject-publish-dlx"}
    talk.declare("next", **full, dead_letter_exchange="", dead_letter_routing_key="dead")
    talk.declare("q", **full, dead_letter_exchange="", dead_letter_routing_key="next")
    talk.publish("q")
    [letter] = dead.line()
    assert [(death.queue, death.reason) for death in letter.deaths] == [("next", "maxlen"), ("q", "maxlen")]


def test_a_full_queue_refuses(talk: Talk) -> None:
    talk.declare("q", max_length_bytes=25, overflow="reject-publish")
    talk.channel.confirming = True
    talk.publish("q", 3)
    assert [p.outcomes for p in talk.channel.unconfirmed.values()] == [{"ack"}, {"ack"}, {"nack"}]
    talk.model.on_confirm(talk.channel, 2, True, False)
    with pytest.raises(Broken, match="got ack where"):
        talk.model.on_confirm(talk.channel, 3, False, False)


def test_a_lost_connection_leaves_its_publishes_in_doubt(talk: Talk) -> None:
    queue = talk.declare("q")
    talk.channel.confirming = True
    talk.model.broker.prompt = False
    talk.step()
    talk.model.publish(talk.channel, Message(1, 10, "", "q"), awaited=False)
    talk.model.lose_session(talk.session, certain=False)
    assert queue.count() == (0, 1)


def test_rollback_publishes_nothing(talk: Talk) -> None:
    queue = talk.declare("q")
    talk.done(talk.model.select(talk.channel, "tx"))
    talk.publish("q")
    talk.done(talk.model.rollback(talk.channel))
    assert queue.count() == (0, 0)
    talk.publish("q")
    talk.done(talk.model.commit(talk.channel))
    assert queue.count() == (1, 1)


def test_refusals(talk: Talk) -> None:
    assert talk.model.get(talk.channel, "q", no_ack=False).codes == {NOT_FOUND}
    declared = talk.model.declare_queue(talk.channel, "q", "quorum", arguments={"x-max-priority": 5})
    assert declared.codes == {PRECONDITION_FAILED}
    talk.declare("q")
    talk.publish("q")
    assert talk.model.delete_queue(talk.channel, "q", if_empty=True).codes == {PRECONDITION_FAILED}


def test_counts_are_judged(talk: Talk) -> None:
    talk.declare("q")
    talk.publish("q")
    promise = talk.model.declare_queue(talk.channel, "q", "", passive=True)
    with pytest.raises(Broken, match="has 0 messages where 1 is right"):
        promise.effect(Answer())


def test_exchanges_route(talk: Talk) -> None:
    model, channel = talk.model, talk.channel
    talk.declare("q")
    talk.done(model.declare_exchange(channel, "other", "fanout"))
    talk.done(model.declare_exchange(channel, "x", "topic", arguments={"alternate-exchange": "other"}))
    talk.done(model.bind(channel, Binding("x", "queue", "q", "a.#")))
    assert model._route("x", ["a.b"], {}) == {"q"}
    assert model._route("x", ["b"], {}) == set()
    talk.done(model.bind(channel, Binding("other", "queue", "q", "")))
    assert model._route("x", ["b"], {}) == {"q"}


def test_an_exchange_that_chooses_takes_one_queue(talk: Talk) -> None:
    queues = [talk.declare(name) for name in ("q1", "q2")]
    model, channel = talk.model, talk.channel
    talk.done(model.declare_exchange(channel, "x", "x-consistent-hash"))
    for queue in queues:
        talk.done(model.bind(channel, Binding("x", "queue", queue.name, "1")))
    talk.step()
    for number in (1, 2):
        model.publish(channel, Message(number, 10, "x", "k"))
    assert [queue.count() for queue in queues] == [(0, 2), (0, 2)]
    took = {1: queues[0], 2: queues[1]}
    took[1].take(took[1].find(1, False, ()), talk.at_s, None, channel)
    assert queues[1].count() == (0, 1)
    with pytest.raises(Broken, match="others with the key k came to q1"):
        took[2].take(took[2].find(2, False, ()), talk.at_s, None, channel)


def test_a_name_continues_after_its_acks() -> None:
    position = Position((0, 0))
    position.acked |= {0, 1, 3}
    assert position.committed() == (2, 2)
    position.doubt({1})
    assert position.committed() == (1, 2)


def test_a_restart_forgets_ids_of_transient_messages(talk: Talk) -> None:
    queue = talk.declare("q", deduplication=True)
    talk.publish("q", headers={"x-deduplication-id": "a"}, persistent=False)
    talk.publish("q", headers={"x-deduplication-id": "b"})
    talk.model.vouched()
    talk.model.crashed([], orderly=False)
    assert queue.remembered == {"a": Presence.MAYBE, "b": Presence.SURE}


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [("a.*", "a.b", True), ("a.*", "a", False), ("#", "", True), ("#.b", "a.c.b", True), ("*.b", "b", False)],
)
def test_topics(pattern: str, key: str, matches: bool) -> None:
    assert topic_matches(pattern.split("."), key.split(".") if key else []) == matches


def test_partitions_are_those_of_the_stream_protocol() -> None:
    # As in the example of docs/streams.md.
    assert [partition(name, 3) for name in ("ada", "max", "ben")] == [0, 1, 2]


def test_deaths_are_counted() -> None:
    once = died((), "q", "expired", "x", ("k",))
    other = died(once, "r", "maxlen", "y", ("k",))
    twice = died(other, "q", "expired", "x", ("k",))
    assert [(death.queue, death.count) for death in twice] == [("q", 2), ("r", 1)]


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_pair_occurs(nodes: int) -> None:
    missing = pairs.all_pairs(nodes)
    for count, row in enumerate(pairs.rows(nodes, 0)):
        missing -= pairs.pairs_of(row)
        if not missing:
            break
        assert count < 300, sorted(missing)[:5]


def test_a_program_is_the_same_again() -> None:
    row = next(pairs.rows(3, 5))
    program = draw(7, row, 3)
    assert program == draw(7, row, 3) == Program.loads(program.dumps())
    assert program != draw(8, row, 3)


def test_programs_shrink() -> None:
    publish = {"op": "publish", "messages": [{"number": n} for n in range(8)]}
    steps = [{"op": "wait", "ms": n} for n in range(10)]
    program = Program(0, 1, [*steps, publish, *steps])

    def fails(tried: Program) -> bool:
        return any({"number": 5} in step.get("messages", ()) for step in tried.steps)

    assert shrunk(program, fails).steps == [{"op": "publish", "messages": [{"number": 5}]}]


@pytest.fixture
def three() -> Talk:
    """A talk with three nodes, of which one knows late what another one has done."""
    return Talk(Broker(nodes=3, prompt=False))


def test_a_purge_takes_only_what_has_arrived(three: Talk) -> None:
    queue = three.declare("q")
    three.publish("q")
    three.step()
    three.model.publish(three.channel, Message(2, 10, "", "q"), awaited=False)
    three.done(three.model.purge(three.channel, "q"), Answer())
    assert [copy.presence for copy in queue.line()] == [Presence.MAYBE]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_what_is_on_its_way_finds_no_room_behind_what_comes_now(three: Talk, overflow: str) -> None:
    dead = three.declare("dead")
    queue = three.declare(
        "q", max_length=1, overflow=overflow, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    for number in (1, 2):
        three.step()
        three.model.publish(three.channel, Message(number, 10, "", "q"), awaited=False)
    assert [copy.presence for copy in queue.line()][0] is Presence.MAYBE
    assert [copy.message.number for copy in dead.line()] == ([1, 2] if overflow.endswith("dlx") else [])


def test_a_returned_message_is_counted_late_on_three_nodes(three: Talk) -> None:
    queue = three.declare("q", "quorum")
    three.publish("q")
    three.consume("q")
    three.deliver(1)
    three.settle("requeue", 1)
    [copy] = queue.line()
    copy.presence = Presence.SURE
    queue.consumers.clear()
    assert queue.count() == (0, 1)
    three.step()
    three.step()
    assert queue.count() == (1, 1)


def test_what_comes_back_may_expire_before_its_auto_delete_queue_goes(three: Talk) -> None:
    dead = three.declare("dead")
    queue = three.declare(
        "q",
        message_ttl=0,
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
        delayed_retry_type="all",
        delayed_retry_min=150,
    )
    queue.auto_delete = True
    three.consume("q")
    three.publish("q")
    three.deliver(1)
    three.step()
    three.model.close_channel(three.channel)
    assert "q" not in three.model.queues
    assert [(copy.message.number, copy.presence) for copy in dead.line()] == [(1, Presence.MAYBE)]


def test_what_lost_its_transient_letters_dies_again(three: Talk) -> None:
    dead = three.declare("dead")
    queue = three.declare(
        "q", "quorum", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    three.publish("q", persistent=False)
    [copy] = queue.copies
    three.model.dead_letter(queue, copy, "expired", certain=False)
    dead.crash()
    three.model.letters_lost()
    three.model.dead_letter(queue, copy, "expired", certain=True)
    assert [letter.message.number for letter in dead.line()] == [1]


def test_a_transaction_that_is_refused_in_a_cluster_dead_letters_nothing(three: Talk) -> None:
    dead = three.declare("dead")
    three.declare(
        "q",
        max_length=0,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    three.done(three.model.select(three.channel, "tx"))
    three.publish("q")
    assert three.model.commit(three.channel).codes == {PRECONDITION_FAILED}
    assert [copy.presence for copy in dead.line()] == [Presence.MAYBE]


def test_a_delivery_may_be_on_its_way_while_its_stream_is_deleted(three: Talk) -> None:
    log = three.stream("s")
    three.publish("s")
    three.step()
    three.done(three.model.qos(three.channel, 5, False))
    three.done(three.model.consume(three.channel, "s", "r", arguments={"x-stream-offset": "first"}))
    three.step()
    three.model.remove_queue(log)
    late = Delivered(1, 1, False, "", "s", {"x-stream-offset": 0}, 10, "r")
    three.model.on_delivery(three.channel, late)
    three.step()
    three.step()
    with pytest.raises(Broken, match="does not consume"):
        three.model.on_delivery(three.channel, replace(late, tag=2))


def test_a_partition_that_moves_waits_for_the_acks_of_the_member_before(talk: Talk) -> None:
    talk.stream("s")
    talk.step()
    group = talk.model.declare_queue(talk.channel, "g", "stream-group", arguments={"x-stream": "s"})
    talk.done(group)
    talk.publish("s", 2)
    talk.consume("g", "one")
    headers = {"x-stream-offset": 0}
    for tag in (1, 2):
        talk.model.on_delivery(talk.channel, Delivered(tag, tag, False, "", "s", headers, 10, "one"))
    talk.consume("g", "two")
    talk.settle("requeue", 1)
    # It may have been given to the second member, which gets nothing before the first one has acked the rest.
    assert not list(talk.model.owed())
    talk.settle("ack", 2)
    assert list(talk.model.owed()) == ["g: message 1 is ready, and a consumer waits for it"]


def test_what_expired_just_before_its_queue_was_deleted_may_go_with_it(talk: Talk) -> None:
    dead = talk.declare("dead")
    for name, deleted_after_s in (("soon", 0.1), ("late", 2.0)):
        queue = talk.declare(name, message_ttl=50, dead_letter_exchange="", dead_letter_routing_key="dead")
        talk.publish(name)
        talk.step(0.1)
        talk.step(deleted_after_s)
        talk.model.remove_queue(queue)
    assert [copy.presence for copy in dead.line()] == [Presence.MAYBE, Presence.COMING]


def test_what_was_purged_may_be_on_its_way_to_a_client_of_another_node(three: Talk) -> None:
    three.declare("q")
    three.publish("q", 3)
    three.consume("q")
    three.step()
    three.done(three.model.purge(three.channel, "q"), Answer())
    three.deliver(1)
    three.step()
    three.deliver(2)
    three.step()
    with pytest.raises(Broken, match="message 3 was delivered while it was gone"):
        three.deliver(3)


def test_streams_are_refused_until_all_nodes_are_upgraded() -> None:
    talk = Talk(as_old(Broker()))
    talk.step()
    refused = talk.model.declare_queue(talk.channel, "s", "stream")
    assert 0 not in refused.codes
    talk.model.upgraded(Broker())
    talk.stream("s")


def test_the_order_of_the_last_release_is_not_looked_at() -> None:
    talk = Talk(as_old(Broker()))
    talk.declare("q", "quorum")
    talk.publish("q", priority=1)
    talk.publish("q", priority=5)
    talk.step()
    talk.model.upgraded(Broker())
    talk.publish("q", priority=5)
    talk.publish("q", priority=1)
    talk.consume("q", prefetch=2)
    talk.deliver(1)
    talk.deliver(4)
    talk.step()
    # What came when all were upgraded has an order.
    with pytest.raises(Broken, match="message 4 came before message 3"):
        talk.model.settle_step()


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_program_upgrades_every_node(nodes: int) -> None:
    rows = pairs.rows(nodes, 5, {"fault": "upgrade"})
    for seed, row in zip(range(20), rows, strict=False):
        program = draw(seed, row, nodes)
        upgraded = [step["node"] for step in program.steps if step["op"] == "fault"]
        assert sorted(upgraded) == ["n1", "n2", "n3"][:nodes]
        assert begins_old(program)


def test_steps_that_need_what_is_out_of_reach_are_left_out() -> None:
    class Three:
        def taken_for_granted(self) -> Broker:
            return Broker(nodes=3, prompt=False)

    judge = Judge(cast(Any, Three()), Program(0, 3, []), "v", 1.0)
    talk = Talk()
    talk.model = judge.model
    talk.declare("q").reachable = False
    large = {"op": "large", "client": OWN, "keys": ["p", "q"]}
    assert judge._out_of_reach(large)
    assert not judge._out_of_reach(large | {"keys": ["p"]})
    judge.hit = {"n2"}
    judge.model.vanishing = ["p"]
    assert judge._out_of_reach(large | {"keys": ["p"]})
    assert judge._out_of_reach({"op": "publish", "client": OWN, "exchange": "x", "key": "k", "messages": []})


def test_what_was_published_together_is_deleted_together(talk: Talk) -> None:
    log = talk.stream("s", x_max_length_bytes=6000, x_stream_max_segment_size_bytes=1000)
    talk.publish("s", 200)
    talk.publish("s", 3)
    # One batch, which is in one segment.
    assert log.kept_from() == 200


def test_only_what_retention_may_delete_is_a_gap(talk: Talk) -> None:
    log = talk.stream("s", x_max_length_bytes=6000, x_stream_max_segment_size_bytes=1000)
    for _ in range(10):
        talk.publish("s", 8)
    whole = [(copy.message.number - 1, copy.message.number) for copy in log.entries]
    kept = log.kept_from()
    assert 0 < kept < len(whole)
    log.verify(whole)
    # It was deleted while it was read.
    log.verify(whole[:4] + whole[kept:])
    log.verify(whole[:4] + whole[8:12] + whole[kept:])
    with pytest.raises(Broken, match="gaps"):
        log.verify(whole[: kept + 1] + whole[kept + 2 :])


def test_of_two_messages_by_two_clients_either_may_be_the_latest_of_a_key(three: Talk) -> None:
    log = three.stream("s", x_stream_compaction="header:x-stream-key")
    for channel, number, size in ((three.channel, 1, 10), (three.open(2), 2, 0)):
        message = Message(number, size, "", "s", headers={"x-stream-key": "k"})
        three.model.publish(channel, message, awaited=False)
    log.verify([(0, 2), (1, 1)])
    log.verify([(0, 2)])


@pytest.mark.pure
def test_each_bug_can_still_be_planted() -> None:
    """What a bug replaces is there: otherwise its mqd does not start, and nobody looks."""
    code = "from tests.model.planted import BUGS\nfor plant in BUGS.values(): plant()"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_message_group_is_with_one_consumer(talk: Talk) -> None:
    talk.declare("q", message_groups=True)
    talk.publish("q", 3, headers={"x-group-id": "ann"})
    talk.consume("q", "c", 1)
    talk.deliver(1)
    talk.step()
    talk.consume("q", "d")
    with pytest.raises(Broken, match="of group ann came while another one holds message 1"):
        talk.deliver(2, tag="d")


def test_what_waits_comes_when_it_is_due(talk: Talk) -> None:
    queue = talk.declare("q", delayed=True)
    talk.publish("q", headers={"x-delay": 1_000})
    talk.consume("q")
    with pytest.raises(Broken, match="before its time"):
        talk.deliver(1)
    assert not list(talk.model.owed())
    talk.step(1.1)
    assert list(talk.model.owed()) == ["q: message 1 is ready, and a consumer waits for it"]
    talk.deliver(1)
    assert queue.count() == (0, 0)


def test_a_client_says_when_a_delivery_comes_again(talk: Talk) -> None:
    queue = talk.declare("q", "quorum", delivery_limit=1)
    talk.publish("q")
    talk.consume("q")
    talk.deliver(1)
    talk.step()
    talk.model.retry(talk.channel, 1, 1_000, failed=False)
    with pytest.raises(Broken, match="before its time"):
        talk.deliver(1, redelivered=True)
    assert not list(talk.model.owed())
    talk.step(1.1)
    talk.deliver(1, redelivered=True)
    assert queue.copies[0].returns == (0, 0)
    talk.model.retry(talk.channel, 1, 0, failed=True)
    assert talk.channel.closing == {PRECONDITION_FAILED}


def test_only_what_waits_can_be_cancelled(talk: Talk) -> None:
    queue = talk.declare("q", delayed=True)
    talk.publish("q", headers={"x-delay": 1_000})
    talk.publish("q")
    assert queue.cancel(2) == ({"nack"}, [])
    right, gone = queue.cancel(1)
    assert right == {"ack"}
    queue.cancelled(gone)
    assert queue.cancel(1)[0] == {"nack"}
    talk.consume("q")
    talk.deliver(2)
    talk.step(1.1)
    with pytest.raises(Broken, match="message 1 was delivered while it was gone"):
        talk.deliver(1)


def test_a_paused_queue_hands_out_nothing_and_takes_nothing(talk: Talk) -> None:
    talk.declare("q")
    talk.channel.confirming = True
    talk.publish("q")
    talk.model.pause("q", "deliveries", paused=True)
    talk.model.pause("q", "publishes", paused=True)
    talk.step()
    talk.consume("q")
    assert not list(talk.model.owed())
    with pytest.raises(Broken, match="while deliveries are paused"):
        talk.deliver(1)
    talk.publish("q")
    assert [each.outcomes for each in talk.channel.unconfirmed.values()] == [{"ack"}, {"nack"}]


def test_a_protected_queue_stays(talk: Talk) -> None:
    queue, stream = talk.declare("q", expires=100), talk.stream("s")
    for name in ("q", "s"):
        talk.step()
        talk.model.protect(name, protected=True)
        assert talk.model.delete_queue(talk.channel, name).codes == {RESOURCE_LOCKED}
    assert queue.lease is None and stream.protected
    queue.auto_delete = True
    talk.consume("q")
    talk.step()
    talk.done(talk.model.cancel(talk.channel, "c"))
    assert talk.model.queues["q"] is queue
    talk.model.protect("q", protected=False)
    assert queue.lease is not None
    assert talk.model.delete_queue(talk.channel, "q").codes == {0}


def test_what_was_sent_while_publishes_are_paused_may_come_late_after_a_fault(three: Talk) -> None:
    queue = three.declare("q", "quorum")
    three.model.pause("q", "publishes", paused=True)
    three.publish("q")
    queue.shaken = True
    three.publish("q")
    three.model.pause("q", "publishes", paused=False)
    three.consume("q")
    assert not three.model.owed()
    three.deliver(2)
    with pytest.raises(Broken, match="never was in this queue"):
        three.deliver(1)


def test_who_dies_again_under_another_policy_may_have_a_letter(talk: Talk) -> None:
    queue = talk.declare("q", max_length=1, dead_letter_exchange="dlx")
    talk.publish("q")
    talk.model.dead_letter(queue, queue.copies[0], "expired", certain=False)
    assert not queue.copies[0].letters
    talk.step()
    talk.done(talk.model.declare_exchange(talk.channel, "dlx", "fanout"))
    dead = talk.declare("dead")
    talk.model.bindings.append(Binding("dlx", "queue", "dead", ""))
    talk.model.dead_letter(queue, queue.copies[0], "maxlen", certain=True)
    assert [copy.presence for copy in dead.copies] == [Presence.MAYBE]


def test_gets_with_and_without_acks_are_two_consumers_of_a_group(talk: Talk) -> None:
    queue = talk.declare("q", message_groups=True)
    talk.publish("q", 2, headers={"x-group-id": "ann"})
    one, two = queue.copies
    queue.take(one, talk.at_s, None, talk.channel)
    one.held = True
    assert queue.open_for(two, talk.channel)
    assert not queue.open_for(two, talk.channel, no_ack=True)


def test_the_fixed_programs_have_queues_that_fail_of_every_kind() -> None:
    """As .ci/run draws them."""
    alone = [*islice(pairs.rows(1, 1), 40), *islice(pairs.rows(1, 3, {"fault": "entry"}), 3)]
    three = [*islice(pairs.rows(3, 1), 12), *islice(pairs.rows(3, 9, {"fault": "entry|move|damage"}), 6)]
    for rows in (alone, three):
        assert {row["kind"] for row in rows if row["fault"] == "entry"} >= {"classic", "quorum", "stream"}
    assert {row["fault"] for row in three} >= {"move", "damage"}


def test_a_program_with_a_queue_that_fails_runs_on_a_pure_broker() -> None:
    class Made:
        product, names, alarms = "mqd", ("n1",), frozenset[str]()

        def __init__(self, *, pure: bool = False) -> None:
            self.pure, self.faults = pure, frozenset({"entry"} if pure else {"kill"})

    campaign = Campaign(cast(Any, Made), 1, 0, Path(), 1)
    chosen = {}
    for kind in ("kill", "entry"):
        program = Program(0, 1, [{"op": "fault", "kind": kind}], ["n1"], ["guest"], {"fault": kind})
        chosen[kind] = cast(Any, campaign._broker_for(program)).pure
    assert chosen == {"kill": False, "entry": True}


def test_what_expires_while_another_node_takes_its_queue_away_may_be_dead_lettered(three: Talk) -> None:
    three.step()
    three.done(three.model.declare_exchange(three.channel, "dlx", "fanout"))
    dead = three.declare("dead")
    three.model.bindings.append(Binding("dlx", "queue", "dead", ""))
    queue = three.declare("q", message_ttl=500, dead_letter_exchange="dlx")
    three.publish("q")
    three.model.remove_queue(queue)
    assert [copy.presence for copy in dead.copies] == [Presence.MAYBE]


def test_of_two_messages_with_one_id_by_two_nodes_either_may_be_the_duplicate(three: Talk) -> None:
    log = three.stream("s", x_deduplication=True)
    three.publish("s", headers={"x-deduplication-id": "a"})
    three.session = Session(1, User("guest"), "n2")
    three.channel = three.open(1)
    three.publish("s", headers={"x-deduplication-id": "a"})
    assert [entry.presence for entry in log.entries] == [Presence.MAYBE, Presence.MAYBE]
    log.see(0, 2)


def test_what_another_client_publishes_next_may_make_a_message_of_a_transaction_a_duplicate(
    three: Talk,
) -> None:
    queue = three.declare("q", "quorum", deduplication=True)
    three.done(three.model.select(three.channel, "tx"))
    three.publish("q", headers={"x-deduplication-id": "a"})
    three.step()
    three.done(three.model.commit(three.channel))
    three.session = Session(1, User("guest"), "n2")
    three.channel = three.open(1)
    three.publish("q", headers={"x-deduplication-id": "a"})
    assert [copy.presence for copy in queue.copies] == [Presence.MAYBE, Presence.MAYBE]


def test_a_queue_need_not_exist_before_the_commit(talk: Talk) -> None:
    talk.done(talk.model.select(talk.channel, "tx"))
    talk.publish("q")
    queue = talk.declare("q")
    talk.done(talk.model.commit(talk.channel))
    assert [copy.message.number for copy in queue.copies] == [1]


def test_a_delay_begins_with_the_publish(talk: Talk) -> None:
    queue = talk.declare("q", delayed=True)
    talk.done(talk.model.select(talk.channel, "tx"))
    talk.publish("q", headers={"x-delay": 1000})
    talk.step(0.9)
    talk.done(talk.model.commit(talk.channel))
    [copy] = queue.waiting()
    assert copy.due is not None
    assert copy.due[0] < talk.at_s + 0.2


def test_what_only_the_leader_has_confirmed_is_not_there_for_sure(three: Talk) -> None:
    three.done(three.model.select(three.channel, "confirm"))
    queue = three.declare("q", "quorum")
    three.publish("q", headers={"x-confirm": "leader"})
    three.publish("q")
    three.model.on_confirm(three.channel, 2, multiple=True, nack=False)
    assert [copy.presence for copy in queue.copies] == [Presence.COMING, Presence.SURE]


def test_a_batch_counts_once_and_has_all_its_messages(talk: Talk) -> None:
    talk.stream("s")
    talk.publish("s", 3)
    talk.step()
    talk.done(talk.model.qos(talk.channel, 1, False))
    arguments = {"x-stream-offset": 1, "x-stream-batches": True}
    talk.done(talk.model.consume(talk.channel, "s", "c", arguments=arguments))
    headers = {"x-stream-offset": 0, "x-stream-next-offset": 3, "x-stream-count": 3, "x-stream-skip": 1}
    talk.model.on_batch(talk.channel, 1, "c", headers, [(0, 1), (1, 2), (2, 3)])
    assert talk.channel.unacked[1].offsets == (1, 2)
    with pytest.raises(Broken, match="more than its prefetch"):
        talk.model.on_batch(talk.channel, 2, "c", headers | {"x-stream-skip": 0}, [(0, 1), (1, 2), (2, 3)])


def test_batches_are_decoded_as_documented() -> None:
    with pytest.raises(Broken, match="a head that is wrong"):
        decoded(bytes(48))


def test_what_another_client_publishes_next_may_come_before_a_transaction(three: Talk) -> None:
    log = three.stream("s")
    three.done(three.model.select(three.channel, "tx"))
    three.publish("s")
    three.step()
    three.done(three.model.commit(three.channel))
    three.session = Session(1, User("guest"), "n2")
    three.channel = three.open(1)
    three.publish("s")
    log.verify([(0, 2), (1, 1)])


def test_what_expires_while_a_publish_is_on_its_way_may_make_room_for_it(talk: Talk) -> None:
    queue = talk.declare("q", max_length=1, overflow="reject-publish")
    talk.done(talk.model.select(talk.channel, "confirm"))
    talk.publish("q", expiration_ms=150)
    talk.publish("q")
    talk.step(0.1)
    talk.publish("q")
    outcomes = [each.outcomes for each in talk.channel.unconfirmed.values()]
    assert outcomes == [{"ack"}, {"nack"}, {"ack", "nack"}]
    assert len(queue.line()) == 2


def test_a_queue_that_surely_refuses_says_nothing_about_another(talk: Talk) -> None:
    talk.declare("full", max_length=1, overflow="reject-publish")
    beside = talk.declare("beside")
    talk.done(talk.model.select(talk.channel, "confirm"))
    talk.publish("full")
    talk.publish("full", headers={"CC": ["beside"]})
    [copy] = beside.line()
    # As if it might have been dropped.
    copy.presence = Presence.MAYBE
    talk.model.on_confirm(talk.channel, 2, multiple=False, nack=True)
    assert beside.line() == [copy]


def test_a_queue_of_the_last_release_may_go_with_what_expired_in_it_behind_others() -> None:
    talk = Talk(as_old(Broker()))
    dead = talk.declare("dead")
    queue = talk.declare("q", expires=700, dead_letter_exchange="", dead_letter_routing_key="dead")
    talk.publish("q", expiration_ms=600_000)
    talk.publish("q", expiration_ms=150)
    talk.step()
    talk.model.vouched()
    talk.model.crashed([talk.session], orderly=True)
    talk.model.upgraded(Broker())
    talk.step(2.0)
    assert [copy.presence for copy in dead.line()] == [Presence.COMING]
    talk.model.remove_queue(queue)
    assert [copy.presence for copy in dead.line()] == [Presence.MAYBE]


def test_a_dead_letter_that_was_acked_before_a_kill_need_not_come_again(talk: Talk) -> None:
    talk.step()
    talk.done(talk.model.declare_exchange(talk.channel, "dlx", "fanout"))
    one, two = talk.declare("one"), talk.declare("two")
    for name in ("one", "two"):
        talk.done(talk.model.bind(talk.channel, Binding("dlx", "queue", name, "", ())))
    talk.declare("q", dead_letter_exchange="dlx")
    talk.publish("q")
    talk.consume("q")
    talk.deliver(1)
    talk.settle("discard", 1)
    [first], [second] = one.copies, two.copies
    first.leave(talk.model.step)
    talk.step()
    talk.model.crashed([talk.session], orderly=False)
    assert first.presence is Presence.MAYBE
    talk.model.settled_source(second)
    assert first.presence is Presence.MAYBE


def test_what_was_on_its_way_to_a_client_that_is_lost_counts_as_returned(three: Talk) -> None:
    dead = three.declare("dead")
    three.declare("q", "quorum", delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    three.publish("q")
    three.consume("q")
    three.deliver(1)
    three.settle("requeue", 1)
    assert not dead.line()
    three.step()
    three.model.lose_session(three.session, certain=False)
    assert [copy.presence for copy in dead.line()] == [Presence.MAYBE]


def test_messages_fill_segments_of_streams_that_compress_them() -> None:
    """Else no program has the three passes of compaction after which a deleted key may come back."""
    bodies = b"".join(Message(number, 100, "", "s").body for number in range(12))
    assert len(zlib.compress(bodies)) >= len(bodies) == 1200


def as_producer(talk: Talk, channel: Channel, epoch: int) -> set[int]:
    """Publish in a transaction; return the codes with which the channel has to be closed."""
    talk.step()
    talk.number += 1
    headers = {"x-producer": "billing", "x-producer-epoch": epoch}
    talk.model.publish(channel, Message(talk.number, 10, "", "q", headers=headers))
    return channel.closing


def test_a_later_start_of_a_producer_shuts_out_the_earlier_one(talk: Talk) -> None:
    queue = talk.declare("q")
    one, two, three = talk.channel, talk.open(2), talk.open(3)
    for channel in (one, two, three):
        talk.done(talk.model.select(channel, "tx"))
    assert as_producer(talk, one, 1) == set()
    assert talk.model.rollback(one).codes == {0}
    assert as_producer(talk, one, 1) == set()
    assert as_producer(talk, two, 2) == set()
    assert talk.model.commit(one).codes == {PRECONDITION_FAILED}
    assert as_producer(talk, three, 1) == {PRECONDITION_FAILED}
    assert talk.model.commit(two).codes == {0}
    assert [copy.message.number for copy in queue.line()] == [3]


@pytest.mark.parametrize(("committed", "codes"), [(True, {406}), (False, {0, 406})])
def test_a_kill_may_forget_a_producer_that_has_committed_nothing(
    talk: Talk, committed: bool, codes: set[int]
) -> None:
    talk.declare("q")
    talk.done(talk.model.select(talk.channel, "tx"))
    assert as_producer(talk, talk.channel, 2) == set()
    if committed:
        talk.done(talk.model.commit(talk.channel))
    talk.model.crashed([talk.session], orderly=False)
    again = talk.open(2)
    talk.done(talk.model.select(again, "tx"))
    as_producer(talk, again, 1)
    assert talk.model.commit(again).codes == codes


def test_a_consumer_that_holds_a_message_for_too_long_is_cancelled(talk: Talk) -> None:
    queue = talk.declare("q", single_active_consumer=True)
    talk.publish("q")
    talk.step()
    arguments = {"x-consumer-timeout": 500}
    talk.done(talk.model.consume(talk.channel, "q", "slow", arguments=arguments))
    talk.done(talk.model.consume(talk.channel, "q", "next"))
    talk.deliver(1, tag="slow")
    talk.step(0.4)
    with pytest.raises(Broken, match="slow was cancelled before its timeout of 500 ms"):
        talk.model.on_cancel(talk.channel, "slow")
    talk.step(0.2)
    talk.model.on_cancel(talk.channel, "slow")
    assert [consumer.tag for consumer in queue.consumers] == ["next"]
    talk.deliver(1, redelivered=True, tag="next")
    # A late ack does no harm.
    talk.settle("ack", 1)
    assert [copy.held for copy in queue.copies] == [True]


def test_what_a_transaction_acks_stays_if_a_cluster_refuses_it(three: Talk) -> None:
    full = three.declare("full", max_length=1, overflow="reject-publish")
    queue = three.declare("q")
    three.publish("full")
    three.publish("q")
    three.consume("q")
    three.deliver(2)
    three.done(three.model.select(three.channel, "tx"))
    three.settle("ack", 1)
    three.model.publish(three.channel, Message(3, 10, "", "full"))
    # Whether the first message is there by now is not known.
    full.copies[0].presence = Presence.COMING
    promise = three.model.commit(three.channel)
    assert promise.codes == {0, PRECONDITION_FAILED}
    [copy] = queue.copies
    assert copy.held
    three.model.close_channel(three.channel)
    assert copy.ready


def test_a_cluster_does_not_decide_about_a_transaction_to_no_queue(three: Talk) -> None:
    one, two = three.channel, three.open(2)
    for channel in (one, two):
        three.done(three.model.select(channel, "tx"))
    as_producer(three, two, 2)
    three.done(three.model.commit(two))
    three.declare("q")
    as_producer(three, one, 1)
    assert three.model.commit(one).codes == {0, PRECONDITION_FAILED}


def test_what_a_limit_drops_of_a_transaction_that_may_be_refused_need_not_be_dead_lettered(
    three: Talk,
) -> None:
    dead = three.declare("dead")
    three.declare("q", "quorum", max_length_bytes=5, dead_letter_exchange="", dead_letter_routing_key="dead")
    one, two = three.open(2), three.open(3)
    for channel in (one, two):
        three.step()
        three.done(three.model.select(channel, "tx"))
    as_producer(three, two, 2)
    as_producer(three, one, 1)
    assert three.model.commit(one).codes == {0, PRECONDITION_FAILED}
    assert [copy.presence for copy in dead.copies] == [Presence.MAYBE]


def test_a_group_waits_for_nothing_of_a_transaction_that_may_be_refused(three: Talk) -> None:
    three.stream("s")
    group = three.declare("q", "stream-group", stream="s", stream_offset="first")
    three.done(three.model.select(three.channel, "tx"))
    three.model.epochs.begun("billing", 2, sure=False)
    three.step()
    headers = {"x-producer": "billing", "x-producer-epoch": 1}
    three.model.publish(three.channel, Message(1, 10, "", "s", headers=headers))
    assert three.model.commit(three.channel).codes == {0, PRECONDITION_FAILED}
    assert [copy.presence for copy in group.copies] == [Presence.MAYBE]


def test_what_a_stuck_consumer_held_may_expire_before_its_auto_delete_queue_goes(talk: Talk) -> None:
    dead = talk.declare("dead")
    queue = talk.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    queue.auto_delete = True
    talk.publish("q", expiration_ms=150)
    talk.step()
    arguments = {"x-consumer-timeout": 500}
    talk.done(talk.model.consume(talk.channel, "q", "slow", arguments=arguments))
    talk.deliver(1, tag="slow")
    talk.step(0.6)
    talk.model.on_cancel(talk.channel, "slow")
    assert "q" not in talk.model.queues
    assert [copy.presence for copy in dead.line()] == [Presence.MAYBE]


def test_the_next_message_may_be_on_its_way_to_a_stuck_consumer(three: Talk) -> None:
    three.declare("q")
    three.publish("q", 2)
    three.step()
    three.done(three.model.qos(three.channel, 1, False))
    arguments = {"x-consumer-timeout": 500}
    three.done(three.model.consume(three.channel, "q", "slow", arguments=arguments))
    three.deliver(1, tag="slow")
    three.step(0.6)
    three.model.on_cancel(three.channel, "slow")
    three.consume("q", "next")
    three.deliver(1, redelivered=True, tag="next")
    three.deliver(2, redelivered=True, tag="next")


def test_what_need_not_be_there_may_be_on_its_way_when_a_channel_closes(three: Talk) -> None:
    queue = three.declare("q")
    three.publish("q")
    [copy] = queue.copies
    copy.presence = Presence.MAYBE
    three.consume("q")
    three.model.close_channel(three.channel)
    three.channel = three.open(2)
    three.consume("q")
    three.deliver(1, redelivered=True)


def scattered(talk: Talk) -> Queue:
    """A group whose member has more gaps than it may: it has acked every second message."""
    talk.model.broker.gaps_max = 2
    talk.stream("s")
    group = talk.declare("q", "stream-group", stream="s", stream_offset="first")
    talk.publish("s", 6)
    talk.consume("q")
    for number in range(1, 7):
        talk.deliver(number, offset=number - 1)
    talk.model.settle_step()
    talk.step()
    for tag in (1, 3, 5):
        talk.model.settle(talk.channel, "ack", tag, False)
    talk.model.settle_step()
    talk.step()
    talk.model.settle_step()
    return group


def test_a_member_with_too_many_gaps_gets_nothing_new(talk: Talk) -> None:
    group = scattered(talk)
    talk.publish("s")
    assert not list(group.owed())
    with pytest.raises(Broken, match="more than 2 runs of messages are unacked"):
        talk.deliver(7, offset=6)


def test_a_member_that_acks_what_is_between_gaps_gets_what_is_new(talk: Talk) -> None:
    group = scattered(talk)
    talk.publish("s")
    talk.settle("ack", 2)
    assert [*group.owed()] == ["q: message 7 is ready, and a consumer waits for it"]
    talk.deliver(7, offset=6)


def test_what_came_back_is_not_new(talk: Talk) -> None:
    group = scattered(talk)
    talk.publish("s")
    talk.step()
    for tag in (2, 4, 6):
        talk.model.settle(talk.channel, "requeue", tag, True)
    assert len([*group.owed()]) == 4
    for number in (2, 4, 6):
        talk.deliver(number, offset=number - 1, redelivered=True)
    assert not [*group.owed()]


def test_a_commit_may_meet_a_queue_that_fails(three: Talk) -> None:
    """Its host is another one when it starts again: nothing of the transaction happens."""
    queue = three.declare("q", "quorum")
    three.step()
    three.done(three.model.select(three.channel, "tx"))
    queue.failed_at = three.model.step
    three.publish("q")
    assert three.model.commit(three.channel).codes == {OK, RESOURCE_ERROR}
    three.step()
    three.step()
    three.publish("q")
    assert three.model.commit(three.channel).codes == {OK}
