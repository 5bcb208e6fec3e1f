"""Does the jobs of a broker: see persistence.streams.remote.table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqp_server.startup.stream_remotes import StreamRemote
from persistence.streams.remote.objects import Objects, Unavailable, no_remote
from persistence.streams.remote.table import (
    Cut,
    Drop,
    Find,
    Job,
    TableName,
    Write,
    files_of,
    offsets_of_table,
)
from stream_tables.catalog import Catalog, open_catalog


class Tables:
    """The tables of all streams of a broker."""

    def __init__(
        self,
        remotes: Mapping[str, StreamRemote],
        open_objects: Callable[[StreamRemote], Objects],
        group_bytes: int,
    ) -> None:
        """`open_objects` opens a store, and raises Unavailable."""
        self._remotes = remotes
        self._open = open_objects
        self._group_bytes = group_bytes
        self._objects: dict[str, Objects] = {}
        self._catalogs: dict[str, Catalog] = {}

    def do(self, job: Job) -> int:
        """Do a job; return the offset that Find asks for, and 0 for other jobs. Raises Unavailable."""
        match job:
            case Find():
                return self._find(job)
            case Write():
                self._write(job)
            case Cut():
                catalog = self._catalog(job.table)
                if catalog is not None:
                    catalog.cut(job.table, job.before)
            case Drop():
                catalog = self._catalog(job.table)
                if catalog is not None:
                    catalog.drop(job.table)
        return 0

    def _store(self, name: str) -> Objects:
        found = self._objects.get(name)
        if found is None:
            if name not in self._remotes:
                raise no_remote(name)
            found = self._objects[name] = self._open(self._remotes[name])
        return found

    def _catalog(self, table: TableName) -> Catalog | None:
        """Return the catalog in which the table is; None if the store has none."""
        remote = self._remotes.get(table.remote)
        if remote is None or not remote.catalog_file:
            return None
        found = self._catalogs.get(table.remote)
        if found is None:
            found = self._catalogs[table.remote] = open_catalog(remote)
        return found

    def _find(self, job: Find) -> int:
        objects, table, ranges = self._store(job.table.remote), job.table, job.ranges
        self._delete_old(objects, table, ranges[0][0])
        # Files are written in order, so the first missing one is found by halving.
        low, high = 0, len(ranges)
        while low < high:
            middle = (low + high) // 2
            if objects.size(table.key(*ranges[middle])) is None:
                high = middle
            else:
                low = middle + 1
        written = ranges[low - 1][1] if low else -1
        catalog = self._catalog(table)
        return written if catalog is None else min(written, catalog.next_offset(table))

    def _delete_old(self, objects: Objects, table: TableName, first: int) -> None:
        """Delete files of messages that were deleted: a broker that was killed before it could, or in the
        middle of writing one of them, has left them.
        """
        files = files_of(list(objects.found(table.directory)), table.identity)
        old = [key for key in files if offsets_of_table(key)[1] <= first]
        if not old:
            return
        catalog = self._catalog(table)
        if catalog is not None:
            catalog.cut(table, first)
        objects.delete(old)

    def _write(self, job: Write) -> None:
        try:
            # Only who writes needs it.
            from stream_tables.file import TableFile
        except ImportError:
            raise Unavailable('the library pyarrow is missing: pip install "mqd[table]"') from None
        catalog = self._catalog(job.table)
        file = TableFile(self._store(job.table.remote), job, self._group_bytes)
        file.write()
        if catalog is not None:
            catalog.add(job.table, file.key, job.range.stop)


__all__ = ["Tables"]
