"""How a group handles members, acks and returns, by example and by chance."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from quorum_queue.consumer_groups.group import Group, Member
from quorum_queue.consumer_groups.partition import ENDLESS, Partition, Span, Spans

DELIVERY_LIMIT = 3


def test_returned_messages_that_retention_deletes_are_not_unread() -> None:
    group = group_of("a")
    hand(group, "a", range(10))
    group.leave(("a", 1, "t"), gone=True)
    partition = group.partitions[0]
    assert [partition.unread(first, 12) for first in (0, 4, 10, 11, 12, 50)] == [12, 8, 2, 1, 0, 0]


def member(name: str, prefetch: int = 0, *, channel: int = 1, no_ack: bool = False) -> Member:
    return Member((name, channel, "t"), prefetch=prefetch, no_ack=no_ack)


def group_of(*names: str, partitions: int = 1, limit: int | None = None) -> Group:
    group = Group(limit)
    for number in range(partitions):
        partition = Partition(number, f"s-{number}", number)
        group.add(partition)
        group.begin(partition, 0)
    for name in names:
        group.join(member(name))
    group.rebalance()
    return group


def hand(group: Group, name: str, offsets: range, number: int = 0) -> int:
    """Hand out the next messages, which must be these."""
    partition = group.partitions[number]
    taker = group.members[name, 1, "t"]
    assert partition.active() is taker
    span = partition.upcoming()
    assert span.low == offsets.start
    return group.hand(partition, taker, offsets, offsets.stop, span.attempts, 0)


def key(name: str) -> tuple[str, int, str]:
    return name, 1, "t"


def test_the_committed_offset_is_what_was_acked_without_a_gap() -> None:
    group = group_of("a")
    partition = group.partitions[0]
    first = hand(group, "a", range(10))
    group.settle(key("a"), first + 2, first + 4)
    assert partition.committed == 0
    group.settle(key("a"), first, first)
    assert partition.committed == 1
    group.settle(key("a"), first + 1, first + 1)
    assert partition.committed == 5
    assert partition.pending() == [Span(5, 10, 0)]


def test_what_was_acked_behind_a_gap_does_not_come_again() -> None:
    group = group_of("a")
    partition = group.partitions[0]
    first = hand(group, "a", range(10))
    group.settle(key("a"), first + 3, first + 6)
    group.leave(key("a"), gone=True)
    assert partition.returned.all() == [Span(0, 3, 1), Span(7, 10, 1)]
    assert partition.upcoming() == Span(0, 3, 1)


def test_what_comes_back_is_next() -> None:
    group = group_of("a")
    first = hand(group, "a", range(10))
    group.give_back(key("a"), first + 7, first + 7)
    group.give_back(key("a"), first + 4, first + 4)
    hand(group, "a", range(4, 5))
    hand(group, "a", range(7, 8))
    hand(group, "a", range(10, 12))


def test_a_new_owner_waits_until_the_old_one_has_settled() -> None:
    group = group_of("a", partitions=2)
    first = hand(group, "a", range(5), 0)
    hand(group, "a", range(5), 1)
    group.join(member("b"))
    assert group.rebalance() and group.generation == 2
    moved = next(each for each in group.partitions.values() if each.owner is group.members[key("b")])
    assert moved.active() is None
    group.settle(key("a"), first, first + 9)
    assert moved.active() is group.members[key("b")] and moved in group.freed


def test_the_old_owner_keeps_it_if_the_new_one_goes_first() -> None:
    group = group_of("a", partitions=2)
    hand(group, "a", range(5), 0)
    hand(group, "a", range(5), 1)
    group.join(member("b"))
    group.rebalance()
    group.leave(key("b"), gone=True)
    group.rebalance()
    assert all(each.active() is group.members[key("a")] for each in group.partitions.values())


def test_a_cancelled_member_may_settle_what_it_holds() -> None:
    group = group_of("a", "b", partitions=1)
    first = hand(group, "a", range(5))
    group.leave(key("a"), gone=False)
    group.rebalance()
    partition = group.partitions[0]
    assert partition.owner is group.members[key("b")] and partition.active() is None
    group.settle(key("a"), first, first + 3)
    assert partition.active() is None and partition.committed == 4
    group.give_back(key("a"), first + 4, first + 4)
    assert not group.leaving and hand(group, "b", range(4, 5)) == 0


def test_a_message_dies_when_it_came_back_too_often() -> None:
    group = group_of("a", limit=1)
    partition = group.partitions[0]
    for _ in range(2):
        first = hand(group, "a", range(1))
        group.give_back(key("a"), first, first)
    ((dead, span, reason),) = group.dead
    assert (dead, span, reason) == (partition, Span(0, 1, 2), "delivery_limit")
    assert partition.committed == 0 and partition.upcoming().low == 1
    group.buried(partition, 0, 1)
    assert partition.committed == 1


def test_one_message_for_all_that_has_gone_behind_it() -> None:
    group = group_of("a")
    partition = group.partitions[0]
    taker = group.members[key("a")]
    first = group.hand(partition, taker, [0, 10, 15], 20, 0, 0)
    group.settle(key("a"), first, first)
    assert partition.committed == 10
    group.settle(key("a"), first + 2, first + 2)
    group.settle(key("a"), first + 1, first + 1)
    assert partition.committed == 20 and not partition.pending()


def test_what_is_gone_is_passed() -> None:
    group = group_of("a")
    partition = group.partitions[0]
    first = hand(group, "a", range(10))
    group.give_back(key("a"), first, first + 9)
    assert partition.passed(0, 4)
    assert partition.upcoming() == Span(4, 10, 1)
    assert partition.passed(4, 30)
    assert partition.committed == 30


def test_a_move_forgets_what_members_hold() -> None:
    group = group_of("a", partitions=2)
    partition = group.partitions[0]
    first = hand(group, "a", range(5), 0)
    second = hand(group, "a", range(5), 1)
    group.move(partition, 2)
    assert group.members[key("a")].count == 5
    group.settle(key("a"), first, second + 4)
    assert partition.committed == 2 and group.partitions[1].committed == 5


def test_spans_are_cut_and_joined() -> None:
    spans = Spans()
    spans.add(Span(0, 10, 0))
    assert spans.take(3, 5) == [Span(3, 5, 0)]
    assert spans.take(4, 6) == [Span(5, 6, 0)]
    spans.add(Span(3, 6, 1))
    assert spans.all() == [Span(0, 3, 0), Span(3, 6, 1), Span(6, 10, 0)]
    assert spans.take(2, 7) == [Span(2, 3, 0), Span(3, 6, 1), Span(6, 7, 0)]
    spans.add(Span(2, 7, 0))
    assert spans.all() == [Span(0, 10, 0)] and spans.count == 10


class World:
    """A group over streams of numbers, members that act at random, and checks that always hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limit = self.random.choice([None, DELIVERY_LIMIT])
        self.group = Group(self.limit)
        self.stops = [0] * self.random.randint(1, 5)
        for number in range(len(self.stops)):
            self._add(number, 0)
        self.names: Iterator[int] = iter(range(1_000_000))
        #: Acked messages, by partition and offset.
        self.acked: set[tuple[int, int]] = set()
        self.seen: set[tuple[int, int]] = set()
        self.dead: set[tuple[int, int]] = set()
        #: Deliveries that are not settled, by member: id, partition, offset.
        self.held: dict[Member, list[tuple[int, int, int]]] = {}
        self.committed: dict[int, int] = {}
        self.actives: dict[tuple[int, int], Member] = {}

    def _add(self, number: int, offset: int, pending: list[Span] | None = None) -> None:
        partition = Partition(number, f"s-{number}", number)
        self.group.add(partition)
        self.group.begin(partition, offset, pending or ())

    def step(self) -> None:
        weights = {
            self.publish: 3,
            self.join: 1,
            self.leave: 0.6,
            self.cancel: 0.6,
            self.deliver: 8,
            self.settle: 8,
            self.crash: 0.1,
            self.grow: 0.1,
        }
        act = self.random.choices(list(weights), list(weights.values()))[0]
        act()
        self.group.rebalance()
        self._bury()
        self.check()

    def publish(self) -> None:
        self.stops[self.random.randrange(len(self.stops))] += self.random.randint(1, 20)

    def grow(self) -> None:
        self._add(len(self.stops), 0)
        self.stops.append(0)

    def join(self) -> None:
        if len(self.group.members) < 6:
            new = member(f"m{next(self.names)}", self.random.choice([1, 5, 30]))
            self.group.join(new)
            self.held[new] = []

    def leave(self) -> None:
        everybody = [*self.group.members.values(), *self.group.leaving.values()]
        if everybody:
            gone = self.random.choice(everybody)
            self.group.leave(gone.key, gone=True)
            self.held.pop(gone, None)

    def cancel(self) -> None:
        if self.group.members:
            self.group.leave(self.random.choice(list(self.group.members)), gone=False)

    def deliver(self) -> None:
        partition = self.random.choice(list(self.group.partitions.values()))
        taker = partition.active()
        if taker is None or taker.room() <= 0:
            return
        span = partition.upcoming()
        number = partition.number
        count = min(self.stops[number], span.stop) - span.low
        count = min(count, taker.room(), self.random.randint(1, 10))
        if count <= 0:
            return
        offsets = range(span.low, span.low + count)
        again = span.stop != ENDLESS
        first = self.group.hand(partition, taker, offsets, offsets.stop, span.attempts, 0)
        self.actives.setdefault((number, partition.generation), taker)
        assert self.actives[number, partition.generation] is taker, "two members in one generation"
        for place, offset in enumerate(offsets):
            message = number, offset
            assert message not in self.acked, "acked and came again"
            assert message not in self.dead
            assert again is (message in self.seen), "the flag is wrong"
            held = [each[2] for one in self.held.values() for each in one if each[1] == number]
            assert offset not in held, "at two members"
            waiting = [each for each in range(offset) if not self._done_or_held(number, each, held)]
            assert not waiting, "something was overtaken"
            self.seen.add(message)
            self.held[taker].append((first + place, number, offset))

    def _done_or_held(self, number: int, offset: int, held: list[int]) -> bool:
        return (number, offset) in self.acked or (number, offset) in self.dead or offset in held

    def settle(self) -> None:
        holders = [each for each, held in self.held.items() if held]
        if not holders:
            return
        holder = self.random.choice(holders)
        held = self.held[holder]
        low = self.random.randrange(len(held))
        high = min(len(held), low + self.random.randint(1, 8))
        part, held[low:high] = held[low:high], []
        kind = self.random.choices(["settle", "return", "discard"], [6, 2, 1])[0]
        # One command takes only neighbouring ids.
        for delivery, number, offset in part:
            if kind == "settle":
                self.acked.add((number, offset))
                self.group.settle(holder.key, delivery, delivery)
            elif kind == "return":
                self.group.give_back(holder.key, delivery, delivery)
            else:
                self.group.discard(holder.key, delivery, delivery)

    def _bury(self) -> None:
        dead, self.group.dead = self.group.dead, []
        for partition, span, _ in dead:
            assert not self.dead & {(partition.number, each) for each in range(span.low, span.stop)}
            self.dead.update((partition.number, each) for each in range(span.low, span.stop))
            self.group.buried(partition, span.low, span.stop)

    def crash(self) -> None:
        """All members are gone, and the group is made from its stored state."""
        stored = [(each.number, each.cursor, each.pending()) for each in self.group.partitions.values()]
        self.group = Group(self.limit)
        self.held.clear()
        self.actives.clear()
        for number, cursor, pending in stored:
            self._add(number, cursor, pending)

    def check(self) -> None:
        for partition in self.group.partitions.values():
            number, committed = partition.number, partition.committed
            assert committed >= self.committed.get(number, 0), "a commit went back"
            self.committed[number] = committed
            done = 0
            while (number, done) in self.acked or (number, done) in self.dead:
                done += 1
            assert committed == done
            stop = self.stops[number]
            held = {each for span in partition.held.all() for each in range(span.low, span.stop)}
            # Retention may have deleted the messages before `first`.
            for first in (0, self.random.randint(0, stop)):
                assert partition.unread(first, stop) == sum(
                    each not in held and (number, each) not in self.acked and (number, each) not in self.dead
                    for each in range(first, stop)
                )
        owned = [len(each.owned) for each in self.group.members.values()]
        assert not owned or max(owned) - min(owned) <= 1
        for each in [*self.group.members.values(), *self.group.leaving.values()]:
            assert each.count == len(self.held[each])

    def finish(self) -> None:
        """In the end, every message was delivered."""
        last = member("last")
        for each in [*self.group.members, *self.group.leaving]:
            self.group.leave(each, gone=True)
        self._bury()
        self.group.join(last)
        self.group.rebalance()
        for partition in self.group.partitions.values():
            while partition.upcoming().low < self.stops[partition.number]:
                span = partition.upcoming()
                offsets = range(span.low, min(span.stop, self.stops[partition.number]))
                first = self.group.hand(partition, last, offsets, offsets.stop, span.attempts, 0)
                self.seen.update((partition.number, each) for each in offsets)
                self.group.settle(last.key, first, first + len(offsets) - 1)
            assert partition.committed == self.stops[partition.number]
        everything = {(number, each) for number, stop in enumerate(self.stops) for each in range(stop)}
        assert self.seen == everything


@pytest.mark.parametrize("seed", range(40))
def test_whatever_members_do(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
    world.finish()


@pytest.mark.parametrize("seed", range(200))
def test_many_spans_are_added_and_removed_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    together, one_by_one = Spans(), Spans()
    for _ in range(6):
        edges = sorted(chance.sample(range(3_000), 2 * chance.choice((1, 5, 40, 400))))
        ranges = list(zip(edges[::2], edges[1::2], strict=True))
        # They are cut at what is there, and so some touch it.
        free = Spans()
        free.add(Span(0, 4_000, 0))
        for span in one_by_one.all():
            free.take(span.low, span.stop)
        added = [
            Span(span.low, span.stop, chance.choice((1, 1, 2)))
            for low, stop in ranges
            for span in free.take(low, stop)
        ]
        chance.shuffle(added)
        for span in added:
            one_by_one.add(span)
        together.add_all(list(added))
        assert (together.all(), together.count) == (one_by_one.all(), one_by_one.count)
        assert _as_bytes(together) == _as_bytes(one_by_one)
        edges = sorted(chance.sample(range(4_000), 2 * chance.choice((1, 5, 40, 400))))
        gone = list(zip(edges[::2], edges[1::2], strict=True))
        chance.shuffle(gone)
        for low, stop in gone:
            one_by_one.take(low, stop)
        together.remove_all(list(gone))
        assert (together.all(), together.count) == (one_by_one.all(), one_by_one.count)
        probe = chance.randrange(4_000)
        assert together.count_from(probe) == one_by_one.count_from(probe)
        assert _as_bytes(together) == _as_bytes(one_by_one)


def _as_bytes(spans: Spans) -> bytes:
    """Return what is encoded in blocks, some of them earlier, after checking it."""
    found = b"".join(spans.encoded(_encoded))
    assert found == _encoded(spans.all())
    return found


def _encoded(spans: list[Span]) -> bytes:
    return "".join([f"{low}-{stop}*{attempts} " for low, stop, attempts in spans]).encode()


def test_only_spans_near_a_change_are_encoded_again() -> None:
    """A group stores its positions with each read of acks; 20 partitions with 5,000 gaps took 3 to 6 ms."""
    spans, encoded = Spans(), list[int]()

    def encode(part: list[Span]) -> bytes:
        encoded.append(len(part))
        return _encoded(part)

    spans.extend([Span(low, low + 1, 0) for low in range(0, 10_000, 2)])
    first = b"".join(spans.encoded(encode))
    assert sum(encoded) == 5_000
    encoded.clear()
    spans.remove_all([(low, low + 1) for low in range(4_000, 4_100, 2)])
    spans.add(Span(9_999, 10_001, 0))
    second = b"".join(spans.encoded(encode))
    assert second != first and second == _encoded(spans.all())
    assert 0 < sum(encoded) <= 3 * 256
    # However many offsets one span has, the blocks without spans cost nothing.
    spans.take(0, ENDLESS)
    spans.add(Span(0, ENDLESS, 0))
    assert b"".join(spans.encoded(encode)) == _encoded(spans.all())


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("verb", ["settle", "give_back", "discard"])
def test_many_ranges_are_as_one_after_the_other(verb: str, seed: int) -> None:
    chance = random.Random(seed)
    together, one_by_one = group_of("a", partitions=3, limit=0), group_of("a", partitions=3, limit=0)
    at, edges = [0, 0, 0], sorted(chance.sample(range(130), 2 * chance.choice((1, 3, 30))))
    for _ in range(40):
        number, count = chance.randrange(3), chance.randrange(1, 5)
        for group in (together, one_by_one):
            hand(group, "a", range(at[number], at[number] + count), number)
        at[number] += count
    ranges = [(low, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True)]
    if seed % 4 == 0:
        # Not in order.
        chance.shuffle(ranges)
    getattr(together, f"{verb}_many")(("a", 1, "t"), ranges)
    for low, high in ranges:
        getattr(one_by_one, verb)(("a", 1, "t"), low, high)
    assert _told(together) == _told(one_by_one)


def _told(group: Group) -> list[object]:
    member = group.members[("a", 1, "t")]
    return [
        [(first, each.partition.number, list(each.offsets), each.stop) for first, each in member.portions()],
        member.count,
        [(each.held.all(), each.returned.all(), each.dying.all()) for each in group.partitions.values()],
        [(dead.partition.number, dead.span, dead.reason) for dead in group.dead],
        [[each.number for each in noted] for noted in (group.changed, group.freed)],
    ]


@pytest.mark.pure
@pytest.mark.parametrize("verb", ["settle", "return", "discard"])
def test_the_lists_of_a_partition_are_moved_once_for_many_messages(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each: that takes seconds for 200,000 runs of unacked messages."""
    group, partition = Group(), Partition(7, "s", 0)
    partition.cursor = 0
    group.add(partition)
    member = Member((1, 1, "a", 1))
    group.join(member)
    group.rebalance()
    for offset in range(0, 2_000, 2):
        group.hand(partition, member, range(offset, offset + 1), offset + 1, 0, 5)
    calls: list[str] = []
    for name in ("add", "take"):
        monkeypatch.setattr(Spans, name, lambda self, *arguments, name=name: calls.append(name))
    group.settle_all(member, verb)
    assert not calls and not partition.held
    expected = {"settle": 0, "return": 1_000, "discard": 1_000}
    assert len(partition.returned) + len(partition.dying) == expected[verb]
    assert len(group.dead) == (1_000 if verb == "discard" else 0)


@pytest.mark.parametrize("seed", range(100))
def test_many_acks_are_settled_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    groups = [group_of("a", partitions=3) for _ in range(2)]
    offsets = [0, 0, 0]
    for _ in range(chance.choice((5, 100, 400))):
        number, count = chance.randrange(3), chance.choice((1, 1, 2, 9))
        for group in groups:
            hand(group, "a", range(offsets[number], offsets[number] + count), number)
        offsets[number] += count
    key, total = ("a", 1, "t"), sum(offsets)
    for _ in range(4):
        edges = sorted(chance.sample(range(total), 2 * min(chance.choice((1, 5, 80)), total // 2)))
        ranges = list(zip(edges[::2], edges[1::2], strict=True))
        if chance.random() < 0.2:
            # A client may ack in any order, and twice.
            ranges += ranges[:3]
            chance.shuffle(ranges)
        for low, high in ranges:
            groups[0].settle(key, low, high)
        groups[1].settle_many(key, ranges)
        one, many = [group.members[key] for group in groups]
        told = [
            [(first, each.low, each.stop, list(each.offsets)) for first, each in member.portions()]
            for member in (one, many)
        ]
        assert told[0] == told[1] and one.count == many.count
        for number in range(3):
            before, after = groups[0].partitions[number], groups[1].partitions[number]
            assert before.pending() == after.pending() and before.committed == after.committed
            assert list(groups[0].changed) and len(groups[0].changed) == len(groups[1].changed)
