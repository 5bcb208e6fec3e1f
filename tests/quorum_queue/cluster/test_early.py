"""What arrives for a group that is not open yet."""

from __future__ import annotations

from quorum_queue.cluster.early import TOPOLOGY, Early
from quorum_queue.cluster.frames import StatePiece
from quorum_queue.raft.messages import APPEND, Message

PIECE = StatePiece(TOPOLOGY, 3, 16, 3, 4, 0, b"", b"data")


def test_the_topology_is_sent_to_a_node_that_has_yet_to_note_that_it_belongs_to_the_cluster() -> None:
    """What came too early was dropped: its leader sent it again after ten seconds."""
    early, message = Early(1_000), Message(APPEND, "a", "b", 3)
    early.keep_message(TOPOLOGY, message, 20)
    early.keep_piece("a", PIECE)
    early.forget()
    assert list(early.take_messages(TOPOLOGY)) == [message]
    assert early.groups_with_pieces == [TOPOLOGY]
    assert list(early.take_pieces(TOPOLOGY)) == [("a", PIECE)]


def test_a_group_whose_declaration_was_applied_will_not_come() -> None:
    early, message = Early(1_000), Message(APPEND, "a", "b", 3)
    early.topology_index = 7
    for group in (7, 8):
        early.keep_message(group, message, 20)
        early.keep_piece("a", PIECE._replace(group=group))
    assert not list(early.take_messages(7))
    assert early.groups_with_pieces == [8]
    early.topology_index = 8
    early.forget()
    assert not list(early.take_messages(8)) and not early.groups_with_pieces
