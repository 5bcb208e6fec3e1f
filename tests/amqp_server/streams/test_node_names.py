"""Offsets by name in a cluster: how the log changes them, and when a node sends notes for its consumers."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from amqp_server.streams.layout.named_offsets import NAME_IN_USE, Progress
from amqp_server.streams.members.entries import (
    DELETES,
    EVICTS,
    NO_OFFSET,
    REFUSES,
    NodeBatch,
    Note,
    decode_entry,
    encode_batch,
    encode_entry,
)
from amqp_server.streams.members.named_offsets import after_deletion, deletion
from amqp_server.streams.members.replica import Kept, StreamReplica, decode_state
from amqp_server.streams.node_named_offsets import NodeNames
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.host import Key


class Log:
    """A replica that gets its entries as notes."""

    def __init__(self) -> None:
        self.replica = StreamReplica()
        self.replica.next_offset = 100
        self.index = 0

    def note(self, *notes: Note) -> None:
        self.index += 1
        data = encode_entry(0, [encode_batch("n", 1, self.index, [], notes=list(notes))])
        assert self.replica.apply(self.index, *decode_entry(data), ("n", 1)).named

    def kept(self) -> dict[str, tuple[int, str]]:
        return {name: (kept.offset, kept.owner) for name, kept in self.replica.names.items()}


def test_only_who_has_a_name_moves_it_and_only_forward() -> None:
    log = Log()
    log.note(Note("r", "a", NO_OFFSET, 9))
    assert log.kept() == {"r": (NO_OFFSET, "a")}
    log.note(Note("r", "a", 5, 9), Note("r", "a", 3, 9), Note("r", "b", 7, 9))
    assert log.kept() == {"r": (5, "a")}
    # Node b takes the name from x, which does not have it any more: the note has no effect.
    log.note(Note("r", "b", NO_OFFSET, 9, "x"))
    assert log.kept() == {"r": (5, "a")}
    log.note(Note("r", "b", NO_OFFSET, 9, "a"), Note("r", "a", 9, 9))
    assert log.kept() == {"r": (5, "b")}
    # The same note again, late.
    log.note(Note("r", "a", NO_OFFSET, 9, ""), Note("r", "b", 1_000, 9))
    assert log.kept() == {"r": (100, "b")}


def test_before_version_7_a_new_name_takes_the_place_of_another_one_and_names_come_with_the_snapshot() -> (
    None
):
    log = Log()
    for name in "abcd":
        log.note(Note(name, f"o{name}", NO_OFFSET, 3), Note(name, f"o{name}", 1, 3))
    log.note(Note("b", "ob", 2, 3))
    assert list(log.kept()) == ["c", "d", "b"]
    again = StreamReplica.restore(log.replica.snapshot())
    assert again.names == log.replica.names
    assert list(again.names) == ["c", "d", "b"]
    assert again.digest() == log.replica.digest()
    assert decode_state(log.replica.snapshot()).taken is None


def take(name: str, owner: str, most: int, instead: str = "") -> Note:
    return Note(name, owner, NO_OFFSET, most, instead, REFUSES)


def ack(name: str, owner: str, offset: int, most: int) -> Note:
    return Note(name, owner, offset, most, kind=REFUSES)


def test_a_new_name_has_no_effect_if_there_are_enough() -> None:
    log = Log()
    log.note(take("a", "oa", 2), ack("a", "oa", 5, 2), take("b", "ob", 2), take("c", "oc", 2))
    # Not even by an ack, whose consumer had the name once.
    log.note(ack("c", "oc", 7, 2))
    assert log.kept() == {"a": (5, "oa"), "b": (NO_OFFSET, "ob")}
    # Names that are there can be taken, and move, also if the limit is lower than it was.
    log.note(take("a", "x", 1, "oa"), ack("a", "x", 9, 1), ack("b", "ob", 3, 1))
    assert log.kept() == {"a": (9, "x"), "b": (3, "ob")}
    log.note(take("c", "oc", 3))
    assert list(log.kept()) == ["a", "b", "c"]


def test_a_name_is_deleted_unless_another_consumer_has_taken_it() -> None:
    log = Log()
    log.note(take("a", "one", 2), ack("a", "one", 5, 2), take("b", "ob", 2))
    log.note(take("a", "two", 2, "one"), deletion("a", "one"), deletion("c", ""))
    assert log.kept() == {"a": (5, "two"), "b": (NO_OFFSET, "ob")}
    log.note(deletion("a", "two"), take("c", "oc", 2))
    assert log.kept() == {"b": (NO_OFFSET, "ob"), "c": (NO_OFFSET, "oc")}
    told = StreamWord(frames.TOLD_FOUND, 0, 0, 0, 0, msgspec.msgpack.encode({"b": (5, "ob")}))
    assert after_deletion("b", told) == NAME_IN_USE
    assert after_deletion("a", told) is None
    assert "may be deleted" in (after_deletion("a", StreamWord(frames.TOLD_ABSENT)) or NAME_IN_USE).text


@pytest.mark.parametrize("seed", range(30))
def test_all_members_have_the_same_names(seed: int) -> None:
    """Whatever the notes are, and wherever a member begins with a snapshot: also with notes that evict, from
    before the version.
    """
    random = Random(seed)
    members = [Log(), Log()]
    for turn in range(120):
        evicts = turn < 40
        notes: list[Note] = []
        for _ in range(random.randrange(1, 4)):
            name, owner, instead = (random.choice(word) for word in ("abcdef", "xyz", ["", "x", "y", "z"]))
            offset = random.choice((NO_OFFSET, NO_OFFSET, random.randrange(100)))
            kind = EVICTS if evicts else random.choice((REFUSES, REFUSES, DELETES))
            notes.append(Note(name, owner, offset, random.randrange(1, 5), instead, kind))
        before = members[0].kept()
        for member in members:
            member.note(*notes)
        assert members[0].kept() == members[1].kept()
        assert list(members[0].kept()) == list(members[1].kept())
        if not evicts:
            deleted = {(note.name, note.instead) for note in notes if note.kind == DELETES}
            owners = {(note.name, note.owner) for note in notes} | {
                (name, kept[1]) for name, kept in before.items()
            }
            gone = set(before) - set(members[0].kept())
            assert all(
                any((name, owner) in deleted for owner in ("", *"xyz") if (name, owner) in owners)
                for name in gone
            )
            most = max(note.most for note in notes)
            assert len(members[0].kept()) <= max(len(before), most)
        if random.random() < 0.1:
            restored = StreamReplica.restore(members[1].replica.snapshot())
            assert restored.digest() == members[0].replica.digest()
            members[1].replica = restored


def test_without_names_all_is_as_earlier_versions_have_it() -> None:
    batch = encode_batch("n", 1, 1, [])
    assert len(msgspec.msgpack.decode(batch)) == NodeBatch.__struct_fields__.index("notes")
    assert len(msgspec.msgpack.decode(StreamReplica().snapshot())) == 8


class Node:
    """The consumers of one node."""

    def __init__(self, prefix: str, log: Log, *, most: int = 9, keeps: bool = True) -> None:
        self.log = log
        self.keeps = keeps
        self.refused: list[Key] = []
        self.sent: list[list[Note]] = []
        self.began: dict[Key, int] = {}
        self.lost: list[Key] = []
        self.progress: dict[Key, Progress] = {}
        self.names = NodeNames(
            prefix,
            most,
            send=self.sent.append,
            begin=self.began.__setitem__,
            lose=self.lost.append,
            refuse=self.refused.append,
            keeps=lambda: self.keeps,
        )

    def add(self, key: Key, name: str) -> None:
        self.progress[key] = Progress(name)
        self.names.add(key, name, self.progress[key])
        self.names.flush(self.progress)

    def settle(self) -> None:
        self.log.note(*self.sent.pop(0))
        self.names.logged(self.log.replica.names)
        self.names.flush(self.progress)


def test_acks_gather_while_others_are_on_their_way() -> None:
    log = Log()
    node = Node("n", log)
    node.add((1,), "r")
    assert [note.offset for note in node.sent[0]] == [NO_OFFSET]
    node.settle()
    assert node.began == {(1,): NO_OFFSET}
    for offset in range(1, 50):
        node.progress[1,].begin(offset)
        node.names.acked((1,))
        node.names.flush(node.progress)
    assert [[note.offset for note in notes] for notes in node.sent] == [[1]]
    node.settle()
    assert [[note.offset for note in notes] for notes in node.sent] == [[49]]
    # The consumer goes while its last note is under way.
    del node.progress[1,]
    node.settle()
    node.names.flush(node.progress)
    assert not node.names.by_key
    assert log.kept() == {"r": (49, "n/1")}


@pytest.mark.parametrize("late", [False, True])
def test_the_last_one_of_two_nodes_has_the_name(late: bool) -> None:
    log = Log()
    one, two = Node("one", log), Node("two", log)
    one.add((1,), "r")
    if late:
        # Both believe that nobody has the name.
        two.add((2,), "r")
    one.settle()
    if not late:
        two.names.heard({"r": Kept(NO_OFFSET, "one/1")})
        two.add((2,), "r")
    while two.sent:
        two.settle()
    assert two.began == {(2,): NO_OFFSET}
    one.names.heard(log.replica.names)
    assert one.lost == [(1,)]
    assert not one.names.by_key


def test_what_nobody_knows_of_is_said_again() -> None:
    log = Log()
    node = Node("n", log)
    node.add((1,), "r")
    node.sent.clear()
    node.names.failed()
    node.names.flush(node.progress)
    node.settle()
    assert node.began == {(1,): NO_OFFSET}


@pytest.mark.parametrize("there", [False, True])
def test_a_consumer_is_refused_if_there_is_no_place_for_its_name(there: bool) -> None:
    log = Log()
    one, two = Node("one", log, most=1), Node("two", log, most=1)
    one.add((1,), "a")
    if there:
        one.settle()
        two.names.heard(log.replica.names)
    # Otherwise both take the last place at once, and the log decides.
    two.add((2,), "b")
    if not there:
        one.settle()
    sent = 0
    while two.sent:
        two.settle()
        sent += 1
    assert (one.began, two.began, two.refused) == ({(1,): NO_OFFSET}, {}, [(2,)])
    assert (log.kept(), two.names.by_key, two.lost) == ({"a": (NO_OFFSET, "one/1")}, {}, [])
    assert sent == 2
    # A name that is there is always taken.
    two.add((3,), "a")
    while two.sent:
        two.settle()
    assert two.began == {(3,): NO_OFFSET}


def test_a_name_that_was_deleted_while_it_is_taken_is_taken_again() -> None:
    log = Log()
    log.note(take("a", "old", 1))
    node = Node("n", log, most=1)
    node.names.by_key.clear()
    node.add((1,), "a")
    node.sent.clear()
    node.names.failed()
    node.names.heard(log.replica.names)
    node.names.flush(node.progress)
    assert [note.instead for note in node.sent[0]] == ["old"]
    log.note(deletion("a", "old"))
    while node.sent:
        node.settle()
    assert (node.began, node.refused) == ({(1,): NO_OFFSET}, [])


def test_a_consumer_whose_name_is_gone_and_has_no_place_is_cancelled() -> None:
    log = Log()
    node = Node("n", log, most=1)
    node.add((1,), "a")
    node.settle()
    # The operator did not see the consumer, whose node was out of reach.
    log.note(deletion("a", "n/1"), take("b", "x", 1))
    node.progress[1,].begin(5)
    node.names.acked((1,))
    node.names.flush(node.progress)
    while node.sent:
        node.settle()
    assert (node.lost, node.refused, log.kept()) == ([(1,)], [], {"b": (NO_OFFSET, "x")})


def test_while_nodes_of_version_6_may_be_there_notes_are_as_before() -> None:
    log = Log()
    node = Node("n", log, most=1, keeps=False)
    node.add((1,), "a")
    node.settle()
    node.add((2,), "b")
    node.settle()
    assert (list(node.began), node.refused, list(log.kept())) == ([(1,), (2,)], [], ["b"])
    # The version is reached: the consumer whose name was taken away has to leave now.
    node.keeps = True
    node.progress[1,].begin(5)
    node.names.acked((1,))
    node.names.flush(node.progress)
    while node.sent:
        assert all(note.kind == REFUSES for note in node.sent[0])
        node.settle()
    assert (node.lost, list(log.kept())) == ([(1,)], ["b"])
