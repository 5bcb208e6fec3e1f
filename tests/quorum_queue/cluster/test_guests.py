"""Queues that live on other nodes, seen from a node that is no member of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.queues import events
from quorum_queue.cluster.queues.guests import Guest, Guests
from quorum_queue.cluster.queues.remote_host import RemoteHost
from quorum_queue.cluster.queues.undeclared import UndeclaredQueues
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.entries import encode_batch
from quorum_queue.machine.positions import Positions
from quorum_queue.machine.run import Run
from quorum_queue.ports import Refused
from tests.quorum_queue.cluster.scene import Scene, sync

pytestmark = pytest.mark.usefixtures("quiet")


def scene_with_guest() -> Scene:
    """d is no member."""
    scene = Scene(names="abcd", members="abc")
    assert isinstance(scene.nodes["d"].queues["plain"].host, RemoteHost)
    return scene


def home(scene: Scene) -> str:
    host = scene.nodes["d"].queues["plain"].host
    assert isinstance(host, RemoteHost)
    return host._home(host._avoid)


def test_a_guest_publishes_consumes_and_settles() -> None:
    scene = scene_with_guest()
    publisher = scene.publisher("d")
    holder = scene.consume("d")
    scene.publish("d", publisher, 3)
    scene.work()
    assert not publisher.waiting
    assert not publisher.refusals
    assert len(holder.unacked) == 3
    scene.settle_all(holder)
    scene.work()
    assert not scene.ledger.live
    scene.finish()


def test_a_link_that_breaks_refuses_what_is_on_its_way_and_gives_back_what_was_held() -> None:
    scene = scene_with_guest()
    first = scene.publisher("d")
    holder = scene.consume("d", prefetch=1)
    scene.publish("d", first)
    scene.work()
    assert holder.unacked
    publisher = scene.publisher("d")
    scene.publish("d", publisher, 2)
    scene.end_session(scene.nodes["d"].sessions[home(scene)])
    assert len(publisher.refusals) == 2
    assert holder.gone
    scene.work(2)
    assert not scene.host("a").replica.machine.consumers.by_key
    assert scene.host("a").ready_count == 1
    # A refused message may be there nevertheless; a publisher that wants to be sure publishes it again.
    scene.publish("d", publisher)
    scene.heal()
    scene.work(2)
    scene.finish()


def test_answers_of_an_earlier_session_are_no_answers() -> None:
    """A node that starts numbers its requests anew: an answer to an earlier start would confirm another
    request.
    """
    scene = scene_with_guest()
    at = home(scene)
    lost = scene.publisher("d")
    scene.publish("d", lost)
    scene.deliver("d", at)
    # The batch is on its way through the log while the node starts anew.
    scene.crash(scene.nodes["d"])
    scene.start(scene.nodes["d"])
    for session in scene.sessions_of("d"):
        scene.end_session(session)
    scene.network.connect(at, "d")
    for place in [place for place in scene.network.places() if "d" in place[0].ends]:
        scene.network.go_on(*place)
    publisher = scene.publisher("d")
    scene.publish("d", publisher)
    # When the answer leaves, only the first publisher's batch has reached the log.
    for _ in range(10):
        for name in "abc":
            sync(scene.nodes[name])
            for other in "abc":
                if other != name:
                    scene.deliver(name, other)
    assert scene.ledger.accepted.keys() == {lost.bodies[1]}
    scene.deliver(at, "d")
    assert publisher.waiting
    scene.work(5)
    assert not publisher.waiting
    assert not publisher.refusals
    scene.finish()


def test_answers_to_an_earlier_host_of_the_node_are_no_answers() -> None:
    """The queue has moved to the node and away again: the home answers the last batch of the host before."""
    scene = scene_with_guest()
    host = scene.nodes["d"].queues["plain"].host
    assert isinstance(host, RemoteHost)
    host._last_token = 5
    drained: list[None] = []
    host.received([(events.DONE, 5, 0, 0, 0, 0)])
    host.drain(lambda: drained.append(None))
    assert drained
    publisher = scene.publisher("d")
    scene.publish("d", publisher)
    host.received([(events.MOVED, 5)])
    assert publisher.waiting and not publisher.refusals
    scene.work()
    assert not publisher.waiting and not publisher.refusals
    scene.finish()


def test_a_batch_that_has_to_catch_up_is_answered_later_than_those_behind_it() -> None:
    """A count waits for everything that the log has; the answer to a later request says nothing of it. And a
    queue that moves to this node waits for all answers, in whatever order they come.
    """
    scene = scene_with_guest()
    host = scene.nodes["d"].queues["plain"].host
    assert isinstance(host, RemoteHost)
    done: list[str] = []
    scene.publish("d", scene.publisher("d"))
    scene.work()
    host.catch_up(lambda *_: done.append("counted"))
    scene.nodes["d"].end_turn()
    counts = host._last_sent
    scene.publish("d", scene.publisher("d"))
    publishes = host._last_sent
    assert publishes > counts
    host.drain(lambda: done.append("drained"))
    host.received([(events.DONE, publishes, 0, 0, 0, 0)])
    assert not done
    host.received([(events.DONE, counts, 0, 0, 0, 0)])
    assert done == ["counted", "drained"]
    host.resume()
    scene.work()
    scene.finish()


class Answered:
    """A publisher that keeps its answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int, int]] = []

    def confirmed(self, first: int, last: int) -> None:
        self.answers.append(("ack", first, last))

    def refused(self, first: int, last: int) -> None:
        self.answers.append(("nack", first, last))


def test_a_home_may_answer_for_later_messages_first() -> None:
    """A classic queue refuses at once what does not fit, and confirms the rest when it is on disk."""
    host = scene_with_guest().nodes["d"].queues["plain"].host
    assert isinstance(host, RemoteHost)
    publisher = Answered()
    run = Run(range(9), [b"m"] * 9, b"\x00\x01q")
    host.pending = [("enqueue", run, publisher, 1)]
    [(_, _, token, _)] = host._outgoing()
    host.received(
        [(events.REFUSED, token, 3, 3), (events.REFUSED, token, 4, 4), (events.CONFIRMED, token, 7, 7)]
    )
    assert publisher.answers == [("nack", 3, 3), ("nack", 4, 4), ("ack", 7, 7)]
    publisher.answers.clear()
    host.received([(events.CONFIRMED, token, 1, 1)])
    # Its link breaks: nobody knows about the others.
    host._refuse_publishes()
    assert publisher.answers == [("ack", 1, 1), ("nack", 2, 2), ("nack", 5, 6), ("nack", 8, 9)]


def test_a_barrier_waits_for_answers_to_earlier_messages() -> None:
    host = scene_with_guest().nodes["d"].queues["plain"].host
    assert isinstance(host, RemoteHost)
    host.pending = [("enqueue", Run(range(9), [b"m"] * 9, b"\x00\x01q"), Answered(), 1)]
    [(_, _, token, _)] = host._outgoing()
    reached: list[None] = []
    host._unconfirmed_barriers.append((token, lambda: reached.append(None)))
    host.received([(events.CONFIRMED, token, *span) for span in ((9, 9), (3, 4), (5, 8))])
    assert not reached
    host.received([(events.REFUSED, token, 1, 2)])
    assert reached
    assert not host._publishes


def test_a_node_that_does_not_have_the_queue_takes_nothing() -> None:
    scene = scene_with_guest()
    publisher = scene.publisher("d")
    at = home(scene)
    del scene.nodes[at].hosts.queues[scene.group_id]
    scene.publish("d", publisher, 2)
    scene.work()
    assert len(publisher.refusals) == 2
    assert not scene.ledger.accepted
    scene.nodes[at].hosts.queues[scene.group_id] = scene.nodes[at].queues["plain"]  # type: ignore[assignment]
    scene.publish("d", publisher)
    scene.work()
    assert len(scene.ledger.accepted) == 1
    scene.finish()


def test_guests_stay_where_they_are_while_that_works() -> None:
    """A move to a better home would end the consumers, and the order of messages under way."""
    scene = scene_with_guest()
    scene.end_session(scene.nodes["d"].sessions["a"])
    scene.network.blocked["a", "d"] = scene.network.blocked["d", "a"] = None
    holder = scene.consume("d")
    scene.work()
    at = home(scene)
    assert at != "a"
    scene.network.blocked.clear()
    scene.network.connect("a", "d")
    publisher = scene.publisher("d")
    scene.publish("d", publisher)
    scene.work()
    assert scene.on_the_way("d", "a", frames.QUEUE) == 0
    assert not holder.gone
    assert len(holder.unacked) == 1
    scene.finish()


def test_a_guest_is_told_when_its_queue_moves_on() -> None:
    scene = Scene(names="abcde", members="abcd")
    holder = scene.consume("e")
    publisher = scene.publisher("e")
    scene.publish("e", publisher)
    scene.settle()
    assert holder.unacked
    host = scene.nodes["e"].queues["plain"].host
    at = host._home(host._avoid)
    rest = tuple(name for name in "abcd" if name != at)
    scene.declared[0].members.append(rest)
    scene.settle()
    # The consumer is cancelled, and nothing of it stays at the old home.
    assert holder.gone
    assert not scene.host(rest[0]).replica.machine.consumers.by_key
    assert scene.host(rest[0]).ready_count == 1
    again = scene.consume("e")
    scene.publish("e", publisher)
    scene.settle()
    assert len(again.unacked) == 2
    assert not publisher.waiting
    scene.finish()


def test_a_consumer_that_comes_from_a_member_goes_on_though_its_home_counts_as_down_at_once() -> None:
    """Else ids of its deliveries begin anew, and the client's acks mean messages that it has given back."""
    scene = Scene(names="abc", members="abc")
    holder = scene.consume("c")
    publisher = scene.publisher("c")
    scene.publish("c", publisher, 3)
    scene.settle()
    scene.settle_all(holder)
    scene.declared[0].members.append(("a", "b"))
    scene.settle()
    host = scene.nodes["c"].queues["plain"].host
    assert isinstance(host, RemoteHost) and not holder.gone
    at = host._home(host._avoid)
    (leader,) = scene.leaders().values()
    scene.host(leader).submit(("node_down", at, scene.nodes[at].incarnation))
    scene.nodes[leader].end_turn()
    scene.work()
    scene.publish("c", publisher)
    scene.settle()
    assert list(holder.unacked) == [3]
    scene.settle_all(holder)
    scene.settle()
    assert not scene.ledger.live
    scene.finish()


@pytest.mark.parametrize(
    ("ended", "told"), [("failed", events.MOVED), ("moved", events.MOVED), ("deleted", events.DONE)]
)
def test_a_batch_that_a_host_refuses_is_not_answered_as_done(ended: str, told: int) -> None:
    """The acks in the batch, perhaps of a transaction, may have had no effect. A queue that is deleted needs
    none.
    """
    sent: list[tuple[Any, ...]] = []

    class Ending:
        """A host that ends while a batch is on its way through it."""

        ended = ""
        pending: list[Any] = []
        ready_count = ready_bytes = unacked_count = consumer_count = 0

        def submit(self, *commands: Any) -> None: ...

        def barrier(self, done: Any) -> None:
            self.ended = ended
            done(Refused("it has ended"))

    class Links:
        def send(self, peer: str, parts: list[bytes]) -> bool:
            _, head, bodies = frames.parse_events(memoryview(b"".join(parts)))
            sent.extend(events.decode(head, bodies))
            return True

        def pending_bytes(self, peer: str) -> int:
            return 0

    class Turn:
        def gather(self, gatherer: Any) -> None: ...

        def contain(self, unit: Any, call: Any, *arguments: Any) -> None:
            call(*arguments)

    links: Any = Links()
    turn: Any = Turn()
    host: Any = Ending()
    guests = Guests(links, turn, lambda queue_id: host, UndeclaredQueues(lambda queue_id: False, 0))
    batch = b"".join(encode_batch("b", 1, 1, [("settle", (1, 1, "c", 1), 0, 0)]))
    guests.received("b", memoryview(b"".join(frames.queue(7, [batch]))))
    guests.flush()
    assert [event[0] for event in sent] == [told]


def test_positions_that_lie_apart_reach_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer of message groups gets them as one run."""
    sent = events.Events()
    monkeypatch.setattr(Guests, "events_for", lambda *_: sent)
    guest = Guest(object.__new__(Guests), "d", 1)
    run = Run(Positions([1, 4, 5, 9]), [b"a", b"bb", b"c", b"dd"], b"\x00\x01q")
    guest.deliver(Consumer(("d", 1, 2, 3, "tag", 4)), run, 7)
    head = memoryview(msgspec.msgpack.encode(sent._events))
    found = events.decode(head, memoryview(b"".join(sent._bodies)))
    assert [(first_id, each.seqs, each.contents) for _, _, first_id, each in found] == [
        (7, range(1, 2), [b"a"]),
        (8, range(4, 6), [b"bb", b"c"]),
        (10, range(9, 10), [b"dd"]),
    ]
