"""An object store in memory that fails, lies and stops in the middle; and its threads, which work when the
test says so.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from outcome import Outcome, capture

from amqp_server.startup.stream_remotes import StreamRemote
from persistence.streams.log import StreamLog
from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.objects import Absent, Found, NoObjects, Objects, Unavailable, put_whole
from persistence.streams.remote.reading import TieredReader
from persistence.streams.remote.table import Job, Write
from stream_tables.work import Tables


class SimulatedObjects:
    """See persistence.streams.remote.objects.Objects."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        #: All calls fail.
        self.away = False
        #: Objects are stored in part, without an error.
        self.halves = False
        #: Reads return some other bytes.
        self.lies = False
        #: Puts that reach the store, although the caller gets an error.
        self.deaf = False
        #: Keys whose content was replaced by other bytes.
        self.replaced: list[str] = []
        self.reads = 0
        self.random = random.Random(0)

    def _call(self) -> None:
        if self.away:
            raise Unavailable("the store is away")

    def put(self, key: str, parts: Iterator[bytes], size: int | None) -> None:
        self._call()
        data = b"".join(parts)
        assert size in (None, len(data))
        if self.halves:
            data = data[: len(data) // 2]
        # What was stored in part may become whole.
        if not data.startswith(self.objects.get(key, b"")):
            self.replaced.append(key)
        self.objects[key] = data
        if self.deaf:
            raise Unavailable("no answer")

    def read(self, key: str, position: int, size: int) -> bytes:
        self._call()
        self.reads += 1
        if key not in self.objects:
            raise Absent(f"{key} is missing")
        data = self.objects[key][position : position + size]
        if self.lies and data:
            at = self.random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    def size(self, key: str) -> int | None:
        self._call()
        return len(self.objects[key]) if key in self.objects else None

    def delete(self, keys: Sequence[str]) -> None:
        self._call()
        for key in keys:
            self.objects.pop(key, None)

    def found(self, prefix: str) -> Iterator[Found]:
        self._call()
        for key, data in sorted(self.objects.items()):
            if not prefix or key.startswith(f"{prefix}/"):
                yield Found(key, len(data))


class PlainTables(Tables):
    """Writes files that have the first offset and the one behind the last, without a library."""

    def __init__(self, name: str, objects: Objects) -> None:
        super().__init__({name: StreamRemote(name, "file:///nowhere")}, lambda remote: objects, 0)
        self._plain = objects

    def _write(self, job: Write) -> None:
        key = job.table.key(job.range.first, job.range.stop)
        if self._plain.size(key) is None:
            put_whole(self._plain, key, iter([f"{job.range.first} {job.range.stop}".encode()]))


class SimulatedStores:
    """See persistence.streams.remote.stores.RemoteStores."""

    def __init__(self, stores: Mapping[str, Objects], name: str = "node", cache_bytes: int = 1 << 20) -> None:
        self.stores = stores
        #: Writes tables; see persistence.streams.remote.table_process.
        self.tables: Callable[[Job], int] = _no_tables
        self.with_catalog: frozenset[str] = frozenset()
        self.stopping = threading.Event()
        self.jobs: list[Callable[[], None]] = []
        self.cache = ObjectCache(cache_bytes)
        self._name = name
        self._identities = 0

    @property
    def names(self) -> list[str]:
        return list(self.stores)

    def objects(self, name: str) -> Objects:
        return self.stores.get(name) or NoObjects(name)

    def reader(self, name: str, log: StreamLog) -> TieredReader:
        return TieredReader(log, self.objects(name), self.cache)

    def new_identity(self) -> str:
        self._identities += 1
        return f"{self._name}-{self._identities}"

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self.jobs.append(lambda: done(capture(call)))

    def write(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self.jobs.append(lambda: done(capture(call)))

    def table(self, job: Job, done: Callable[[Outcome[int]], None]) -> None:
        self.write(partial(self.tables, job), done)


def _no_tables(job: Job) -> int:
    raise NotImplementedError


__all__ = ["PlainTables", "SimulatedObjects", "SimulatedStores"]
