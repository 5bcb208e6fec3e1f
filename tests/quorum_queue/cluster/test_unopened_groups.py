"""Messages that arrive for a group that is not open yet."""

from __future__ import annotations

from quorum_queue.cluster.frames import StatePiece
from quorum_queue.cluster.unopened_groups import TOPOLOGY, UnopenedGroups
from quorum_queue.raft.messages import APPEND, Message

PIECE = StatePiece(TOPOLOGY, 3, 16, 3, 4, 0, b"", b"data")


def test_the_topology_is_sent_to_a_node_that_has_yet_to_note_that_it_belongs_to_the_cluster() -> None:
    """A message that came too early was dropped: its leader sent it again after ten seconds."""
    unopened, message = UnopenedGroups(1_000), Message(APPEND, "a", "b", 3)
    unopened.keep_message(TOPOLOGY, message, 20)
    unopened.keep_piece("a", PIECE)
    unopened.forget()
    assert list(unopened.take_messages(TOPOLOGY)) == [message]
    assert unopened.groups_with_pieces == [TOPOLOGY]
    assert list(unopened.take_pieces(TOPOLOGY)) == [("a", PIECE)]


def test_a_group_whose_declaration_was_applied_will_not_come() -> None:
    unopened, message = UnopenedGroups(1_000), Message(APPEND, "a", "b", 3)
    unopened.topology_index = 7
    for group in (7, 8):
        unopened.keep_message(group, message, 20)
        unopened.keep_piece("a", PIECE._replace(group=group))
    assert not list(unopened.take_messages(7))
    assert unopened.groups_with_pieces == [8]
    unopened.topology_index = 8
    unopened.forget()
    assert not list(unopened.take_messages(8)) and not unopened.groups_with_pieces
