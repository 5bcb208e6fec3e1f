"""Offsets by name on one member of a stream: what consumers here, and on nodes without a copy, say of names
goes into the log, and they hear what it says. See node_names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from amqp_server.streams.asks import ABSENT, Done
from amqp_server.streams.entries import Note
from amqp_server.streams.named import Progress
from amqp_server.streams.node_names import NodeNames
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord
from quorum_queue.host import Key

if TYPE_CHECKING:
    from amqp_server.streams.group_host import StreamGroupHost

_names_decoder = msgspec.msgpack.Decoder(tuple[list[Note], list[str]])


class LoggedNames:
    """See above."""

    def __init__(self, host: StreamGroupHost, owner: str, names_max: int) -> None:
        """`owner` is this start of this node."""
        self._host = host
        self.node_names = NodeNames(
            owner, names_max, send=self._send, begin=host.named_begins, lose=host.loses_name
        )
        #: The number of the batch with what was said about names here, while it is on its way.
        self._number = 0
        #: Something about names was applied.
        self.fresh = False
        #: Other nodes that have something noted about names: the batch, the names to tell of, and the answer.
        self._asked: list[tuple[int, list[str], Done]] = []

    @property
    def waits(self) -> bool:
        """Return whether somebody waits for what the log says."""
        return bool(self._number or self.fresh or self._asked)

    def add(self, key: Key, name: str, progress: Progress) -> None:
        self.node_names.add(key, name, progress)
        # What is known of the name here tells whom it is taken from.
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
        """Look what the log says of names, if it says anything new, and say
        what consumers here have to say.
        """
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
        """What other nodes had to say in batches up to this one is in the log, or it is not."""
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
        """Another node, which is no member, has something to say about names."""
        try:
            notes, names = _names_decoder.decode(data)
        except msgspec.MsgspecError:
            reply(ABSENT)
            return
        if not notes:
            reply(self._word(names) if self._host.group.informed else ABSENT)
            return
        self._asked.append((self._host.group.next_number, names, reply))
        self._host.submit_notes(notes)


__all__ = ["LoggedNames"]
