"""Streams: logs whose messages stay. What readers saw is compared with the whole log in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.model.spec.messages import Copy, Message, Presence
from tests.model.spec.promises import Broken

if TYPE_CHECKING:
    from tests.model.spec.channels import Channel
    from tests.model.spec.state import State


#: In place of the step in which something failed.
NEVER_FAILED = -1000
#: What a message takes beside its body, at most, and the size of a segment of a stream with retention.
OVERHEAD_BYTES, SEGMENT_BYTES = 250, 1500


@dataclass(eq=False)
class Position:
    """How far the reader with a name has come: the end of the offsets that it acked without a gap."""

    #: Offsets at one of which it began.
    base: tuple[int, int]
    acked: set[int] = field(default_factory=set)
    #: Acks of which nobody knows whether they count.
    doubted: set[int] = field(default_factory=set)
    #: Acks that are on the disk.
    safe: set[int] = field(default_factory=set)

    def committed(self) -> tuple[int, int]:
        low, high = self.base
        while low in self.acked:
            low += 1
        high = max(high, low)
        while high in self.acked or high in self.doubted:
            high += 1
        return low, high

    def doubt(self, offsets: set[int]) -> None:
        self.doubted |= offsets
        self.acked -= offsets


@dataclass(eq=False)
class Reader:
    """A consumer of a stream."""

    tag: str
    channel: Channel
    log: Log
    prefetch: int
    #: Offsets at one of which it begins: fewest and most.
    start: tuple[int, int]
    filters: tuple[str, ...] = ()
    #: True if it asked when the broker took each message; and the latest of these times, ms.
    timed: bool = False
    time: int = 0
    got: list[tuple[int, int]] = field(default_factory=list)
    over: bool = False
    #: True if each delivery is a whole batch.
    batched: bool = False
    #: Of one that has a name.
    position: Position | None = None
    #: True if another one took its name, so that the broker has to cancel it.
    replaced: bool = False
    #: Messages of later steps have to come to it.
    channel_step: int = 0

    @property
    def spare(self) -> bool:
        return sum(held.reader is self for held in self.channel.unacked.values()) < self.prefetch

    def take(self, offset: int, number: int, *, first: bool = True) -> None:
        """A message came; `first` if it is the only one of its delivery, or the first of a batch."""
        if first and not self.spare:
            raise Broken(f"{self.log.name}: reader {self.tag} got more than its prefetch of {self.prefetch}")
        if self.got and offset <= self.got[-1][0]:
            raise Broken(f"{self.log.name}: reader {self.tag} got offset {offset} after {self.got[-1][0]}")
        if not self.got and offset < self.start[0]:
            raise Broken(
                f"{self.log.name}: reader {self.tag} got offset {offset} before its start {self.start}"
            )
        exact = not (self.got or self.filters or self.log.compacts or self.log.retains)
        # What is lost is compared with what the node tells later.
        exact = exact and self.log.before_damage is None
        if exact and offset > self.start[1]:
            raise Broken(
                f"{self.log.name}: reader {self.tag} begins at offset {offset}, behind its start {self.start}"
            )
        self.log.see(offset, number)
        if self.position is not None and not self.got and not self.replaced:
            self.position.base = (offset, offset)
        self.got.append((offset, number))

    def check_time(self, time: object, *, told: bool) -> None:
        """Times come to readers that asked for them, and do not fall."""
        if not (self.timed and told):
            if time is not None:
                raise Broken(f"{self.log.name}: reader {self.tag} got a time, and did not ask for it")
            return
        if not isinstance(time, int) or time < self.time:
            raise Broken(f"{self.log.name}: reader {self.tag} got the time {time!r} after {self.time}")
        self.time = time


@dataclass(eq=False)
class Log:
    vhost: State
    name: str
    arguments: dict[str, Any]
    super_stream: str = ""
    node: str = ""
    #: What was published to it, in the order of sending.
    entries: list[Copy] = field(default_factory=list)
    #: Number of the message at an offset, as somebody saw it.
    seen: dict[int, int] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    remembered: dict[str, Presence] = field(default_factory=dict)
    #: Positions of readers by name.
    names: dict[str, Position] = field(default_factory=dict)
    certain: bool = True
    #: Numbers of the messages that were there before a segment was damaged.
    before_damage: set[int] | None = None
    #: Step in which its copy on a node failed last; far back if it never did.
    failed_at: int = NEVER_FAILED
    #: Offsets that the node says it has lost.
    lost: set[int] = field(default_factory=set)
    #: True if an operator has protected it from deletion.
    protected: bool = False

    kind = "stream"

    @property
    def compacts(self) -> bool:
        return bool(self.arguments.get("x-stream-compaction"))

    @property
    def retains(self) -> bool:
        """True if it does not keep everything."""
        return "x-max-length-bytes" in self.arguments

    def may_be_compacted(self, entry: Copy) -> bool:
        """True if it is a tombstone, or a later message has its key."""
        key = entry.message.headers.get("x-stream-key")
        if not self.compacts or key is None:
            return False
        behind = self.entries[self.entries.index(entry) + 1 :] if entry in self.entries else []
        return entry.message.size == 0 or any(
            copy.message.headers.get("x-stream-key") == key for copy in behind
        )

    def may_be_gone(self, message: Message) -> bool:
        """True if compaction or retention may have removed it."""
        if not (self.compacts or self.retains):
            return False
        entry = next((each for each in self.entries if each.message is message), None)
        return entry is not None and (self.may_be_compacted(entry) or not self.kept(entry))

    def kept(self, entry: Copy) -> bool:
        """True if retention can't have deleted it: not so much came after it."""
        return not self.retains or self.entries.index(entry) >= self.kept_from()

    def kept_from(self) -> int:
        """How many of the oldest messages retention may have deleted."""
        size, limit = 0, self.arguments.get("x-max-length-bytes", 0) - SEGMENT_BYTES
        for at in range(len(self.entries) - 1, -1, -1):
            size += self.entries[at].message.size + OVERHEAD_BYTES
            if size >= limit:
                # What was published together may be one batch, which is in one segment.
                together = self.entries[at].sent
                return next(
                    (i for i in range(at, len(self.entries)) if self.entries[i].sent != together),
                    len(self.entries),
                )
        return 0

    def take_name(self, reader: Reader, name: str, default: tuple[int, int]) -> None:
        """A reader continues where the name is, and takes it from another one."""
        position = self.names.get(name)
        if position is None:
            position = Position(default)
        for other in self.readers:
            if other.position is position and not other.over:
                other.over = other.replaced = True
        # Acks after a gap are forgotten.
        reader.position = self.names[name] = Position(position.committed())
        reader.start = reader.position.base

    def may_take_name(self, name: str) -> tuple[bool, bool]:
        """Whether a reader may be admitted with this name, and whether it may be refused: a stream keeps a
        number of names, and one that never acked may have been forgotten.
        """
        if name in self.names:
            kept = self._surely_kept(self.names[name])
            return True, not kept and len(self.names) > self.vhost.broker.names_max
        sure = sum(self._surely_kept(each) for each in self.names.values())
        most = self.vhost.broker.names_max
        return sure < most, len(self.names) >= most

    def _surely_kept(self, position: Position) -> bool:
        read_now = any(reader.position is position and not reader.over for reader in self.readers)
        return read_now or position.committed()[0] > position.base[1]

    def acked(self, reader: Reader, offset: int) -> None:
        if reader.position is None:
            return
        if self.vhost.broker.nodes > 1:
            # It is an entry of the log, which another node may not have yet.
            reader.position.doubted.add(offset)
        elif not reader.replaced:
            reader.position.acked.add(offset)

    def see(self, offset: int, number: int) -> None:
        known = self.seen.setdefault(offset, number)
        if known != number:
            raise Broken(f"{self.name}: offset {offset} had message {known} and has message {number}")
        copies = [copy for copy in self.entries if copy.message.number == number]
        if not copies:
            raise Broken(f"{self.name}: message {number} at offset {offset} was never published here")
        others = [at for at, other in self.seen.items() if other == number]
        if len(others) > sum(copy.presence is not None for copy in copies):
            raise Broken(f"{self.name}: message {number} is there twice, at the offsets {others}")
        for copy in copies:
            if copy.choice is not None and (wrong := copy.choice.see(copy, self.name)):
                raise Broken(f"{copy} {wrong}")
            copy.presence = Presence.SURE
            copy.arrived = copy.arrived if copy.arrived is not None else self.vhost.step

    def crash(self) -> None:
        """The only node was killed, and is up again."""
        for reader in self.readers:
            reader.over = True
        for position in self.names.values():
            position.doubt(position.acked - position.safe)
        for entry in self.entries:
            if entry.presence is not Presence.SURE:
                entry.presence = Presence.MAYBE
                identity = entry.message.headers.get("x-deduplication-id")
                if identity in self.remembered:
                    self.remembered[identity] = Presence.MAYBE

    def damage(self) -> None:
        """A segment was damaged: of which stream, and what is lost, the node tells when it reads that."""
        self.before_damage = {
            entry.message.number
            for entry in self.entries
            if entry.presence is Presence.SURE and self.kept(entry)
        }
        for entry in self.entries:
            entry.presence = Presence.MAYBE
        for identity in self.remembered:
            self.remembered[identity] = Presence.MAYBE

    def count(self) -> tuple[int, int]:
        """Fewest and most messages in it."""
        return sum(copy.presence is Presence.SURE for copy in self.entries), len(self.entries)

    def owed(self) -> list[str]:
        out = [
            f"{self.name}: the name of reader {reader.tag} was taken, and it is not cancelled"
            for reader in self.readers
            if reader.replaced and reader.tag in reader.channel.readers
        ]
        for reader in self.readers:
            if reader.over or not reader.spare or self.compacts:
                continue
            got = {number for _, number in reader.got}
            # Where it began is certain only if it began with the first message.
            if reader.start == (0, 0) and not self.retains:
                due = [copy for copy in self.entries if copy.presence is Presence.SURE]
            else:
                due = [
                    copy
                    for copy in self.entries
                    if copy.presence is Presence.SURE and copy.sent > reader.channel_step
                ]
            for copy in due:
                if copy.message.number not in got and self.passes(reader, copy) and self.kept(copy):
                    out.append(f"{self.name}: reader {reader.tag} waits for {copy}")
        return out

    @staticmethod
    def passes(reader: Reader, copy: Copy) -> bool:
        return not reader.filters or copy.message.headers.get("x-stream-filter-value") in reader.filters

    def verify(self, whole: list[tuple[int, int]]) -> None:
        """`whole` is what a new reader gets from the first message on."""
        for offset, number in whole:
            self.see(offset, number)
        numbers = [number for _, number in whole]
        if self.before_damage is not None and not self.compacts:
            lost = [number for number in self.before_damage if number not in numbers]
            if len(lost) > len(self.lost) and not self.retains:
                raise Broken(
                    f"{self.name}: lost are {sorted(lost)}, and the node tells of {sorted(self.lost)}"
                )
        if self.compacts:
            self._verify_compacted(numbers)
        else:
            self._verify_offsets(whole)
            missing = [
                c
                for c in self.entries
                if c.presence is not Presence.MAYBE and c.message.number not in numbers and self.kept(c)
            ]
            if missing:
                raise Broken(f"{self.name}: lost: {missing}")
        at = {number: index for index, number in enumerate(numbers)}
        present = [copy for copy in self.entries if copy.message.number in at]
        for one, two in zip(present, present[1:], strict=False):
            if one.precedes(two) and at[one.message.number] > at[two.message.number]:
                raise Broken(f"{self.name}: {one} was published before {two}, and comes after it")
        for reader in self.readers:
            self._verify_reader(reader, whole)

    def _verify_offsets(self, whole: list[tuple[int, int]]) -> None:
        """They have no gap but before the oldest message there is, which retention may delete up to while the
        new reader is further back.
        """
        numbers = dict(whole)
        whole = [(each, numbers.get(each, -1)) for each in sorted({*numbers, *self.lost})]
        offsets = [offset for offset, _ in whole]
        gaps = [at for at, (one, two) in enumerate(pairwise(offsets), 1) if two != one + 1]
        since = max(gaps, default=0)
        gone = {number for _, number in whole[:since]}
        may_be_gone = self.retains and all(
            not self.kept(copy) for copy in self.entries if copy.message.number in gone
        )
        if (gone and not may_be_gone) or (offsets and offsets[0] != 0 and not self.retains):
            raise Broken(f"{self.name}: offsets have gaps: {offsets}")

    def _verify_reader(self, reader: Reader, whole: list[tuple[int, int]]) -> None:
        if not reader.got or self.compacts or self.retains:
            return
        # What was lost later may have been read before.
        whole = [each for each in whole if each[0] not in self.lost]
        by_number = {copy.message.number: copy for copy in self.entries}
        first, last = reader.got[0][0], reader.got[-1][0]
        low = first if reader.start[0] != reader.start[1] else max(reader.start[0], 0)
        due = [(o, n) for o, n in whole if low <= o <= last and self.passes(reader, by_number[n])]
        if due != [each for each in reader.got if each[0] not in self.lost]:
            raise Broken(
                f"{self.name}: reader {reader.tag} got {_short(reader.got)} where {_short(due)} is right"
            )

    def _verify_compacted(self, numbers: list[int]) -> None:
        """Folded by key, what is there has to be the same as all that was ever published."""
        if any(copy.presence is Presence.MAYBE and _key(copy) is not None for copy in self.entries):
            return
        vague = _with_two_lasts(self.entries)
        right = _folded([copy for copy in self.entries if _key(copy) not in vague])
        there = [copy for number in numbers for copy in self.entries if copy.message.number == number]
        found = _folded([copy for copy in there if _key(copy) not in vague])
        if right != found:
            raise Broken(f"{self.name}: compacted to {found} where {right} is right")


def _key(copy: Copy) -> str | None:
    key: str | None = copy.message.headers.get("x-stream-key")
    return key


def _with_two_lasts(copies: list[Copy]) -> set[str | None]:
    """Keys of which two messages may each be the last one: clients of two nodes published them."""
    lasts = {_key(copy): copy for copy in copies}
    return {
        _key(copy) for copy in copies if (last := lasts[_key(copy)]) is not copy and not copy.precedes(last)
    }


def _folded(copies: list[Copy]) -> dict[str, int]:
    """The last message of each key, without the keys that were deleted."""
    state: dict[str, int] = {}
    for copy in copies:
        key = _key(copy)
        if key is None:
            continue
        if copy.message.size == 0:
            state.pop(key, None)
        else:
            state[key] = copy.message.number
    return state


def _short(pairs: list[tuple[int, int]]) -> str:
    return " ".join(f"{offset}={number}" for offset, number in pairs[:40])
