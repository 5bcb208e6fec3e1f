"""The object stores of a node, as its streams see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from outcome import Outcome, capture

from persistence.streams.log import StreamLog
from persistence.streams.remote.cache import ObjectCache
from persistence.streams.remote.objects import NoObjects, Objects
from persistence.streams.remote.reading import TieredReader


class RemoteStorePort(Protocol):
    """See persistence.streams.remote.stores.RemoteStores."""

    @property
    def stopping(self) -> Any: ...

    @property
    def names(self) -> list[str]: ...

    def objects(self, name: str) -> Objects: ...

    def reader(self, name: str, log: StreamLog) -> TieredReader: ...

    def new_identity(self) -> str: ...

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def write(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None: ...


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


class Remotes:
    """The stores, and which of them fail at the moment."""

    __slots__ = ("_failing", "_on_change", "stores", "timeout_ms")

    def __init__(
        self,
        stores: RemoteStorePort,
        on_change: Callable[[str], None] = lambda text: None,
        *,
        timeout_ms: int = 60_000,
    ) -> None:
        """`on_change` gets a text about the stores that fail; an empty one if all work again."""
        self.stores = stores
        self._on_change = on_change
        #: Time for which a reader waits for a store that fails.
        self.timeout_ms = timeout_ms
        self._failing: dict[str, str] = {}

    def failed(self, name: str, why: str) -> None:
        if self._failing.get(name) != why:
            self._failing[name] = why
            self._tell()

    def works(self, name: str) -> None:
        if self._failing and self._failing.pop(name, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._on_change("; ".join([f"remote '{name}': {why}" for name, why in sorted(self._failing.items())]))


__all__ = ["NoStores", "RemoteStorePort", "Remotes"]
