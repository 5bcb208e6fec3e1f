"""A disk of one member, whose writes end when the test says so, and the work of a host for a Ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from quorum_queue.raft.core import Raft
from quorum_queue.raft.errors import EntryLost
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import MEMBERS, Entry, Message
from quorum_queue.raft.options import Options
from quorum_queue.raft.ready import Ready


@dataclass(frozen=True)
class Snapshot:
    index: int
    term: int
    members: Members
    #: Stands for the state: a hash chain over all applied entries.
    digest: bytes


@dataclass
class Write:
    hard: HardState | None = None
    entries: tuple[Entry, ...] = ()
    after_sync: tuple[Message, ...] = ()
    #: A snapshot of the node's own state, or one that replaces state and log.
    snapshot: Snapshot | None = None
    replaces: bool = False


@dataclass
class Disk:
    """Data that `sync` has written is durable; the rest is lost in a crash."""

    snapshot: Snapshot
    hard: HardState = HardState()
    log: dict[int, Entry] = field(default_factory=dict)
    pending: deque[Write] = field(default_factory=deque)
    broken: list[int] = field(default_factory=list)

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for index in range(low, high + 1):
            if index in self.broken or index not in self.log:
                raise EntryLost(index)
            size += len(self.log[index].data)
            if found and size > max_bytes:
                break
            found.append(self.log[index])
        return found

    @property
    def last_index(self) -> int:
        return max(self.log, default=self.snapshot.index)

    def write_one(self) -> Write:
        write = self.pending.popleft()
        if write.hard is not None:
            self.hard = write.hard
        if write.entries:
            first = write.entries[0].index
            for index in [index for index in self.log if index >= first]:
                del self.log[index]
            for entry in write.entries:
                self.log[entry.index] = entry
        if write.snapshot is not None:
            self.snapshot = write.snapshot
            kept = write.snapshot.index if not write.replaces else self.last_index
            for index in [index for index in self.log if index <= kept]:
                del self.log[index]
        return write


def chained(digest: bytes, entry: Entry) -> bytes:
    return blake2b(
        digest + b"%d %d %d " % (entry.index, entry.term, entry.kind) + entry.data, digest_size=8
    ).digest()


class SimulatedMember:
    """A member with its disk. It does a host's work for each Ready, but writes only when the test says so."""

    def __init__(
        self,
        name: str,
        members: Members,
        options: Options,
        send: Callable[[Message, Snapshot | None], None],
    ) -> None:
        self.name = name
        self.options = options
        self.send = send
        self.disk = Disk(Snapshot(0, 0, members, b""))
        #: The number of earlier disks.
        self.disk_number = 0
        self.start()

    def start(self) -> None:
        """Start from the data on the disk. A disk that is empty, and not the first one, makes the member
        amnesiac.
        """
        disk = self.disk
        amnesiac = self.disk_number if disk.hard == HardState() else 0
        base = disk.snapshot
        terms: list[tuple[int, int]] = []
        changes: list[tuple[int, Members]] = []
        for index in sorted(disk.log):
            entry = disk.log[index]
            if not terms or terms[-1][1] != entry.term:
                terms.append((index, entry.term))
            if entry.kind == MEMBERS:
                changes.append((index, Members.decode(entry.data)))
        log = Log(
            disk, snapshot_index=base.index, snapshot_term=base.term, last_index=disk.last_index, terms=terms
        )
        self.raft = Raft(
            self.name, 7, members=base.members, hard=disk.hard, log=log, options=self.options, changes=changes,
            amnesiac=amnesiac,
        )  # fmt: skip
        self.alive = True
        self.applied = base.index
        self.digest = base.digest
        self.digests: dict[int, bytes] = {base.index: base.digest}
        self.entries: list[Entry] = []
        self.lost: list[int] = []
        #: Reads that the disk was asked for, and has not done yet.
        self.reading: deque[tuple[int, int]] = deque()
        self.offered: list[tuple[Message, Snapshot]] = []

    def crash(self, writes_done: int = 0) -> None:
        """Stop at once; this many of the writes under way have reached the disk, though no other node was
        told.
        """
        for _ in range(min(writes_done, len(self.disk.pending))):
            self.write_one()
        self.disk.pending.clear()
        self.reading.clear()
        self.alive = False

    def lose_disk(self, number: int, members: Members) -> None:
        self.disk = Disk(Snapshot(0, 0, members, b""))
        self.disk_number = number
        self.start()

    def receive(self, message: Message, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.offered = [(message, snapshot)]
        self.raft.step(message)

    def pump(self) -> None:
        """Do all pending work except writes."""
        while self.raft.has_ready:
            self.handle(self.raft.ready())

    def handle(self, ready: Ready) -> None:
        for message in ready.messages:
            self.send(message, None)
        if ready.hard is not None or ready.entries or ready.after_sync:
            self.disk.pending.append(Write(ready.hard, ready.entries, ready.after_sync))
        for entry in ready.committed:
            self.apply(entry)
        for to in ready.snapshots:
            snapshot = self.disk.snapshot
            self.send(self.raft.snapshot_offer(to, snapshot.index), snapshot)
            self.raft.snapshot_done(to, snapshot.index, True)
        if ready.offer is not None:
            self._install(ready.offer)
        self.lost += ready.lost
        self.reading += ready.reads
        while self.reading and not self.reads_wait():
            self.raft.came(*self.reading.popleft())

    def reads_wait(self) -> bool:
        """Return whether the disk takes time for the reads it was asked for."""
        return False

    def read_one(self) -> None:
        """Do the oldest read."""
        self.raft.came(*self.reading.popleft())
        self.pump()

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.applied + 1, f"{self.name} applied {self.applied} and now gets {entry}"
        self.applied = entry.index
        self.digest = self.digests[entry.index] = chained(self.digest, entry)
        self.entries.append(entry)

    def _install(self, offer: Message) -> None:
        for message, snapshot in self.offered:
            if message == offer and self.raft.installing(offer.index, offer.log_term):
                self.disk.pending.append(Write(snapshot=snapshot, replaces=True))
        self.offered.clear()

    def compact(self) -> None:
        """Begin to write a snapshot of the present state."""
        base = self.disk.snapshot
        if self.applied > base.index and not any(write.snapshot for write in self.disk.pending):
            term = self.raft.log.term_at(self.applied)
            members = self.raft.members_at(self.applied)
            snapshot = Snapshot(self.applied, term, members, self.digest)
            self.disk.pending.append(Write(snapshot=snapshot))

    def write_one(self) -> Write:
        return self.disk.write_one()

    def sync(self) -> None:
        """Let the oldest write end."""
        write = self.write_one()
        snapshot = write.snapshot
        if write.hard is not None:
            self.raft.hard_written(write.hard)
        if write.entries:
            self.raft.written(write.entries[-1].index, write.entries[-1].term)
        if snapshot is not None and write.replaces:
            self.applied = snapshot.index
            self.digest = self.digests[snapshot.index] = snapshot.digest
            self.raft.restore(snapshot.index, snapshot.term, snapshot.members)
        elif snapshot is not None and snapshot.index > self.raft.log.snapshot_index:
            self.raft.compact(snapshot.index)
        for message in write.after_sync:
            self.send(message, None)
        self.pump()

    def sync_all(self) -> None:
        while self.disk.pending:
            self.sync()
