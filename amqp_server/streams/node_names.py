"""Offsets that a stream of a cluster keeps by name, from the side of a node whose consumers have such names.

A consumer takes its name by an entry of the stream's log. The entry decides where the consumer continues, and
takes the name from its earlier owner. So the order of the log decides which consumer has a name, and later
acks of the earlier owner do not count. Acks go into the log in groups: while some are in progress, others are
collected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from amqp_server.streams.entries import NO_OFFSET, Note
from amqp_server.streams.replicated import Kept
from quorum_queue.host import Key

if TYPE_CHECKING:
    from amqp_server.streams.named import Progress


class Named:
    """A consumer with a name."""

    __slots__ = ("began", "name", "owner", "progress", "sent")

    def __init__(self, name: str, owner: str, progress: Progress) -> None:
        self.name = name
        #: Its identity in the log: no other consumer of any node ever has the same.
        self.owner = owner
        self.progress = progress
        #: True if the note that takes the name was sent; and if the consumer has the name.
        self.sent = self.began = False


class NodeNames:
    """The names of one stream's consumers on this node."""

    __slots__ = (
        "_begin",
        "_kept",
        "_lose",
        "_most",
        "_prefix",
        "_send",
        "_serial",
        "_under_way",
        "_unsent",
        "by_key",
    )

    def __init__(
        self,
        prefix: str,
        most: int,
        *,
        send: Callable[[list[Note]], None],
        begin: Callable[[Key, int], None],
        lose: Callable[[Key], None],
    ) -> None:
        """`prefix` is unique for this node and start, and `most` names are kept. `begin` gets the offset at
        which a consumer continues, NO_OFFSET if its name is new; `lose` is called when another consumer has
        taken the name.
        """
        self._prefix = prefix
        self._most = most
        self._send = send
        self._begin = begin
        self._lose = lose
        self._serial = 0
        self.by_key: dict[Key, Named] = {}
        #: Consumers with notes to send; and consumers whose notes are in progress.
        self._unsent: dict[Key, None] = {}
        self._under_way: list[Key] | None = None
        #: The last known state of names.
        self._kept: dict[str, Kept] = {}

    def add(self, key: Key, name: str, progress: Progress) -> None:
        """Add a consumer that wants a name."""
        self._serial += 1
        self.by_key[key] = Named(name, f"{self._prefix}/{self._serial}", progress)
        self._unsent[key] = None

    def adopt(self, other: NodeNames) -> None:
        """Take over consumers that have their names."""
        for key, named in other.by_key.items():
            if named.began:
                self.by_key[key] = named
                self._unsent[key] = None
        # Both objects may continue to count.
        self._serial = max(self._serial, other._serial)

    def acked(self, key: Key) -> None:
        """A consumer has acked more without a gap."""
        if key in self.by_key:
            self._unsent[key] = None

    def flush(self, there: Collection[Key]) -> None:
        """Send the waiting notes, unless others are in progress. `there` are the consumers that may still
        ack.
        """
        if self._under_way is not None:
            return
        notes: list[Note] = []
        keys, self._unsent = list(self._unsent), {}
        for key in keys:
            named = self.by_key[key]
            if named.began:
                notes.append(Note(named.name, named.owner, named.progress.committed, self._most))
            else:
                named.sent = True
                before = self._kept.get(named.name)
                instead = before.owner if before is not None else ""
                notes.append(Note(named.name, named.owner, NO_OFFSET, self._most, instead))
        for key in list(self.by_key):
            if key not in there:
                del self.by_key[key]
        if notes:
            self._under_way = keys
            self._send(notes)

    def failed(self) -> None:
        """It is unknown whether the sent notes are in the log: send them again."""
        keys, self._under_way = self._under_way, None
        for key in keys or ():
            if key in self.by_key:
                self._unsent[key] = None

    def logged(self, kept: Mapping[str, Kept]) -> None:
        """The sent notes are in the log; `kept` is its state of the names."""
        self._under_way = None
        self.heard(kept)
        for key, named in self.by_key.items():
            if named.sent and not named.began:
                # Another consumer took the name at the same time: try again.
                self._unsent[key] = None

    def heard(self, kept: Mapping[str, Kept]) -> None:
        """Take over the log's state of the names."""
        names = {named.name for named in self.by_key.values()}
        self._kept = {name: kept[name] for name in sorted(names) if name in kept}
        for key, named in list(self.by_key.items()):
            found = self._kept.get(named.name)
            if found is None or self.by_key.get(key) is not named:
                continue
            if named.began and found.owner != named.owner:
                del self.by_key[key]
                self._unsent.pop(key, None)
                self._lose(key)
            elif named.sent and not named.began and found.owner == named.owner:
                named.began = True
                self._begin(key, found.offset)

    @property
    def names(self) -> list[str]:
        return sorted({named.name for named in self.by_key.values()})


__all__ = ["NodeNames"]
