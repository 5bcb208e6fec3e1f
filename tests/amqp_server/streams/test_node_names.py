"""Offsets by name in a cluster: how the log changes them, and when a node sends notes for its consumers."""

from __future__ import annotations

import msgspec
import pytest

from amqp_server.streams.entries import NO_OFFSET, NodeBatch, Note, decode_entry, encode_batch, encode_entry
from amqp_server.streams.named import Progress
from amqp_server.streams.node_names import NodeNames
from amqp_server.streams.replicated import Kept, Replica, decode_state
from quorum_queue.host import Key


class Log:
    """A replica that gets its entries as notes."""

    def __init__(self) -> None:
        self.replica = Replica()
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


def test_names_are_bounded_and_come_with_the_snapshot() -> None:
    log = Log()
    for name in "abcd":
        log.note(Note(name, f"o{name}", NO_OFFSET, 3), Note(name, f"o{name}", 1, 3))
    log.note(Note("b", "ob", 2, 3))
    assert list(log.kept()) == ["c", "d", "b"]
    again = Replica.restore(log.replica.snapshot())
    assert again.names == log.replica.names
    assert list(again.names) == ["c", "d", "b"]
    assert again.digest() == log.replica.digest()
    assert decode_state(log.replica.snapshot()).taken is None


def test_without_names_all_is_as_earlier_versions_have_it() -> None:
    batch = encode_batch("n", 1, 1, [])
    assert len(msgspec.msgpack.decode(batch)) == len(NodeBatch.__struct_fields__) - 1
    assert len(msgspec.msgpack.decode(Replica().snapshot())) == 8


class Node:
    """The consumers of one node."""

    def __init__(self, prefix: str, log: Log) -> None:
        self.log = log
        self.sent: list[list[Note]] = []
        self.began: dict[Key, int] = {}
        self.lost: list[Key] = []
        self.progress: dict[Key, Progress] = {}
        self.names = NodeNames(
            prefix, 9, send=self.sent.append, begin=self.began.__setitem__, lose=self.lost.append
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
