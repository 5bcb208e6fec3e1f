"""Offsets that a stream of a cluster keeps by name, from the side of a node whose consumers have such names.

A consumer takes its name by an entry of the stream's log. The entry decides where the consumer continues, and
takes the name from its earlier owner. So the order of the log decides which consumer has a name, and later
acks of the earlier owner do not count. Acks go into the log in groups: while some are in progress, others are
collected.

If the stream has as many names as it may keep, the note of a new name has no effect, and its consumer is
refused. Until all nodes know this (see versions.NAMES_REFUSED), the new name takes the place of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from amqp_server.streams.members.entries import EVICTS, NO_OFFSET, REFUSES, Note
from amqp_server.streams.members.replica import Kept
from quorum_queue.host import Key

if TYPE_CHECKING:
    from amqp_server.streams.layout.named_offsets import Progress


class NamedConsumer:
    """A consumer with a name."""

    __slots__ = ("began", "misses", "name", "owner", "progress", "sent")

    def __init__(self, name: str, owner: str, progress: Progress) -> None:
        self.name = name
        #: Its identity in the log: no other consumer of any node ever has the same.
        self.owner = owner
        self.progress = progress
        #: True if the note that takes the name was sent; and if the consumer has the name.
        self.sent = self.began = False
        #: How many of its notes in a row are in the log, and the name is not.
        self.misses = 0


class NodeNames:
    """The names of one stream's consumers on this node."""

    __slots__ = (
        "_begin",
        "_keeps",
        "_kept",
        "_lose",
        "_most",
        "_prefix",
        "_refuse",
        "_refused",
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
        refuse: Callable[[Key], None],
        keeps: Callable[[], bool],
    ) -> None:
        """`prefix` is unique for this node and start, and `most` names are kept. `begin` gets the offset at
        which a consumer continues, NO_OFFSET if its name is new; `lose` is called when another consumer has
        taken the name, `refuse` if there is no place for the name. `keeps` tells whether names stay until
        they are deleted.
        """
        self._prefix = prefix
        self._most = most
        self._send = send
        self._begin = begin
        self._lose = lose
        self._refuse = refuse
        self._keeps = keeps
        #: True if the notes in progress have no effect when there is no place.
        self._refused = False
        self._serial = 0
        self.by_key: dict[Key, NamedConsumer] = {}
        #: Consumers with notes to send; and consumers whose notes are in progress.
        self._unsent: dict[Key, None] = {}
        self._under_way: list[Key] | None = None
        #: The last known state of names.
        self._kept: dict[str, Kept] = {}

    def add(self, key: Key, name: str, progress: Progress) -> None:
        """Add a consumer that wants a name."""
        self._serial += 1
        self.by_key[key] = NamedConsumer(name, f"{self._prefix}/{self._serial}", progress)
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
        self._refused = self._keeps()
        kind = REFUSES if self._refused else EVICTS
        for key in keys:
            named = self.by_key[key]
            if named.began:
                notes.append(Note(named.name, named.owner, named.progress.committed, self._most, kind=kind))
            else:
                named.sent = True
                before = self._kept.get(named.name)
                instead = before.owner if before is not None else ""
                notes.append(Note(named.name, named.owner, NO_OFFSET, self._most, instead, kind))
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
        keys, self._under_way = self._under_way or (), None
        self.heard(kept)
        if self._refused:
            self._look_for_missing(keys)
        for key, named in self.by_key.items():
            if named.sent and not named.began:
                # Another consumer took the name at the same time: try again.
                self._unsent[key] = None

    def _look_for_missing(self, keys: Collection[Key]) -> None:
        """Refuse the consumers among these whose names are not in the log, although their notes are.

        After the first of these notes the name may have been deleted, or the note took it from an owner that
        was deleted meanwhile.
        """
        for key in keys:
            named = self.by_key.get(key)
            if named is None:
                continue
            named.misses = 0 if named.name in self._kept else named.misses + 1
            if named.misses == 1:
                self._unsent[key] = None
            elif named.misses:
                self._forget(key)
                (self._lose if named.began else self._refuse)(key)

    def _forget(self, key: Key) -> None:
        del self.by_key[key]
        self._unsent.pop(key, None)

    def heard(self, kept: Mapping[str, Kept]) -> None:
        """Take over the log's state of the names."""
        names = {named.name for named in self.by_key.values()}
        self._kept = {name: kept[name] for name in sorted(names) if name in kept}
        for key, named in list(self.by_key.items()):
            found = self._kept.get(named.name)
            if found is None or self.by_key.get(key) is not named:
                continue
            if named.began and found.owner != named.owner:
                self._forget(key)
                self._lose(key)
            elif named.sent and not named.began and found.owner == named.owner:
                named.began = True
                self._begin(key, found.offset)

    @property
    def names(self) -> list[str]:
        return sorted({named.name for named in self.by_key.values()})


__all__ = ["NodeNames"]
