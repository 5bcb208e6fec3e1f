"""The tables of streams as the driver knows them: which files have which offsets, and whether they are the
stream's.

The broker says which offsets there are; a file is another place to read some of them. So it does not matter
which files a look finds: the rows are the same.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_sink.option_values import BadOption
from spark_sink.options import SourceOptions
from spark_sink.rows import source_schema
from spark_sink.source.consumer import log
from spark_sink.streams.offsets import Partition, Range
from spark_sink.streams.probe import Probe
from spark_sink.streams.slices import Slice, rows
from spark_sink.streams.table_files import TableFile, directory_of, parts, within
from spark_sink.streams.table_rows import NoFile, last_offset
from spark_sink.streams.table_store import open_store

#: How long a list of files holds.
LISTED_S = 60.0


class OtherStream(Exception):
    """The files are not those of the stream that the broker has."""


class History:
    """All methods raise BadOption, StoreFails, OtherStream, AmqpError. Without the option there are no
    files.
    """

    def __init__(self, options: SourceOptions, probe: Probe) -> None:
        self._options = options
        self._probe = probe
        self._listed: dict[Partition, tuple[float, Sequence[TableFile]]] = {}
        #: The identity of each stream, once a message of a file was found in the broker, too; empty if no
        #: file can be judged.
        self._identities: dict[Partition, str] = {}
        #: Partitions that are read behind their tables. What comes to a table later was read already.
        self._passed: set[Partition] = set()

    def check(self, partitions: Collection[Partition]) -> None:
        """Say so if there is nothing at all: the option is probably wrong."""
        if self._options.history is None or not partitions:
            return
        if not any(self._list(each) for each in sorted(partitions)):
            first = self._directory(min(partitions))
            others = f" nor in those of the other {len(partitions) - 1}" if len(partitions) > 1 else ""
            raise BadOption(
                f"option 'history': there is no file of a table in {self._store.path(first)}{others}. Give the URL of the "
                "store as the broker's stream_remotes has it, and see `mqctl list_queues name table "
                "table_next_offset`: a table has its first file when the first segment of its stream is full"
            )

    def files(self, partition: Partition, start: int, end: int) -> tuple[TableFile, ...]:
        """Return the files that have any of these offsets."""
        if self._options.history is None or partition in self._passed:
            return ()
        files = self._own(partition)
        if files and start >= files[-1].stop:
            self._passed.add(partition)
        return within(start, end, files)

    def missing(self, partition: Partition, start: int, end: int) -> list[tuple[int, int]]:
        """Return the gaps in these offsets, which the broker does not have, that no file fills: the first
        offset of each, and the one behind its last.
        """
        if self._options.history is None:
            return [(start, end)] if start < end else []
        files = self._own(partition, fresh=True)
        return [(each.start, each.end) for each in parts(start, end, files) if each.file is None]

    @property
    def _store(self) -> Any:
        assert self._options.history is not None
        return open_store(self._options.history)

    def _directory(self, partition: Partition) -> str:
        return directory_of(self._options.login.vhost, self._probe.queue(partition))

    def _list(self, partition: Partition, *, fresh: bool = False) -> Sequence[TableFile]:
        """Return all files in the directory, by their offsets."""
        now = time.monotonic()
        at, files = self._listed.get(partition, (0.0, ()))
        if partition not in self._listed or now - at > (0.0 if fresh else LISTED_S):
            files = sorted(self._store.files(self._directory(partition)), key=lambda each: each.first)
            self._listed[partition] = now, files
        return files

    def _own(self, partition: Partition, *, fresh: bool = False) -> Sequence[TableFile]:
        """Return the files of the stream that the broker has."""
        files = self._list(partition, fresh=fresh)
        if files and partition not in self._identities:
            self._identify(partition, files)
        identity = self._identities.get(partition)
        return [each for each in files if each.identity == identity]

    def _identify(self, partition: Partition, files: Sequence[TableFile]) -> None:
        """Look which of the streams, whose files are in the directory, the broker has. Files that are all
        before its first message cannot be judged, and it deletes them soon.
        """
        found = {
            identity: self._is_own(partition, [each for each in files if each.identity == identity])
            for identity in sorted({each.identity for each in files})
        }
        own = [identity for identity, same in found.items() if same]
        if own:
            self._identities[partition] = own[0]
            return
        if False in found.values():
            raise OtherStream(
                f"option 'history': the files in {self._store.path(self._directory(partition))} are not those of stream "
                f"'{self._probe.queue(partition)}': the broker has other messages at their offsets. They are of a stream "
                "that was deleted, or of another broker with the same store: remove them, or read without the option"
            )
        self._identities[partition] = ""
        log.warning(
            "stream '%s': no file of its table has messages that the broker has; they are not read",
            self._probe.queue(partition),
        )

    def _is_own(self, partition: Partition, files: Sequence[TableFile]) -> bool | None:
        """Return whether a message of these files is in the broker, too; None if they have none that it could
        have.
        """
        bounds = self._probe.behind({partition: 0}).get(partition)
        if bounds is None:
            return None
        for file in reversed(within(bounds.first, bounds.next, files)):
            try:
                offset = last_offset(self._store, file, bounds.first, bounds.next)
            except NoFile:
                continue
            if offset is not None:
                wanted = Range(partition, offset, offset + 1)
                here, there = self._message(wanted, (file,)), self._message(wanted, ())
                # Retention may have been faster.
                return here.equals(there) if here.num_rows and there.num_rows else None
        return None

    def _message(self, wanted: Range, files: Sequence[TableFile]) -> pa.Table:
        options = replace(self._options, fail_on_data_loss=False)
        schema = source_schema(of_stream=True)
        batches = list(rows(options, schema, Slice(self._probe.queue(wanted.partition), wanted, 0, files)))
        return pa.Table.from_batches(batches) if batches else pa.table({})


__all__ = ["History", "OtherStream"]
