"""The disk has not read a queue's next bodies yet: these messages wait, and nothing else does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from quorum_queue.local_host import LocalHost
from quorum_queue.machine import run as run_module
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.peeking import Look
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.machine.run import Attributes
from quorum_queue.machine.settings import Settings
from quorum_queue.memory import ReadAhead
from quorum_queue.ports import Refused
from tests.quorum_queue import node as node_module
from tests.quorum_queue.node import PERSISTENT, Publisher, QueueNode, Receiver, publish, resident_bytes

TRANSIENT = Attributes()
#: These tests make runs smaller by patching a constant, which is part of compiled code.
pytestmark = pytest.mark.pure
SIZE = 1000


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number + b"." * SIZE for number in range(first, last + 1)]


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RUN_BYTES_MAX", 3 * SIZE)
    monkeypatch.setattr(node_module, "READ_AHEAD", ReadAhead(4 * SIZE, 12 * SIZE))


class ColdNode(QueueNode):
    """A node whose disk does one read for each `step`."""

    def __init__(self, budget_bytes: int = 1 << 30) -> None:
        super().__init__(budget_bytes)
        self.cold = True
        for store in (self.environment, self.environment.spill):
            store.reader.waits = lambda: self.cold

    @property
    def asked(self) -> int:
        return len(self.environment.reader.waiting) + len(self.environment.spill.reader.waiting)

    def step(self) -> None:
        """Do the oldest read of the disk."""
        for store in (self.environment, self.environment.spill):
            if store.reader.waiting:
                # `done` schedules the queue, and the turn of these tests then ends at once.
                store.reader.step()()
                return

    def drain(self) -> None:
        for _ in range(1000):
            if not self.asked and not self.wakes.asked:
                return
            self.step()
            self.wakes.run(1 << 40)
        raise AssertionError("it never ends")


def paged_out(
    node: QueueNode,
    last: int,
    *,
    journalled: bool = True,
    settings: Settings | None = None,
    groups: bytes = b"",
) -> LocalHost:
    """Return a queue of this many messages. All except the head are out of memory, and the head is taken
    away.
    """
    host = node.host(settings or Settings(), journalled=journalled)
    for number in range(1, last + 1):
        group = groups[number % len(groups) :][:1] if groups else b""
        head, attributes = b"\x01e\x01k" + group, PERSISTENT if journalled else TRANSIENT
        publish(host, numbered(number, number), attributes=attributes, head=head)
    node.commit()
    host.page_out(1 << 30)
    for level in host.machine.ready.levels:
        for run in level.main:
            if run.contents is not None:
                if not journalled:
                    host._spill(run)
                node.services.memory.used -= run.size
                host.resident_bytes -= run.page_out()
    node.commit()
    return host


def attach(host: LocalHost, key: str = "c", prefetch: int = 0, no_ack: bool = False) -> Receiver:
    receiver = Receiver()
    host.submit(("attach", Consumer(key, prefetch=prefetch, no_ack=no_ack, sink=receiver)))
    return receiver


@pytest.mark.parametrize("journalled", [True, False])
@pytest.mark.parametrize("no_ack", [True, False])
def test_deliveries_wait_for_the_disk_and_publishers_do_not(journalled: bool, no_ack: bool) -> None:
    node = ColdNode()
    host = paged_out(node, 30, journalled=journalled)
    receiver, publisher = attach(host, no_ack=no_ack), Publisher()
    assert receiver.contents == []
    assert node.asked == 1
    publish(host, numbered(31, 32), publisher, attributes=PERSISTENT if journalled else TRANSIENT)
    node.commit()
    assert publisher.confirms == {1, 2}
    assert receiver.contents == []
    node.step()
    first = len(receiver.contents)
    assert 0 < first < 32
    node.drain()
    assert receiver.contents == numbered(1, 32)
    if not no_ack:
        assert host.unacked_count == 32
        host.submit(("settle", "c", 0, 31))
    assert (host.unacked_count, resident_bytes(host), node.services.memory.used) == (0, 0, 0)


@pytest.mark.parametrize("journalled", [True, False])
@pytest.mark.parametrize("groups", [b"a", b"ab", b"abcde"])
def test_groups_wait_for_the_disk_in_order(journalled: bool, groups: bytes) -> None:
    """Also messages that were put aside, whose bodies leave memory again and again."""
    node = ColdNode()
    settings = Settings(group_header="x-group-id")
    host = paged_out(node, 20, journalled=journalled, settings=settings, groups=groups)
    consumers = {key: attach(host, key, prefetch=1) for key in ("c", "d", "e")}
    settled = dict.fromkeys(consumers, 0)
    came: list[bytes] = []
    for _ in range(200):
        node.drain()
        host.page_out(1 << 30)
        node.commit()
        for key, receiver in consumers.items():
            fresh = receiver.contents[settled[key] :]
            assert len(fresh) <= 1
            if fresh:
                came += fresh
                settled[key] += 1
                host.submit(("settle", key, settled[key] - 1, settled[key] - 1))
    assert sorted(came) == sorted(numbered(1, 20))
    for place in range(len(groups)):
        mine = [body for body in came if int(body.rstrip(b".")) % len(groups) == place]
        assert mine == sorted(mine, key=lambda body: int(body.rstrip(b".")))
    assert (host.unacked_count, resident_bytes(host), node.services.memory.used) == (0, 0, 0)


def test_what_is_in_memory_waits_for_nothing() -> None:
    node = ColdNode()
    host = node.host(Settings(), journalled=True)
    publish(host, numbered(1, 30))
    assert attach(host).contents == numbered(1, 30)
    assert node.asked == 0


def test_what_the_page_cache_has_waits_for_nothing() -> None:
    node = ColdNode()
    host = paged_out(node, 30)
    node.cold = False
    assert attach(host).contents == numbered(1, 30)


def test_the_disk_reads_on_while_deliveries_are_made() -> None:
    node = ColdNode()
    host = paged_out(node, 40)
    receiver = attach(host, prefetch=2)
    node.step()
    assert receiver.contents == numbered(1, 2)
    # The queue asks for the bodies behind these before any consumer needs them.
    assert node.asked == 1
    assert host.resident_bytes < 10 * SIZE


def test_no_more_is_in_memory_than_what_comes_next() -> None:
    node = ColdNode()
    host = paged_out(node, 200)
    receiver = attach(host, prefetch=1)
    highest = 0
    for number in range(200):
        while len(receiver.received) <= number:
            assert node.asked
            assert node.asked <= 2
            node.step()
            node.wakes.run(1 << 40)
        highest = max(highest, resident_bytes(host))
        host.submit(("settle", "c", number, number))
    assert receiver.contents == numbered(1, 200)
    assert 0 < highest < 10 * SIZE
    assert node.services.memory.used == host.resident_bytes == 0


def test_a_queue_is_purged_meanwhile() -> None:
    node = ColdNode()
    host = paged_out(node, 30)
    receiver = attach(host)
    purged: list[int | Refused] = []
    host.purge(purged.append)
    assert purged == [30]
    publish(host, numbered(31, 33))
    assert receiver.contents == numbered(31, 33)
    node.drain()
    assert receiver.contents == numbered(31, 33)
    assert host.ready_count == 0


@pytest.mark.parametrize("end", ["deleted", "failed"])
def test_a_queue_ends_meanwhile(end: str) -> None:
    node = ColdNode()
    host = paged_out(node, 30)
    receiver = attach(host)
    got: list[object] = []
    host.get(Consumer("g", sink=Receiver()), got.append)
    assert got == []
    if end == "deleted":
        host.close()
    else:
        host.stop(Refused("it has failed"))
    assert len(got) == 1
    assert isinstance(got[0], Refused)
    node.drain()
    assert receiver.contents == []
    assert node.services.memory.used == 0
    assert len(got) == 1


def test_a_get_waits_and_its_message_is_the_next_one() -> None:
    node = ColdNode()
    host = paged_out(node, 6)
    got: list[object] = []
    host.get(Consumer("g", sink=Receiver()), got.append)
    assert got == []
    node.drain()
    assert [each.run.contents for each in got if each is not None] == [numbered(1, 1)]  # type: ignore[attr-defined]
    assert (host.ready_count, host.unacked_count) == (5, 1)


def test_a_get_whose_channel_closes_meanwhile_takes_nothing() -> None:
    node = ColdNode()
    host = paged_out(node, 6)
    got: list[object] = []
    host.get(Consumer("g", sink=Receiver()), got.append)
    host.submit(("detach", "g", True))
    node.drain()
    assert got == [None]
    assert (host.ready_count, host.unacked_count) == (6, 0)


def test_a_get_whose_queue_is_purged_meanwhile_finds_nothing() -> None:
    node = ColdNode()
    host = paged_out(node, 6)
    got: list[object] = []
    host.get(Consumer("g", sink=Receiver()), got.append)
    host.purge(lambda count: None)
    node.drain()
    assert got == [None]


def test_an_expired_message_leaves_at_once_and_its_letter_waits_for_the_body() -> None:
    node = ColdNode()
    settings = Settings(dead_letter=True, message_ttl_ms=1000)
    host = paged_out(node, 10, settings=settings)
    node.clock.now_ms += 5000
    host.submit(("tick",))
    assert node.letters.taken == []
    assert host.ready_count == 0
    got: list[object] = []
    host.get(Consumer("g", sink=Receiver()), got.append)
    node.drain()
    assert [content for content, _ in node.letters.taken] == numbered(1, 10)
    assert got == [None]
    assert (host.ready_count, node.services.memory.used) == (0, 0)


def test_what_comes_back_stands_before_what_waits() -> None:
    node = ColdNode()
    host = paged_out(node, 20)
    receiver = attach(host, prefetch=3)
    node.step()
    assert receiver.contents == numbered(1, 3)
    host._page_out_handed_out(1 << 30)
    host.submit(("detach", "c", True))
    other = attach(host, "d")
    assert other.contents == []
    node.drain()
    assert other.contents == numbered(1, 20)
    assert [redelivered for _, _, redelivered in other.received] == [True] * 3 + [False] * 17


@pytest.mark.parametrize("seed", range(40))
def test_order_whatever_happens_in_between(seed: int) -> None:
    random = Random(seed)
    node = ColdNode(12 * SIZE)
    for store in (node.environment, node.environment.spill):
        store.reader.waits = lambda: random.random() < 0.7
    journalled = random.random() < 0.6
    host = node.host(Settings(), journalled=journalled)
    receiver, sent, settled = Receiver(), 0, 0
    gone = attached = False
    for _ in range(400):
        match random.randrange(7):
            case 0 | 1:
                count = random.randint(1, 5)
                attributes = PERSISTENT if random.random() < 0.7 else TRANSIENT
                publish(host, numbered(sent + 1, sent + count), attributes=attributes)
                sent += count
            case 2:
                node.commit()
            case 3 | 4:
                node.step()
            case 5:
                node.wakes.run(1 << 40)
            case _ if not attached:
                attached = True
                host.submit(("attach", Consumer("c", prefetch=random.choice((0, 4)), sink=receiver)))
            case _:
                upto = len(receiver.received)
                if upto > settled:
                    host.submit(("settle", "c", settled, upto - 1))
                    settled = upto
        assert receiver.contents == numbered(1, len(receiver.received))
        assert resident_bytes(host) == host.resident_bytes == node.services.memory.used
        assert not gone
    for _ in range(2000):
        node.commit()
        node.step()
        node.wakes.run(1 << 40)
        upto = len(receiver.received)
        if attached and upto > settled:
            host.submit(("settle", "c", settled, upto - 1))
            settled = upto
    assert receiver.contents == (numbered(1, sent) if attached else [])


@pytest.mark.parametrize("journalled", [True, False])
def test_dead_letters_wait_for_the_disk_and_publishers_do_not(journalled: bool) -> None:
    """Messages that a consumer holds have left memory, and the consumer rejects them."""
    node = ColdNode()
    host = paged_out(node, 6, journalled=journalled, settings=Settings(dead_letter=True))
    attach(host)
    node.drain()
    node.commit()
    host.page_out(1 << 30)
    node.commit()
    node.environment.reader.waiting.clear()
    assert all(run.contents is None for run in host.machine.consumers.by_key["c"].checkout.runs)
    publisher = Publisher()
    host.submit(("discard", "c", 0, 3))
    assert node.letters.taken == []
    assert node.asked == 1
    publish(host, numbered(7, 7), publisher, attributes=PERSISTENT if journalled else TRANSIENT)
    node.commit()
    assert publisher.confirms == {1}
    # A message that is rejected later, and is in memory, does not overtake them.
    host.submit(("discard", "c", 6, 6))
    assert node.letters.taken == []
    for _ in range(10):
        node.step()
    assert [content for content, _ in node.letters.taken] == [*numbered(1, 4), *numbered(7, 7)]
    host.submit(("settle", "c", 4, 5))
    node.commit()
    assert (host.unacked_count, resident_bytes(host), node.services.memory.used) == (0, 0, 0)
    if journalled:
        assert node.crash({}).ready_count == 0


def test_messages_that_wait_to_be_dead_lettered_survive_a_crash() -> None:
    node = ColdNode()
    host = paged_out(node, 4, settings=Settings(dead_letter=True))
    attach(host)
    node.drain()
    node.commit()
    host.page_out(1 << 30)
    host.submit(("discard", "c", 0, 1))
    node.commit()
    assert node.letters.taken == []
    assert node.crash({}).ready_count == 4


def test_what_a_full_queue_drops_waits_for_the_disk() -> None:
    node = ColdNode()
    host = paged_out(node, 8, settings=Settings(dead_letter=True, max_length=8))
    publish(host, numbered(9, 10))
    assert node.letters.taken == []
    node.drain()
    assert [content for content, _ in node.letters.taken] == numbered(1, 2)


@pytest.mark.parametrize("journalled", [True, False])
def test_what_waits_is_dead_lettered_though_its_queue_goes(journalled: bool) -> None:
    """The disk keeps the messages until then, and nothing waits for the disk."""
    node = ColdNode()
    host = paged_out(node, 8, journalled=journalled, settings=Settings(dead_letter=True, max_length=8))
    publish(host, numbered(9, 10))
    host.close()
    node.commit()
    assert node.letters.taken == []
    assert node.services.memory.used == 0
    node.drain()
    assert [content for content, _ in node.letters.taken] == numbered(1, 2)
    assert node.services.memory.used == 0
    node.commit()
    assert node.environment.queues == {} and node.environment.spill.queues == {}


def test_held_dead_letters_wait_for_the_disk() -> None:
    node = ColdNode()
    settings = Settings(dead_letter=True, dead_letter_at_least_once=True)
    host = paged_out(node, 4, settings=settings)
    attach(host)
    node.drain()
    node.commit()
    host.page_out(1 << 30)
    host.submit(("discard", "c", 0, 1))
    node.wakes.run(1 << 40)
    assert node.letters.taken == []
    node.step()
    node.drain()
    assert [content for content, _ in node.letters.taken] == numbered(1, 2)
    assert not host.machine.dead_lettering
    host.submit(("settle", "c", 2, 3))
    assert (resident_bytes(host), node.services.memory.used) == (0, 0)


@pytest.mark.parametrize("journalled", [True, False])
def test_who_looks_at_messages_waits_for_the_disk_and_changes_nothing(journalled: bool) -> None:
    node = ColdNode()
    host = paged_out(node, 12, journalled=journalled)
    before = [(run.seqs, run.contents, run.sizes) for run in host.machine.ready.runs()]
    seen: list[Any] = []
    host.peek(Look(Place(0, 3), 4, 1 << 20), seen.append)
    assert node.asked and not seen
    node.drain()
    (found,) = seen
    assert [body for each in found for body in each.run.contents] == numbered(4, 7)
    assert [Place(each.level, seq) for each in found for seq in each.run.seqs] == [
        Place(0, seq) for seq in range(4, 8)
    ]
    assert [(run.seqs, run.contents, run.sizes) for run in host.machine.ready.runs()] == before
    assert host.resident_bytes == resident_bytes(host)
    # Messages that are gone when the disk has read them are left out, and none is taken for lost.
    host.peek(Look(Place(0, 5), 100, 1 << 20), seen.append)
    host.submit(("purge", 1))
    node.drain()
    assert seen[1] == [] and not host.pending


def test_who_looks_is_answered_when_the_queue_goes() -> None:
    node = ColdNode()
    host = paged_out(node, 5)
    seen: list[Any] = []
    host.peek(Look(HEAD, 10, 1 << 20), seen.append)
    host.close()
    node.drain()
    host.peek(Look(HEAD, 10, 1 << 20), seen.append)
    assert [type(each) for each in seen] == [Refused, Refused]
