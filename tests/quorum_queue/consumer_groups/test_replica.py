"""Replicas of a consumer group: nodes come and go, leaders propose what is out of date, and all replicas
agree.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from quorum_queue.batch_order import BatchOrder
from quorum_queue.consumer_groups import group as group_of_members
from quorum_queue.consumer_groups.entries import (
    CodecError,
    Command,
    decode_entry,
    encode_batch,
    encode_entry,
)
from quorum_queue.consumer_groups.group import PORTIONS_MAX, Group
from quorum_queue.consumer_groups.partition import UNKNOWN, Partition, Span
from quorum_queue.consumer_groups.replica import AHEAD_MAX, COMMANDS_MAX, Applied, Death, GroupReplica, Handed
from quorum_queue.consumer_groups.snapshot import View
from quorum_queue.machine.effects import GONE
from quorum_queue.machine.seal import EMPTY, IN_USE, NOT_EMPTY, SEALED, UNUSED, Sealed
from tests.quorum_queue.consumer_groups.states import encode_state, state_of
from tests.work import steps

NODES = ("n1", "n2", "n3")
STREAMS = {7: "s-0", 8: "s-1", 9: "s-2"}
END = 60
ALL_IDS = 1 << 62


class Client:
    """A consumer: the messages that it was given, and how many of them were sent."""

    def __init__(self) -> None:
        self.due: list[tuple[int, int, int, int]] = []
        self.held: dict[int, tuple[int, int]] = {}
        self.next_id = 0
        #: The id of the next delivery for this consumer.
        self.given = 0
        self.leaving = False


class GroupNode:
    """A node of the cluster, with its clients and its replica."""

    def __init__(self, name: str, incarnation: int, replica: GroupReplica) -> None:
        self.name = name
        self.incarnation = incarnation
        self.replica = replica
        self.number = 1
        self.pending: list[Command] = []
        self.clients: dict[tuple[Any, ...], Client] = {}

    def batch(self) -> bytes:
        pending, self.pending = self.pending, []
        number = self.number
        self.number += 1
        return encode_batch(self.name, self.incarnation, number, pending)


class World:
    """A log, nodes that apply it, and checks that hold whatever happens."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log: list[bytes] = []
        self.now_ms = 1_000
        self.nodes: dict[str, GroupNode] = {}
        self.names = 0
        self.incarnation = 0
        #: By stream and offset: messages that clients saw, and those that they may have seen on nodes that
        #: are gone; messages acked and applied; and messages handed out.
        self.seen: set[tuple[int, int]] = set()
        self.doubtful: set[tuple[int, int]] = set()
        self.acked: set[tuple[int, int]] = set()
        self.handed: set[tuple[int, int]] = set()
        self.committed = dict.fromkeys(STREAMS, 0)
        #: Snapshots in the making, with their bytes as earlier versions make them; and those that were made.
        self.views: list[tuple[View, bytes]] = []
        self.made = 0
        for name in NODES:
            self.start(name)

    def fresh(self) -> GroupReplica:
        replica = GroupReplica(None, dead_letters=False)
        for index, entry in enumerate(self.log, 1):
            replica.apply(index, *decode_entry(entry), ("", 0))
        return replica

    def start(self, name: str) -> None:
        self.incarnation += 1
        before = self.nodes.get(name)
        replica = self.fresh()
        if before is not None and self.chance.random() < 0.5:
            replica = GroupReplica.restore(replica.snapshot(), None, dead_letters=False)
        self.nodes[name] = GroupNode(name, self.incarnation, replica)

    # -- what happens ----------------------------------------------------------------------------------------

    def step(self) -> None:
        kind = self.chance.choices(
            ("join", "leave", "send", "ack", "return", "plan", "stale", "entry", "again", "kill", "snapshot"),
            (3, 2, 20, 14, 2, 14, 3, 30, 3, 0.5, 2),
        )[0]
        node = self.nodes[self.chance.choice(NODES)]
        getattr(self, f"do_{kind}")(node)

    def do_join(self, node: GroupNode) -> None:
        if len(node.clients) < 3:
            self.names += 1
            key = (1, self.chance.choice((1, 2)), f"c{self.names}", 1)
            node.clients[key] = Client()
            node.pending.append(("attach", key, self.chance.choice((0, 1, 5)), 0))

    def do_leave(self, node: GroupNode) -> None:
        if node.clients:
            key = self.chance.choice(list(node.clients))
            client = node.clients[key]
            gone = client.leaving or self.chance.random() < 0.5
            client.due.clear()
            node.pending += [("sent", key, client.next_id), ("detach", key, gone)]
            client.leaving = True
            if gone:
                del node.clients[key]

    def do_send(self, node: GroupNode) -> None:
        """Clients see the next ones of the messages that they were given."""
        for client in node.clients.values():
            for _ in range(self.chance.randrange(4)):
                if client.due:
                    delivery, stream_id, offset, _ = client.due.pop(0)
                    self.seen.add((stream_id, offset))
                    client.held[delivery] = stream_id, offset
                    client.next_id = delivery + 1

    def do_ack(self, node: GroupNode) -> None:
        for key, client in node.clients.items():
            held = sorted(client.held)
            if held:
                low = self.chance.choice(held)
                high = self.chance.choice([each for each in held if each >= low])
                node.pending.append(("settle", key, low, high))
                for each in held:
                    if low <= each <= high:
                        del client.held[each]

    def do_return(self, node: GroupNode) -> None:
        for key, client in node.clients.items():
            if client.held:
                delivery = self.chance.choice(list(client.held))
                del client.held[delivery]
                node.pending.append(("return", key, delivery, delivery))

    def do_plan(self, node: GroupNode) -> None:
        """A leader makes its proposals."""
        group = node.replica.group
        missing = [
            [stream_id, name] for stream_id, name in STREAMS.items() if stream_id not in group.partitions
        ]
        if missing:
            node.pending.append(("streams", missing, []))
        for partition in group.partitions.values():
            member = partition.active()
            if partition.cursor == UNKNOWN:
                node.pending.append(("begin", partition.stream_id, 0))
            elif member is not None and member.room() > 0 and partition.upcoming().low < END:
                span = partition.upcoming()
                stop = min(span.stop, END, span.low + min(member.room(), 8))
                node.pending.append(("hand", partition.stream_id, member.key, span.low, stop))
        for name, incarnation in node.replica.nodes():
            if incarnation < self.nodes[name].incarnation:
                node.pending.append(("node_down", name, incarnation))

    def do_stale(self, node: GroupNode) -> None:
        """An earlier leader makes a proposal that is out of date."""
        keys = [key for key in node.replica.holders() if key[0] in NODES]
        if keys:
            low = self.chance.randrange(END)
            stop = min(low + 5, END)
            node.pending.append(
                ("hand", self.chance.choice(list(STREAMS)), self.chance.choice(keys), low, stop)
            )

    def do_kill(self, node: GroupNode) -> None:
        group = node.replica.group
        for key in node.replica.holders():
            member = group.find(key)
            for _, portion in member.portions() if member is not None and key[0] == node.name else ():
                stream_id = portion.partition.stream_id
                self.doubtful.update((stream_id, offset) for offset in portion.offsets)
        self.start(node.name)

    def do_snapshot(self, node: GroupNode) -> None:
        node.replica = GroupReplica.restore(node.replica.snapshot(), None, dead_letters=False)

    def go_on_with_views(self, replica: GroupReplica) -> None:
        """Snapshots that were begun have what was there then, though entries are applied meanwhile."""
        for view, expected in [*self.views]:
            for _ in range(self.chance.randrange(4)):
                if not view.go_on():
                    assert view.state() == expected
                    self.views.remove((view, expected))
                    self.made += 1
                    break
        if self.chance.random() < 0.3:
            self.views.append((View(replica), encode_state(state_of(replica))))

    def do_entry(self, node: GroupNode) -> None:
        batches = [each.batch() for each in self.nodes.values() if each.pending]
        if not batches:
            return
        self.chance.shuffle(batches)
        self.now_ms += self.chance.randrange(100)
        self.log.append(encode_entry(self.now_ms, batches))
        self.apply()

    def do_again(self, node: GroupNode) -> None:
        """A node that has not heard that its batches were applied sends them again, to another leader."""
        if self.log:
            self.log.append(self.chance.choice(self.log[-20:]))
            self.apply()

    # -- what must hold --------------------------------------------------------------------------------------

    def apply(self) -> None:
        """All nodes apply the newest entry, and reach the same state."""
        for batch in decode_entry(self.log[-1])[1]:
            for command in batch.commands:
                if command[0] == "hand" and command[2][1] != self.nodes[command[2][0]].incarnation:
                    # The messages go to a node that has ended, and no other node knows that yet.
                    _, stream_id, _, low, stop = command
                    self.doubtful.update((stream_id, offset) for offset in range(low, stop))
        for node in self.nodes.values():
            applied = node.replica.apply(
                len(self.log), *decode_entry(self.log[-1]), (node.name, node.incarnation)
            )
            for key in applied.gone:
                client = node.clients.pop(key[2:], None)
                assert client is None or client.leaving, "a node that runs is not taken for down"
            for each in applied.handed:
                self.takes(node, each)
        replicas = [node.replica for node in self.nodes.values()]
        assert len({each.digest() for each in replicas}) == 1
        self.go_on_with_views(replicas[0])
        self.look(replicas[0].group)

    def takes(self, node: GroupNode, handed: Handed) -> None:
        client = node.clients.get(handed.key[2:])
        for offset in range(handed.low, handed.stop):
            place = handed.stream_id, offset
            assert place not in self.acked, "what was acked does not come again"
            assert handed.attempts > 0 or place not in self.seen, "what was seen comes flagged"
            assert handed.attempts == 0 or place in self.seen | self.doubtful, "what is new is not flagged"
            self.handed.add(place)
            if client is not None:
                delivery = handed.first + offset - handed.low
                assert delivery >= client.given, "no two deliveries have one id"
                client.given = delivery + 1
            if client is not None and not client.leaving:
                client.due.append((delivery, *place, handed.attempts))

    def look(self, group: Group) -> None:
        for stream_id, partition in group.partitions.items():
            if partition.cursor == UNKNOWN:
                continue
            open_ones = {offset for span in partition.pending() for offset in range(span.low, span.stop)}
            acked = {(stream_id, each) for each in range(partition.cursor) if each not in open_ones}
            had = {each for each in self.acked if each[0] == stream_id}
            assert had <= acked, "commits do not go back"
            assert acked <= self.handed
            self.acked |= acked
            assert partition.committed >= self.committed[stream_id]
            self.committed[stream_id] = partition.committed
            holders = [
                member
                for member in (*group.members.values(), *group.leaving.values())
                if any(portion.partition is partition for _, portion in member.portions())
            ]
            assert len({member.channel for member in holders}) <= 1, "one has it at a time"
        counts = [len(member.owned) for member in group.members.values()]
        assert not counts or max(counts) - min(counts) <= 1
        assert not counts or sum(counts) == len(group.partitions)

    def finish(self) -> None:
        """All members that are left ack all messages: in the end everything is acked."""
        for _ in range(2_000):
            for node in self.nodes.values():
                if not any(not client.leaving for client in node.clients.values()):
                    self.do_join(node)
                self.do_send(node)
                self.do_ack(node)
                for key in [key for key, client in node.clients.items() if client.leaving]:
                    node.pending += [("detach", key, True)]
                    del node.clients[key]
            self.do_plan(self.nodes["n1"])
            self.do_entry(self.nodes["n1"])
            group = self.nodes["n1"].replica.group
            if group.partitions and all(each.committed == END for each in group.partitions.values()):
                return
        raise AssertionError("not everything was delivered and acked")


def run(seed: int, steps: int = 250) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.finish()
    assert world.made > 10
    return world


@pytest.mark.parametrize("seed", range(40))
def test_whatever_nodes_and_leaders_do_nothing_is_lost_or_repeated(seed: int) -> None:
    run(seed)


def _take_anything(self: Any) -> Any:
    return self.owner


def _take_again(self: BatchOrder, node: str, incarnation: int, number: int) -> int:
    self.last[node] = incarnation, number
    return number - 1


def _late_hand(replica: Any) -> Any:
    hand = replica._hand

    def whatever_is_next(self: Any, stream_id: int, key: Any, low: int, stop: int) -> None:
        partition = self.group.partitions.get(stream_id)
        if partition is not None and not partition.returned:
            partition.cursor = min(partition.cursor, low)
        hand(self, stream_id, key, low, stop)

    return whatever_is_next


def _never_unseen(group: Any) -> Any:
    give_back = group.give_back

    def as_new(self: Any, key: Any, low: int, high: int, *, seen: bool = True) -> None:
        give_back(self, key, low, high, seen=False)

    return as_new


@pytest.mark.pure
def test_the_checks_find_planted_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    from quorum_queue.consumer_groups import partition as partitions

    planted = [
        (partitions.Partition, "active", _take_anything),
        (Group, "give_back", _never_unseen(Group)),
        (GroupReplica, "_leave", lambda self, key, *, gone: self._detach(key, gone=True)),
        (BatchOrder, "take", _take_again),
        (GroupReplica, "_hand", _late_hand(GroupReplica)),
    ]
    for kind, name, wrong in planted:
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, wrong)
            with pytest.raises(AssertionError):
                for seed in range(40):
                    run(seed)


# -- one by one ----------------------------------------------------------------------------------------------


def applied(
    replica: GroupReplica, *commands: Command, node: str = "n1", number: int = 0, now_ms: int = 1_000
) -> Any:
    number = number or replica.order.number_of(node, 1) + 1
    entry = encode_entry(now_ms, [encode_batch(node, 1, number, commands)])
    return replica.apply(replica.applied + 1, *decode_entry(entry), ("n1", 1))


def key(name: str, channel: int = 1) -> tuple[Any, ...]:
    return 1, channel, name, 1


def whole(name: str, channel: int = 1, node: str = "n1") -> tuple[Any, ...]:
    return (node, 1, *key(name, channel))


def replica_with(*names: str, dead_letters: bool = False, limit: int | None = None) -> GroupReplica:
    replica = GroupReplica(limit, dead_letters=dead_letters)
    applied(replica, ("streams", [[7, "s"]], []), ("begin", 7, 0))
    for name in names:
        applied(replica, ("attach", key(name), 0, 0))
    return replica


def test_a_batch_that_comes_twice_is_taken_once() -> None:
    replica = replica_with("a")
    applied(replica, ("hand", 7, whole("a"), 0, 5))
    again = replica.order.number_of("n1", 1)
    found = applied(replica, ("hand", 7, whole("a"), 5, 9), number=again)
    assert not found.handed and not found.numbers
    assert replica.group.partitions[7].cursor == 5


def test_what_is_handed_out_is_what_comes_next_and_as_much_as_there_is_room_for() -> None:
    replica = replica_with("a")
    for low in (1, 3):
        assert not applied(replica, ("hand", 7, whole("a"), low, 9)).handed
    applied(replica, ("limit", key("a"), 3))
    found = applied(replica, ("hand", 7, whole("a"), 0, 9)).handed
    assert found == [Handed(whole("a"), 7, 0, 0, 3, 0)]
    assert not applied(replica, ("hand", 7, whole("a"), 3, 9)).handed


def test_a_consumer_that_does_not_say_how_far_it_was_sent_gets_no_more() -> None:
    replica = replica_with("a")
    first = applied(replica, ("hand", 7, whole("a"), 0, 10 * AHEAD_MAX)).handed[0]
    assert first.stop == AHEAD_MAX
    assert not applied(replica, ("hand", 7, whole("a"), first.stop, 10 * AHEAD_MAX)).handed
    applied(replica, ("sent", key("a"), AHEAD_MAX // 2))
    more = applied(replica, ("hand", 7, whole("a"), first.stop, 10 * AHEAD_MAX)).handed[0]
    assert more.stop - more.low == AHEAD_MAX // 2


def test_what_a_consumer_that_leaves_was_not_sent_comes_as_new() -> None:
    replica = replica_with("a")
    applied(replica, ("hand", 7, whole("a"), 0, 10))
    applied(replica, ("attach", key("b", 2), 0, 0))
    applied(replica, ("sent", key("a"), 4), ("detach", key("a"), True))
    found = applied(replica, ("hand", 7, whole("b", 2), 0, 10)).handed
    assert [(each.low, each.stop, each.attempts) for each in found] == [(0, 4, 1)]
    found = applied(replica, ("hand", 7, whole("b", 2), 4, 10)).handed
    assert [(each.low, each.stop, each.attempts) for each in found] == [(4, 10, 0)]


def test_what_was_not_sent_comes_as_new_though_later_ids_were_sent() -> None:
    """A node reads each stream separately, and sends first whatever it has first."""
    replica = replica_with("a")
    applied(replica, ("hand", 7, whole("a"), 0, 10))
    applied(replica, ("attach", key("b", 2), 0, 0))
    applied(replica, ("unsent", key("a"), 2, 5), ("sent", key("a"), 8), ("detach", key("a"), True))
    found: list[tuple[int, int, int]] = []
    for low in (0, 2, 6, 8):
        handed = applied(replica, ("hand", 7, whole("b", 2), low, 10)).handed
        found += [(each.low, each.stop, each.attempts) for each in handed]
    assert found == [(0, 2, 1), (2, 6, 0), (6, 8, 1), (8, 10, 0)]


def test_a_single_message_goes_to_who_asked_for_one() -> None:
    replica = replica_with()
    getter = (1, 1, None, False)
    applied(replica, ("get", getter, 0), ("get", getter, 0))
    found = applied(replica, ("hand", 7, ("n1", 1, *getter), 0, 5)).handed
    assert found == [Handed(("n1", 1, *getter), 7, 0, 0, 1, 0)]
    found = applied(replica, ("nothing", ("n1", 1, *getter)))
    assert found.got_nothing == [("n1", 1, *getter)]
    assert not replica.getting
    assert not applied(replica, ("hand", 7, ("n1", 1, *getter), 1, 5)).handed


def test_who_holds_a_message_for_too_long_loses_its_place() -> None:
    replica = replica_with("a", "b")
    owner = replica.group.partitions[7].owner
    assert owner is not None
    applied(replica, ("hand", 7, owner.key, 0, 5), now_ms=2_000)
    assert not applied(replica, ("stuck", 1_999), now_ms=9_000).lost
    assert applied(replica, ("stuck", 2_000), now_ms=9_000).lost == [owner.key]
    after = replica.group.partitions[7].owner
    assert after is not None and after is not owner


def test_a_reset_forgets_what_was_handed_out() -> None:
    replica = replica_with("a")
    applied(replica, ("hand", 7, whole("a"), 0, 10))
    found = applied(replica, ("move", 3, [[7, 4]]))
    assert (found.moved, found.forgotten) == ([3], [7])
    again = applied(replica, ("settle", key("a"), 0, 9), ("hand", 7, whole("a"), 4, 6)).handed
    assert again == [Handed(whole("a"), 7, 10, 4, 6, 0)]


def test_what_has_died_stays_until_it_is_buried_and_survives_a_snapshot() -> None:
    replica = replica_with("a", dead_letters=True)
    applied(replica, ("hand", 7, whole("a"), 0, 10), ("discard", key("a"), 2, 5))
    copy = GroupReplica.restore(replica.snapshot(), None, dead_letters=True)
    assert copy.digest() == replica.digest()
    for each in (replica, copy):
        applied(each, ("buried", 1, 1))
        assert [(dead.span.low, dead.span.stop, dead.reason, dead.first) for dead in each.dead] == [
            (2, 3, "rejected", 0),
            (4, 6, "rejected", 2),
        ]
    assert copy.digest() == replica.digest()
    # A message that comes again after a reset gets a new dead letter; one that was under way does not count
    # for it.
    applied(copy, ("move", 1, [[7, 0]]), ("hand", 7, whole("a"), 0, 4), ("discard", key("a"), 10, 13))
    applied(copy, ("buried", 0, 4))
    assert [(dead.span.low, dead.span.stop, dead.first) for dead in copy.dead] == [(0, 4, 4)]
    assert copy.group.partitions[7].dying.count == 4


def test_neighbours_that_are_refused_one_by_one_are_one_death() -> None:
    replica = replica_with("a", dead_letters=True)
    applied(replica, ("hand", 7, whole("a"), 0, 10))
    applied(replica, *[("discard", key("a"), each, each) for each in (0, 1, 2, 4)])
    applied(replica, ("discard", key("a"), 5, 6))
    assert [(dead.span.low, dead.span.stop, dead.first) for dead in replica.dead] == [(0, 3, 0), (4, 7, 3)]
    applied(replica, ("buried", 1, 4))
    assert [(dead.span.low, dead.span.stop, dead.first) for dead in replica.dead] == [(0, 1, 0), (6, 7, 5)]


def test_without_a_dead_letter_exchange_what_has_died_is_done() -> None:
    replica = replica_with("a")
    applied(replica, ("hand", 7, whole("a"), 0, 4), ("discard", key("a"), 0, 3))
    assert not replica.dead
    assert replica.group.partitions[7].committed == 4


def test_when_its_streams_are_gone_so_are_its_members() -> None:
    replica = replica_with("a")
    found = applied(replica, ("streams", [], [7]))
    assert found.lost == [whole("a")]
    assert applied(replica, ("attach", key("b"), 0, 0)).attached == [
        (whole("b"), "the stream of the group is gone")
    ]


def test_a_group_whose_stream_went_before_it_began_knows_so() -> None:
    replica = GroupReplica(None, dead_letters=False)
    applied(replica, ("streams", [], []))
    assert replica.known
    assert applied(replica, ("attach", key("a"), 0, 0)).attached == [
        (whole("a"), "the stream of the group is gone")
    ]
    applied(replica, ("streams", [[8, "s"]], []))
    assert replica.group.partitions[8].cursor == 0


def test_a_stream_that_comes_later_is_read_from_its_first_message_on() -> None:
    replica = replica_with("a")
    applied(replica, ("streams", [[8, "s-2"]], []))
    assert replica.group.partitions[8].cursor == 0


def test_purge_passes_over_what_is_unread() -> None:
    replica = replica_with("a")
    applied(replica, ("hand", 7, whole("a"), 0, 10), ("settle", key("a"), 0, 1))
    found = applied(replica, ("purge", 5, [[7, 0, 30]]))
    assert found.purged == [(5, 20)]
    assert replica.group.partitions[7].committed == 2


def test_what_is_no_entry_or_state_is_refused() -> None:
    replica = replica_with("a")
    for data in (b"", b"\x02" + bytes(8), encode_entry(1, [b"?"])):
        with pytest.raises(CodecError):
            decode_entry(data)
    for command in (("dance", 1), ("hand", 7), ("streams", 5, 5)):
        with pytest.raises(CodecError):
            applied(replica, command)
    with pytest.raises(CodecError):
        GroupReplica.restore(replica.snapshot()[:-1], None, dead_letters=False)
    with pytest.raises(ValueError, match="comes after"):
        replica.apply(1, 0, [], ("n1", 1))


def test_a_lost_entry_is_passed_over_and_the_next_batch_of_each_node_taken() -> None:
    replica = replica_with("a")
    replica.passed_over(replica.applied + 1)
    number = replica.order.number_of("n1", 1) + 2
    found = applied(replica, ("hand", 7, whole("a"), 0, 2), number=number)
    assert found.handed and found.missed == range(number - 1, number)
    assert GroupReplica.restore(replica.snapshot(), None, dead_letters=False).digest() == replica.digest()


def test_a_sealed_group_takes_no_member() -> None:
    replica = GroupReplica(None, dead_letters=False)

    def run(index: int, *commands: Command) -> Applied:
        batch = encode_batch("n1", 1, index, commands)
        return replica.apply(index, *decode_entry(encode_entry(0, [batch])), ("n1", 1))

    run(1, ("streams", [[7, "s"]], []), ("begin", 7, 0))
    run(2, ("attach", ("c",) * 4, 1, 0))
    assert run(3, ("seal", 1, UNUSED, [])).seals == [(1, Sealed(IN_USE, 0))]
    run(4, ("detach", ("c",) * 4, True))
    assert run(5, ("seal", 2, EMPTY, [(7, 0, 5)])).seals == [(2, Sealed(NOT_EMPTY, 5))]
    before = replica.snapshot()
    applied = run(6, ("seal", 3, UNUSED, []), ("attach", ("d",) * 4, 1, 0))
    assert applied.seals == [(3, Sealed(SEALED, 0))]
    assert applied.sealed
    assert [refused for _, refused in applied.attached] == [GONE]
    assert GroupReplica.restore(replica.snapshot(), None, dead_letters=False).sealed
    assert not GroupReplica.restore(before, None, dead_letters=False).sealed


def test_a_group_with_members_is_not_moved_unless_it_must_be() -> None:
    replica = GroupReplica(None, dead_letters=False)

    def run(index: int, *commands: Command) -> Applied:
        batch = encode_batch("n1", 1, index, commands)
        return replica.apply(index, *decode_entry(encode_entry(0, [batch])), ("n1", 1))

    run(1, ("streams", [[7, "s"]], []), ("begin", 7, 0), ("attach", ("c",) * 4, 1, 0))
    applied = run(2, ("move_unused", 5, [[7, 3]]))
    assert (applied.moved, applied.in_use, replica.group.partitions[7].cursor) == ([], [(5, 1)], 0)
    applied = run(3, ("detach", ("c",) * 4, True), ("move_unused", 6, [[7, 3]]))
    assert (applied.moved, applied.in_use, replica.group.partitions[7].cursor) == ([6], [], 3)


class Counted(list[Death]):
    """Counts how often it is gone through."""

    rounds = 0

    def __iter__(self) -> Iterator[Death]:
        Counted.rounds += 1
        return super().__iter__()


@pytest.mark.pure
def test_a_snapshot_goes_through_the_dead_messages_once() -> None:
    """Not once for each partition: of both there may be thousands."""
    replica = GroupReplica(3, dead_letters=True)
    for number in range(20):
        partition = Partition(number, f"s-{number}", number)
        partition.cursor = 100
        replica.group.add(partition)
    dead = Counted()
    for number in range(60):
        partition = replica.group.partitions[number % 20]
        span = Span(2 * (number // 20), 2 * (number // 20) + 1, 0)
        partition.dying.add(span)
        dead.append(Death(partition, span, "rejected", number))
    replica.dead, replica.deaths = dead, 60
    Counted.rounds = 0
    data = replica.snapshot()
    assert Counted.rounds == 1
    restored = GroupReplica.restore(data, 3, dead_letters=True)
    assert [each[1:] for each in restored.dead] == [each[1:] for each in dead]
    assert [each.partition.name for each in restored.dead] == [each.partition.name for each in dead]
    assert restored.snapshot() == data


# -- entries that take several steps -------------------------------------------------------------------------


@pytest.mark.pure
def test_an_entry_that_is_applied_in_parts_leads_to_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = 0
    for seed in range(100, 120):
        at_once, in_parts = (GroupReplica(None, dead_letters=False) for _ in range(2))
        for index, entry in enumerate(run(seed).log, 1):
            expected = at_once.apply(index, *decode_entry(entry), ("n1", 1))
            with monkeypatch.context() as patch:
                patch.setattr(group_of_members, "PORTIONS_MAX", 1)
                for _ in in_parts.applying(index, *decode_entry(entry), ("n1", 1)):
                    parts += 1
            assert in_parts.digest() == at_once.digest()
            found = in_parts.effects
            assert [getattr(found, name) for name in found.__slots__] == [
                getattr(expected, name) for name in expected.__slots__
            ]
    assert parts > 10


def holding(portions: int) -> GroupReplica:
    """A group with a member that holds every second message."""
    replica = replica_with("a")
    member = replica.group.find(whole("a"))
    assert member is not None
    while member.next_id < 2 * portions:
        low = member.next_id
        applied(replica, ("hand", 7, whole("a"), low, low + AHEAD_MAX), ("sent", key("a"), low + AHEAD_MAX))
    applied(replica, *(("settle", key("a"), low, low) for low in range(0, 2 * portions, 2)))
    return replica


def longest_step(applying: Iterator[None]) -> int:
    """Return the work of the longest step."""
    counts: list[int] = []
    going_on = True

    def step() -> None:
        nonlocal going_on
        going_on = next(applying, True) is None

    while going_on:
        counts.append(steps(step))
    return max(counts)


@pytest.mark.pure
@pytest.mark.parametrize(
    "last",
    [
        ("detach", key("a"), True),
        ("attach", key("a"), 0, 0),
        ("node_down", "n1", 1),
        ("stuck", 1 << 50),
        ("move", 1, [[7, 0]]),
        ("streams", [], [7]),
    ],
)
def test_no_step_takes_everything_from_a_member(last: Command) -> None:
    longest: list[int] = []
    for portions in (4 * PORTIONS_MAX, 12 * PORTIONS_MAX):
        replica = holding(portions)
        batch = encode_batch("n2", 1, 1, [last])
        if last[0] in ("detach", "attach"):
            batch = encode_batch("n1", 1, replica.order.number_of("n1", 1) + 1, [last])
        applying = replica.applying(
            replica.applied + 1, *decode_entry(encode_entry(2_000, [batch])), ("n1", 1)
        )
        longest.append(longest_step(applying))
    assert longest[1] < 1.5 * longest[0]


@pytest.mark.pure
def test_no_step_takes_very_many_commands() -> None:
    longest: list[int] = []
    for count in (4 * COMMANDS_MAX, 12 * COMMANDS_MAX):
        replica = holding(12 * COMMANDS_MAX)
        settles = [("settle", key("a"), low, low) for low in range(1, 2 * count, 2)]
        batch = encode_batch("n1", 1, replica.order.number_of("n1", 1) + 1, settles)
        entry = decode_entry(encode_entry(2_000, [batch]))
        longest.append(longest_step(replica.applying(replica.applied + 1, *entry, ("n1", 1))))
    assert longest[1] < 1.5 * longest[0]
