"""What one stream has in an object store: its uploads, its reads from there, and what may leave the disk.

The decisions are those of the manifest (persistence.streams.remote.manifest); here they get time and threads.
One upload is in progress at a time, so ranges enter the manifest in order. The owner, the host of the stream,
stores the manifest: in the journal of a single node, or in the log that all members share.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

from outcome import Error, Outcome

from amqp_server.streams.services import StreamServices
from amqp_server.streams.tiers.remotes import PAUSE_MAX_MS, Remotes, pause_ms
from amqp_server.streams.tiers.table import TierTable
from persistence.streams.log import Lost, Read, StreamLog, Wanted
from persistence.streams.remote import manifest as manifests
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.remote.objects import Unavailable, Unknown, no_remote
from persistence.streams.remote.reading import Moved, TieredReader
from persistence.streams.remote.table import Drop, TableName, files_of, table_directory
from persistence.streams.remote.upload import Upload, Uploaded
from persistence.streams.retention import RetentionLimits
from persistence.streams.segment import SegmentPlace

logger = logging.getLogger("mqd.streams")

#: The first pause after failures of the store.
PAUSE_MIN_MS: Final = 500
#: Pauses of a reader that waits for messages in the store.
READ_PAUSE_MIN_MS: Final = 100
READ_PAUSE_MAX_MS: Final = 5_000


class TierOwner(Protocol):
    """The host of the stream."""

    @property
    def ended(self) -> str: ...

    @property
    def stream_title(self) -> str: ...

    @property
    def stream_name(self) -> tuple[str, str]:
        """The virtual host, and the name in it."""

    @property
    def may_upload(self) -> bool:
        """Return whether this node uploads the stream's segments now."""

    def lacks_before(self, offset: int, stop: int) -> bool:
        """Return whether this node may still get messages of this range, which its disk lacks."""

    def begin_manifest(self, manifest: Manifest) -> None:
        """Store an empty manifest; `Tier.show` is called when it is stored."""

    def add_range(self, after: int, added: Range) -> None:
        """Store a range, whose object is complete; `Tier.show` is called when it is stored."""

    def found_damage(self, lost: list[Lost]) -> bool:
        """Return whether these messages of a segment are lost for good."""

    def failed(self, error: Exception) -> None: ...


class Tier:
    """See above. All calls are on the loop's thread."""

    __slots__ = (
        "_busy",
        "_damaged",
        "_doomed",
        "_failures",
        "_later",
        "_log",
        "_owner",
        "_remotes",
        "_rests_until",
        "_services",
        "first_offset",
        "is_deleted",
        "local_limits",
        "manifest",
        "reader",
        "remote",
        "table",
        "table_format",
    )

    def __init__(
        self,
        owner: TierOwner,
        services: StreamServices,
        remotes: Remotes,
        log: StreamLog,
        remote: str | None,
        local_limits: RetentionLimits,
        table_format: str | None = None,
    ) -> None:
        """`remote` is the store to which segments go; None: none go any more."""
        self._owner = owner
        self._services = services
        self._remotes = remotes
        self._log = log
        self.remote = remote
        #: What stays on the disk.
        self.local_limits = local_limits
        #: The format of the table's files; None if none are written.
        self.table_format = table_format
        self.table = TierTable(self, services, log)
        self.manifest: Manifest | None = None
        self.reader: TieredReader | None = None
        #: True once the stream is deleted.
        self.is_deleted = False
        #: Messages before it are deleted; see TieredReader.first_offset.
        self.first_offset: int | None = None
        self._busy = False
        self._failures = 0
        self._rests_until = 0
        #: First offset of a segment of which some messages are lost for good.
        self._damaged = -1
        #: Keys of objects that are to be deleted.
        self._doomed: list[str] = []
        #: Reads that wait for the store: until when, and what to call then.
        self._later: list[tuple[int, Callable[[], None]]] = []

    # -- what the store has ----------------------------------------------------------------------------------

    def show(self, manifest: Manifest, first_offset: int | None = None) -> None:
        """The stream has this manifest from now on."""
        if self.manifest is None or self.reader is None or self.manifest.identity != manifest.identity:
            self.reader = self._remotes.stores.reader(manifest.remote, self._log)
        self.first_offset = self.reader.first_offset = first_offset
        if manifest is not self.manifest:
            self.reader.show(manifest)
        self.manifest = manifest

    def stored(self) -> None:
        """What was proposed to be stored has been stored, or is obsolete; `look` goes on."""
        self._busy = False

    @property
    def ranges(self) -> tuple[Range, ...]:
        return () if self.manifest is None else self.manifest.ranges

    @property
    def stop(self) -> int:
        """The offset before which the store has all messages."""
        return 0 if self.manifest is None else self.manifest.stop

    @property
    def away(self) -> Sequence[Range]:
        """The ranges of which the disk lacks messages."""
        if self.reader is None:
            return ()
        return self.ranges[: bisect_left(self.ranges, self.reader.local_first, key=attrgetter("first"))]

    def is_remote(self, offset: int) -> bool:
        return self.reader is not None and self.reader.is_remote(offset)

    # -- uploads ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Upload the next segment, if there is one and the store may work."""
        owner, services = self._owner, self._services
        if owner.ended:
            return
        self.table.look()
        if self._busy:
            return
        now = services.clock.monotonic_ms()
        if now < self._rests_until:
            services.timers.wake(self, self._rests_until)
            return
        if self._doomed:
            self._delete()
        if self.remote is None or not owner.may_upload:
            return
        manifest = self.manifest
        if manifest is None:
            if self._log.sealed:
                self._busy = True
                owner.begin_manifest(Manifest(self._remotes.stores.new_identity(), self.remote))
            return
        if manifest.remote != self.remote:
            # What one store has does not move to another one.
            return
        stores = self._remotes.stores
        if self.remote not in stores.names:
            # An upload would read the whole segment first.
            self._upload_failed(self.remote, no_remote(self.remote))
            return
        first = self.first_offset or 0
        segment = manifests.next_upload(self._log.sealed, manifest.stop, first)
        if segment is None:
            return
        after = max(manifest.stop, first)
        if segment.base > after and owner.lacks_before(after, segment.base):
            self._rest(PAUSE_MIN_MS)
            return
        self._busy = True
        upload = Upload(
            self._log,
            stores.objects(manifest.remote),
            manifest.identity,
            segment,
            after,
            stores.stopping,
            with_damage=segment.base == self._damaged,
        )
        stores.write(upload.run, partial(self._uploaded, manifest, segment.base))

    def _uploaded(self, manifest: Manifest, base: int, outcome: Outcome[Uploaded]) -> None:
        owner = self._owner
        if owner.ended:
            self._busy = False
            if self.is_deleted:
                # The object may have come after the others were deleted.
                self.delete_all()
            return
        if isinstance(outcome, Error):
            self._busy = False
            self._upload_failed(manifest.remote, outcome.error)
            return
        uploaded = outcome.unwrap()
        self._failures = 0
        self._remotes.works(manifest.remote)
        if uploaded.range is None:
            self._busy = False
            if owner.found_damage(uploaded.lost):
                self._damaged = base
            self._rest(PAUSE_MIN_MS)
            return
        # Busy until it is stored.
        owner.add_range(manifest.stop, uploaded.range)

    def _upload_failed(self, remote: str, error: BaseException) -> None:
        if isinstance(error, Unavailable):
            self._remotes.failed(remote, str(error))
        elif isinstance(error, OSError):
            # Retention has deleted the segment meanwhile, or the disk cannot read it now.
            logger.info("%s: a segment was not uploaded: %s", self._owner.stream_title, error)
        elif not isinstance(error, Exception):
            return
        else:
            logger.error("%s: a segment was not uploaded", self._owner.stream_title, exc_info=error)
        self._failures += 1
        self._rest(pause_ms(PAUSE_MIN_MS, self._failures))

    def _rest(self, pause_ms: int) -> None:
        self._rests_until = self._services.clock.monotonic_ms() + pause_ms
        self._services.timers.wake(self, self._rests_until)

    # -- the table; see TableOwner ---------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return self._owner.stream_title

    @property
    def table_manifest(self) -> Manifest | None:
        owner, manifest = self._owner, self.manifest
        if self.table_format is None or owner.ended or not owner.may_upload:
            return None
        if manifest is None or manifest.remote != self.remote:
            return None
        # Otherwise the alarm about the store says it.
        return manifest if manifest.remote in self._remotes.stores.names else None

    def name_of_table(self, manifest: Manifest) -> TableName:
        return TableName(manifest.remote, *self._owner.stream_name, manifest.identity)

    @property
    def has_ended(self) -> bool:
        return bool(self._owner.ended)

    def wake_at(self, due_ms: int) -> None:
        self._services.timers.wake(self, due_ms)

    def end(self) -> None:
        """The owner has ended: the stream is deleted, or this node keeps it no more, or it has failed."""
        self._remotes.table_works(self.title)

    # -- deletions -------------------------------------------------------------------------------------------

    def delete(self, manifest: Manifest, removed: tuple[Range, ...]) -> None:
        """Delete the objects of ranges that have left the manifest."""
        self._doomed += [manifest.key(each) for each in removed]
        self.doom_table(manifest, removed)
        self._delete()

    def doom_table(self, manifest: Manifest, removed: tuple[Range, ...]) -> None:
        """Delete the files of ranges; those of a table that is written no more, too. A catalog forgets them
        before.
        """
        if not removed:
            return
        table = self.name_of_table(manifest)
        keys = [table.key(each.first, each.stop) for each in removed]
        if self._is_in_catalog(manifest):
            self.table.cut(table, removed[-1].stop, partial(self._doom, keys))
        else:
            self._doom(keys)

    def _is_in_catalog(self, manifest: Manifest) -> bool:
        in_use = self.table_format is not None or self.table.wrote
        return in_use and manifest.remote in self._remotes.stores.with_catalog

    def _doom(self, keys: list[str]) -> None:
        self._doomed += keys
        self._delete()

    def _delete(self) -> None:
        manifest = self.manifest
        doomed, self._doomed = self._doomed, []
        if manifest is None or not doomed:
            return
        objects = self._remotes.stores.objects(manifest.remote)

        def deleted(outcome: Outcome[Any]) -> None:
            if not isinstance(outcome, Error):
                return
            if isinstance(outcome.error, Unavailable):
                self._remotes.failed(manifest.remote, str(outcome.error))
            self._doomed = doomed + self._doomed
            if not self._owner.ended:
                self._rest(PAUSE_MAX_MS)

        self._remotes.stores.write(partial(objects.delete, doomed), deleted)

    def delete_all(self) -> None:
        """Delete all objects of the stream, which is deleted."""
        self.is_deleted = True
        manifest = self.manifest
        if manifest is not None:
            stores, title = self._remotes.stores, self._owner.stream_title
            objects = stores.objects(manifest.remote)
            directory = table_directory(*self._owner.stream_name)

            def delete() -> None:
                keys = [each.key for each in objects.found(manifest.identity)]
                objects.delete(keys + files_of(list(objects.found(directory)), manifest.identity))

            def dropped(outcome: Outcome[int]) -> None:
                if isinstance(outcome, Error):
                    logger.warning("%s is deleted, but not its table: %s", title, outcome.error)
                stores.write(delete, partial(_deleted_all, title))

            if self._is_in_catalog(manifest):
                stores.table(Drop(self.name_of_table(manifest)), dropped)
            else:
                stores.write(delete, partial(_deleted_all, title))

    # -- reads -----------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        place: SegmentPlace | None,
        wanted: Wanted | None,
        undecoded: bool,
        done: Callable[[Outcome[Read]], None],
    ) -> None:
        """Read batches, on disk or in the store, of a stream that has a manifest; see SegmentReader.read. The
        outcome may be Unavailable.
        """
        reader = self.reader
        assert reader is not None
        self.look_for(
            reader.is_remote(offset),
            partial(reader.read_local, offset, place, wanted, undecoded=undecoded),
            partial(reader.read, offset, place, wanted, undecoded=undecoded),
            done,
        )

    def find(self, time_ms: int, done: Callable[[Outcome[int]], None]) -> bool:
        """Find the offset of a time in the segments, on the disk or in the store; return whether these have
        it, and not the tail.
        """
        reader, segments = self.reader, self._log.segments
        if reader is None:
            return False
        remote = reader.is_remote_time(time_ms)
        if not remote and not (segments and segments[-1].size and segments[-1].last_ms >= time_ms):
            return False
        self.look_for(remote, partial(reader.find_local, time_ms), partial(reader.find, time_ms), done)
        return True

    def look_for(
        self,
        remote: bool,
        local: Callable[[], Any],
        anywhere: Callable[[], Any],
        done: Callable[[Outcome[Any]], None],
    ) -> None:
        """Let a thread call `local`, or `anywhere` if the message is not on the disk (`remote`)."""

        def has_read(outcome: Outcome[Any]) -> None:
            if isinstance(outcome, Error) and isinstance(outcome.error, (Moved, Unavailable)):
                self.fetch(anywhere, done)
            else:
                done(outcome)

        if remote:
            self.fetch(anywhere, done)
        else:
            self._services.store.read(local, has_read)

    def fetch(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        """Let a thread read from the store. While the store fails, it is tried again; after `timeout_ms` the
        outcome is Unavailable.
        """
        self._fetch(call, done, self._services.clock.monotonic_ms(), READ_PAUSE_MIN_MS)

    def _fetch(
        self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None], began: int, pause: int
    ) -> None:
        self._remotes.stores.read(call, partial(self._fetched, call, done, began, pause))

    def _fetched(
        self,
        call: Callable[[], Any],
        done: Callable[[Outcome[Any]], None],
        began: int,
        pause: int,
        outcome: Outcome[Any],
    ) -> None:
        manifest = self.manifest
        remote = "" if manifest is None else manifest.remote
        if not (isinstance(outcome, Error) and isinstance(outcome.error, Unavailable)):
            self._remotes.works(remote)
            done(outcome)
            return
        if not isinstance(outcome.error, Unknown):
            self._remotes.failed(remote, str(outcome.error))
        now = self._services.clock.monotonic_ms()
        if self._owner.ended or now - began >= self._remotes.timeout_ms:
            done(outcome)
            return
        following = min(2 * pause, READ_PAUSE_MAX_MS)
        self._later.append((now + pause, partial(self._fetch, call, done, began, following)))
        self._services.timers.wake(self, now + pause)

    # -- time ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Called at the time that was asked for."""
        now = self._services.clock.monotonic_ms()
        later, self._later = self._later, []
        for due, go_on in later:
            if due <= now or self._owner.ended:
                go_on()
            else:
                self._later.append((due, go_on))
        for due, _ in self._later:
            self._services.timers.wake(self, due)
        if not self._owner.ended:
            self.look()

    def failed(self, error: Exception) -> None:
        self._owner.failed(error)


def _deleted_all(title: str, outcome: Outcome[Any]) -> None:
    if isinstance(outcome, Error):
        logger.warning(
            "%s is deleted, but not all its objects; mqctl remote check finds them: %s", title, outcome.error
        )


__all__ = ["Tier", "TierOwner"]
