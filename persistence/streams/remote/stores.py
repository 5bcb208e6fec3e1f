"""The object stores of a node, and the threads that read from them and write to them.

These threads wait for the network. They are apart from those that read segments, so a slow store holds up
nobody whose messages are on the disk.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import trio
from outcome import Outcome, Value, capture

from persistence.loop_calls import to_this_loop
from persistence.streams.log import StreamLog
from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.objects import Found, NoObjects, Objects
from persistence.streams.remote.reading import TieredReader
from persistence.streams.remote.table import Job
from persistence.streams.remote.table_process import TableProcess
from persistence.worker import Worker

T = TypeVar("T")

#: Threads that upload and delete.
UPLOADERS: Final = 2


class LazyObjects:
    """A store that is opened when it is used first: that may import a library, and read credentials."""

    def __init__(self, open: Callable[[], Objects]) -> None:
        """`open` raises Unavailable."""
        self._open = open
        self._opened: Objects | None = None
        self._lock = threading.Lock()

    def _objects(self) -> Objects:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def put(self, key: str, parts: Iterator[bytes], size: int | None) -> None:
        self._objects().put(key, parts, size)

    def read(self, key: str, position: int, size: int) -> bytes:
        return self._objects().read(key, position, size)

    def size(self, key: str) -> int | None:
        return self._objects().size(key)

    def delete(self, keys: Sequence[str]) -> None:
        self._objects().delete(keys)

    def found(self, prefix: str) -> Iterator[Found]:
        return self._objects().found(prefix)


class _Job:
    __slots__ = ("_call", "done", "outcome")

    def __init__(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self._call = call
        self.done = done
        self.outcome: Outcome[Any] = Value(None)

    def run(self) -> _Job:
        self.outcome = capture(self._call)
        return self


class RemoteStores:
    """All calls on the loop's thread, but for those of the stores themselves. Unless `run` runs, jobs are
    done at once.
    """

    def __init__(
        self,
        opens: Mapping[str, Callable[[], Objects]],
        *,
        cache_bytes: int = 64 << 20,
        readers: int = 4,
        tables: TableProcess | None = None,
        with_catalog: frozenset[str] = frozenset(),
    ) -> None:
        """`opens` opens each store by its name in the configuration. `with_catalog` names those whose tables
        are in a catalog, too.
        """
        self._stores = {name: LazyObjects(each) for name, each in opens.items()}
        self.cache = ObjectCache(cache_bytes)
        self._readers_count = readers
        self._readers: Worker[_Job] | None = None
        self._uploaders: Worker[_Job] | None = None
        self._tables = tables
        self._table_writer: Worker[_Job] | None = None
        self.with_catalog = with_catalog
        self._finished: deque[_Job] = deque()
        self._called = trio.Event()
        #: Set when the node ends.
        self.stopping = threading.Event()

    @property
    def names(self) -> list[str]:
        return list(self._stores)

    def objects(self, name: str) -> Objects:
        """Return a store; one that is not configured is never available."""
        return self._stores.get(name) or NoObjects(name)

    def reader(self, name: str, log: StreamLog) -> TieredReader:
        return TieredReader(log, self.objects(name), self.cache)

    def new_identity(self) -> str:
        """Return a name for a stream's objects that no other stream has."""
        return uuid.uuid4().hex

    def read(self, call: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """Let a reading thread do this; `done` is called in a turn."""
        self._give(self._readers, _Job(call, done))

    def write(self, call: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """Let an uploading thread do this; `done` is called in a turn."""
        self._give(self._uploaders, _Job(call, done))

    def table(self, job: Job, done: Callable[[Outcome[int]], None]) -> None:
        """Let the process for tables do this job, after those before it; `done` is called in a turn."""
        assert self._tables is not None
        self._give(self._table_writer, _Job(partial(self._tables.do, job), done))

    def _give(self, worker: Worker[_Job] | None, job: _Job) -> None:
        if worker is None:
            job.run()
            job.done(job.outcome)
        else:
            worker.give(job.run)

    async def run(self, in_turn: Callable[..., None]) -> None:
        """Report finished jobs, each in a turn of the node, until cancelled."""
        report, done = to_this_loop(), self._report
        names = [f"stream-remote-reader-{number}" for number in range(self._readers_count)]
        readers = self._readers = Worker(names, report, done)
        names = [f"stream-remote-uploader-{number}" for number in range(UPLOADERS)]
        uploaders = self._uploaders = Worker(names, report, done)
        if self._tables is not None:
            # The process is not started before there is a job.
            self._table_writer = Worker(["stream-table-writer"], report, done)
        try:
            while True:
                await self._called.wait()
                self._called = trio.Event()
                while self._finished:
                    job = self._finished.popleft()
                    in_turn(job.done, job.outcome)
                    await trio.lowlevel.checkpoint()
        finally:
            tables, self._table_writer = self._table_writer, None
            self._readers = self._uploaders = None
            self.stopping.set()
            readers.stop()
            uploaders.stop()
            if tables is not None and self._tables is not None:
                tables.stop()
                self._tables.stop()

    def _report(self, outcome: Outcome[_Job]) -> None:
        self._finished.append(outcome.unwrap())
        self._called.set()


__all__ = ["LazyObjects", "RemoteStores"]
