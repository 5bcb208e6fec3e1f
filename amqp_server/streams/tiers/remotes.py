"""The object stores of a node, as its streams see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from outcome import Error, Outcome, capture

from persistence.streams.log import StreamLog
from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.objects import NoObjects, Objects, no_remote
from persistence.streams.remote.reading import TieredReader
from persistence.streams.remote.table import Job

#: The longest pause after failures.
PAUSE_MAX_MS: Final = 60_000
#: Tables that one alarm names.
TABLES_TOLD_MAX: Final = 5


def pause_ms(first_ms: int, failures: int) -> int:
    """Return the pause after so many failures in a row; `first_ms` is the one after the first."""
    return min(first_ms << min(failures - 1, 16), PAUSE_MAX_MS)


class RemoteStorePort(Protocol):
    """See persistence.streams.remote.stores.RemoteStores."""

    @property
    def stopping(self) -> Any: ...

    @property
    def names(self) -> list[str]: ...

    def objects(self, name: str) -> Objects: ...

    def reader(self, name: str, log: StreamLog) -> TieredReader: ...

    @property
    def with_catalog(self) -> frozenset[str]: ...

    def new_identity(self) -> str: ...

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def write(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def table(self, job: Job, done: Callable[[Outcome[int]], None]) -> None: ...


class NoStores:
    """The stores of a node that has none configured, without the threads of RemoteStores."""

    @property
    def stopping(self) -> Any:
        return None

    @property
    def names(self) -> list[str]:
        return []

    def objects(self, name: str) -> Objects:
        return NoObjects(name)

    def reader(self, name: str, log: StreamLog) -> TieredReader:
        return TieredReader(log, NoObjects(name), ObjectCache(0))

    def new_identity(self) -> str:
        raise NotImplementedError

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        done(capture(call))

    def write(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        done(capture(call))

    @property
    def with_catalog(self) -> frozenset[str]:
        return frozenset()

    def table(self, job: Job, done: Callable[[Outcome[int]], None]) -> None:
        done(Error(no_remote(job.table.remote)))


class Remotes:
    """The stores, and which of them fail at the moment."""

    __slots__ = ("_failing", "_on_change", "_on_tables", "_tables", "stores", "timeout_ms")

    def __init__(
        self,
        stores: RemoteStorePort,
        on_change: Callable[[str], None] = lambda text: None,
        *,
        on_tables: Callable[[str], None] = lambda text: None,
        timeout_ms: int = 60_000,
    ) -> None:
        """`on_change` gets a text about the stores that fail, and `on_tables` one about the tables that
        cannot be written; an empty one if all work again.
        """
        self.stores = stores
        self._on_change = on_change
        #: Time for which a reader waits for a store that fails.
        self.timeout_ms = timeout_ms
        self._on_tables = on_tables
        self._failing: dict[str, str] = {}
        #: By the titles of their streams.
        self._tables: dict[str, str] = {}

    def failed(self, name: str, why: str) -> None:
        if self._failing.get(name) != why:
            self._failing[name] = why
            self._tell()

    def works(self, name: str) -> None:
        if self._failing and self._failing.pop(name, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._on_change("; ".join([f"remote '{name}': {why}" for name, why in sorted(self._failing.items())]))

    def table_failed(self, title: str, why: str) -> None:
        if self._tables.get(title) != why:
            self._tables[title] = why
            self._tell_tables()

    def table_works(self, title: str) -> None:
        if self._tables and self._tables.pop(title, None) is not None:
            self._tell_tables()

    def _tell_tables(self) -> None:
        told = [f"{title}: {why}" for title, why in sorted(self._tables.items())]
        more = f"; and {len(told) - TABLES_TOLD_MAX} more" if len(told) > TABLES_TOLD_MAX else ""
        self._on_tables("; ".join(told[:TABLES_TOLD_MAX]) + more)


__all__ = ["PAUSE_MAX_MS", "NoStores", "RemoteStorePort", "Remotes", "pause_ms"]
