"""Frames for groups that this node does not know yet: a leader may be ahead of it in the topology."""

from __future__ import annotations

from collections.abc import Iterator

from quorum_queue.cluster.frames import StatePiece
from quorum_queue.queue_ids import index_of
from quorum_queue.raft.messages import Message

#: The group whose log is the topology's.
TOPOLOGY = 0


class UnopenedGroups:
    """First messages to new groups, and pieces of snapshots for a node that lost its disk."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._messages: dict[int, list[tuple[Message, int]]] = {}
        #: Messages with the peers that sent them.
        self._pieces: dict[int, list[tuple[str, StatePiece]]] = {}
        #: How far this node has applied the topology. Groups of operations up to this index that do not
        #: exist, and are not expected, will never exist.
        self.topology_index = 0
        #: Groups that are declared and will be opened soon.
        self.expected: dict[int, None] = {}

    def may_come(self, group_id: int) -> bool:
        """Return whether a group may still be opened here: its declaration is not applied yet.

        The topology's own group has no declaration, and opens when the node has noted its cluster.
        """
        declared_at = index_of(group_id)
        return declared_at > self.topology_index or group_id == TOPOLOGY or group_id in self.expected

    @property
    def groups_with_pieces(self) -> list[int]:
        return list(self._pieces)

    def has_pieces(self, group_id: int) -> bool:
        return group_id in self._pieces

    def keep_message(self, group_id: int, message: Message, size: int) -> None:
        if self._bytes <= self._bytes_max and self.may_come(group_id):
            self._messages.setdefault(group_id, []).append((message, size))
            self._bytes += size

    def keep_piece(self, peer: str, piece: StatePiece) -> None:
        known = piece.group in self._pieces
        if self._bytes <= self._bytes_max and (known or self.may_come(piece.group)):
            self._pieces.setdefault(piece.group, []).append((peer, piece))
            self._bytes += len(piece.data)

    def take_messages(self, group_id: int) -> Iterator[Message]:
        self.expected.pop(group_id, None)
        for message, size in self._messages.pop(group_id, ()):
            self._bytes -= size
            yield message

    def take_pieces(self, group_id: int) -> Iterator[tuple[str, StatePiece]]:
        for peer, piece in self._pieces.pop(group_id, ()):
            self._bytes -= len(piece.data)
            yield peer, piece

    def forget(self) -> None:
        """The topology has advanced: drop frames for groups that do not exist by now."""
        for group_id in [group_id for group_id in self._messages if not self.may_come(group_id)]:
            self._bytes -= sum(size for _, size in self._messages.pop(group_id))
        for group_id in [group_id for group_id in self._pieces if not self.may_come(group_id)]:
            self._bytes -= sum(len(piece.data) for _, piece in self._pieces.pop(group_id))
