"""Offsets by name on one member of a stream: notes from consumers here, and from nodes without a copy, go
into the log, and the consumers follow the log. See node_names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from amqp_server.streams.layout.named_offsets import NAME_IN_USE, Progress
from amqp_server.streams.members.entries import DELETES, NO_OFFSET, Note
from amqp_server.streams.members.replica import Kept
from amqp_server.streams.members.requests import ABSENT, Done
from amqp_server.streams.node_named_offsets import NodeNames
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.host import Key
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.streams.members.host import StreamMemberHost

_names_decoder = msgspec.msgpack.Decoder(tuple[list[Note], list[str]])
#: Decodes the state of names that a member tells.
kept_decoder = msgspec.msgpack.Decoder(dict[str, Kept])


class LoggedNames:
    def __init__(self, host: StreamMemberHost, owner: str, names_max: int) -> None:
        """`owner` identifies this node and its start."""
        self._host = host
        self.node_names = NodeNames(
            owner,
            names_max,
            send=self._send,
            begin=host.named_begins,
            lose=host.loses_name,
            refuse=host.refuses_name,
            keeps=host.keeps_names,
        )
        #: The number of the batch with this node's notes, while it is in progress; else 0.
        self._number = 0
        #: True if notes about names were applied.
        self.fresh = False
        #: Notes of other nodes in progress: the batch, the names to report, and the answer.
        self._asked: list[tuple[int, list[str], Done]] = []

    @property
    def waits(self) -> bool:
        """Return whether a note waits for the log."""
        return bool(self._number or self.fresh or self._asked)

    def add(self, key: Key, name: str, progress: Progress) -> None:
        self.node_names.add(key, name, progress)
        # The known state of the name shows which owner it is taken from.
        self.fresh = True

    def missed(self, batches: range) -> None:
        """Own batches are lost."""
        if self._number in batches:
            self._number = 0
            self.node_names.failed()
        self._answer(batches[-1], found=False)

    def close(self) -> None:
        asked, self._asked = self._asked, []
        for _, _, reply in asked:
            reply(ABSENT)

    def _send(self, notes: list[Note]) -> None:
        self._number = self._host.group.next_number
        self._host.submit_notes(notes)

    def hear(self) -> None:
        """Read the log's state of names if it has changed, and send the notes of consumers here."""
        host, names = self._host, self.node_names
        last = host.last_own_batch()
        if self._number and last >= self._number:
            self._number = 0
            self.fresh = False
            names.logged(self._host.replica.names)
        elif self.fresh:
            self.fresh = False
            names.heard(self._host.replica.names)
        if self._asked:
            self._answer(last, found=True)
        if names.by_key:
            names.flush(host.progress)

    def _answer(self, number: int, *, found: bool) -> None:
        """Answer nodes whose notes were in batches up to this one: the log has them, or they are lost."""
        left: list[tuple[int, list[str], Done]] = []
        asked, self._asked = self._asked, left
        for each in asked:
            if each[0] > number:
                left.append(each)
            else:
                each[2](self._word(each[1]) if found else ABSENT)

    def _word(self, names: list[str]) -> StreamWord:
        kept = {
            name: tuple(self._host.replica.names[name]) for name in names if name in self._host.replica.names
        }
        return self._host.word(frames.TOLD_FOUND, data=msgspec.msgpack.encode(kept))

    def note_for(self, data: bytes, reply: Done) -> None:
        """Submit notes of another node, which is no member."""
        try:
            notes, names = _names_decoder.decode(data)
        except msgspec.MsgspecError:
            reply(ABSENT)
            return
        if not notes:
            reply(self._word(names) if self._host.group.informed else ABSENT)
            return
        self._log(notes, names, reply)

    def _log(self, notes: list[Note], names: list[str], reply: Done) -> None:
        """Submit these notes, and reply with the state of these names afterwards."""
        self._asked.append((self._host.group.next_number, names, reply))
        self._host.submit_notes(notes)

    def delete(self, name: str, owner: str, done: Callable[[Refused | None], None]) -> None:
        """Delete a name, unless another consumer than `owner` has taken it."""
        self._log([deletion(name, owner)], [name], lambda word: done(after_deletion(name, word)))


def deletion(name: str, owner: str) -> Note:
    """Return the note that deletes a name that this owner was the last to take."""
    return Note(name, "", NO_OFFSET, 1, owner, DELETES)


def after_deletion(name: str, word: StreamWord) -> Refused | None:
    """Return why a name was not deleted, given the answer to the note."""
    if word.what != frames.TOLD_FOUND:
        return Refused("no member of the stream has answered: the name may be deleted or not")
    return NAME_IN_USE if name in kept_decoder.decode(word.data) else None


__all__ = ["LoggedNames", "after_deletion", "deletion", "kept_decoder"]
