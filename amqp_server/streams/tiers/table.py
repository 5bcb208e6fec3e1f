"""The table of one stream: which file is written next, and when.

The files follow the manifest: one for each range, in order. Another process writes them, for all streams of
the node one at a time. It reads the segments on the disk as long as they are there, and the store otherwise,
so neither uploads nor retention wait for it. How far the table is, the store says: it is asked when a node
begins to write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from outcome import Error, Outcome

from amqp_server.streams.services import StreamServices
from amqp_server.streams.tiers.remotes import pause_ms
from persistence.streams.log import StreamLog
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import Cut, Find, TableName, Write
from persistence.streams.remote.upload import Stopping
from persistence.streams.segment import Segment

logger = logging.getLogger("mqd.streams")

#: The first pause after failures.
PAUSE_MIN_MS: Final = 1_000


class TableOwner(Protocol):
    """See amqp_server.streams.tiers.tier.Tier."""

    @property
    def title(self) -> str: ...

    @property
    def table_manifest(self) -> Manifest | None:
        """The manifest whose ranges this node writes now; None if it writes none."""

    @property
    def is_deleted(self) -> bool:
        """Return whether the stream is deleted."""

    @property
    def has_ended(self) -> bool:
        """Return whether this node has nothing to do with the stream any more."""

    def name_of_table(self, manifest: Manifest) -> TableName: ...

    def delete_all(self) -> None:
        """Delete all objects and files of the stream."""

    def doom_table(self, manifest: Manifest, removed: tuple[Range, ...]) -> None:
        """Delete the files of ranges."""

    def wake_at(self, due_ms: int) -> None:
        """Call `look` at this time."""


class TierTable:
    """All calls are on the loop's thread."""

    __slots__ = (
        "_busy",
        "_cuts",
        "_failures",
        "_log",
        "_owner",
        "_rests_until",
        "_services",
        "next_offset",
        "wrote",
    )

    def __init__(self, owner: TableOwner, services: StreamServices, log: StreamLog) -> None:
        self._owner = owner
        self._services = services
        self._log = log
        self._busy = False
        self._failures = 0
        self._rests_until = 0
        #: Messages that a catalog forgets before their files are deleted: before which offset, and what to
        #: call then.
        self._cuts: list[tuple[Cut, Callable[[], None]]] = []
        #: The table has all messages before this offset; None: the store was not asked.
        self.next_offset: int | None = None
        #: True if this node may have written files since it started.
        self.wrote = False

    def look(self) -> None:
        """Write the next file, if there is one."""
        if self._busy or self._owner.has_ended:
            return
        if self._services.clock.monotonic_ms() < self._rests_until:
            self._owner.wake_at(self._rests_until)
            return
        stores = self._services.remotes.stores
        if self._cuts:
            self._busy = True
            stores.table(self._cuts[0][0], self._has_cut)
            return
        owner = self._owner
        manifest = owner.table_manifest
        if manifest is None:
            self._failures = 0
            self._services.remotes.table_works(owner.title)
        elif not manifest.ranges:
            return
        elif self.next_offset is None:
            self._busy = True
            ranges = tuple([(each.first, each.stop) for each in manifest.ranges])
            stores.table(Find(owner.name_of_table(manifest), ranges), self._found)
        else:
            for each in manifest.ranges:
                if each.stop > self.next_offset:
                    self._write(manifest, each)
                    break

    def _write(self, manifest: Manifest, range: Range) -> None:
        self._busy = self.wrote = True
        table = self._owner.name_of_table(manifest)
        job = Write(table, range, str(self._log.directory), self._segments_of(range))
        self._services.remotes.stores.table(job, partial(self._written, manifest, range))

    def _segments_of(self, range: Range) -> tuple[Segment, ...]:
        segments = self._log.segments
        return tuple([each for each in segments if each.base < range.stop and each.stop > range.first])

    def _found(self, outcome: Outcome[int]) -> None:
        if self._has_done(outcome):
            self.next_offset = outcome.unwrap()
        self.look()

    def _written(self, manifest: Manifest, range: Range, outcome: Outcome[int]) -> None:
        owner = self._owner
        if owner.is_deleted:
            # The file may have come after the others were deleted.
            self._busy = False
            owner.delete_all()
            return
        now = owner.table_manifest
        if now is not None and range not in now.ranges:
            # Retention has deleted it meanwhile, perhaps while it was read: no matter if that has failed. The
            # file may be there.
            self._busy = False
            owner.doom_table(manifest, (range,))
        elif self._has_done(outcome) and self.next_offset is not None:
            self.next_offset = max(self.next_offset, range.stop)
        self.look()

    def cut(self, table: TableName, before: int, then: Callable[[], None]) -> None:
        """Let the catalog forget messages, and then call `then`."""
        self._cuts.append((Cut(table, before), then))
        self.look()

    def _has_cut(self, outcome: Outcome[int]) -> None:
        if self._has_done(outcome):
            self._cuts.pop(0)[1]()
        self.look()

    def _has_done(self, outcome: Outcome[int]) -> bool:
        """A job has ended; return whether it has succeeded."""
        self._busy = False
        if self._owner.has_ended:
            # Nobody waits for it, and it may have failed because the stream is gone.
            return False
        title, remotes = self._owner.title, self._services.remotes
        if not isinstance(outcome, Error):
            self._failures = 0
            remotes.table_works(title)
            return True
        error = outcome.error
        if not isinstance(error, Unavailable | Stopping):
            logger.error("%s: its table was not written: %s", title, error)
        if not isinstance(error, Stopping):
            remotes.table_failed(title, str(error))
        self._failures += 1
        self._rests_until = self._services.clock.monotonic_ms() + pause_ms(PAUSE_MIN_MS, self._failures)
        return False


__all__ = ["TableOwner", "TierTable"]
