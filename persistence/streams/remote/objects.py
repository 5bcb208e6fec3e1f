"""An object store as streams use it. Threads make the calls; a test replaces it by a store that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Unavailable(Exception):
    """The store cannot be reached, refuses, or has returned other bytes than were stored. Perhaps it will be
    different later.

    It is no OSError: the disk is not concerned.
    """


class Absent(Unavailable):
    """The store has no object of this key."""


class Unknown(Unavailable):
    """It is not known yet whether the store has it; the store is not to blame."""


class Found(NamedTuple):
    key: str
    size: int


class Objects(Protocol):
    """All methods raise Unavailable."""

    def put(self, key: str, parts: Iterator[bytes], size: int | None) -> None:
        """Store an object of `size` bytes, None: as many as there are; it is there whole or not at all."""

    def read(self, key: str, position: int, size: int) -> bytes:
        """Return fewer bytes only at the end of the object. Raises Absent."""

    def size(self, key: str) -> int | None:
        """Return the size of an object; None if there is none."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing one is no error."""

    def found(self, prefix: str) -> Iterator[Found]:
        """Yield all objects whose keys begin with these whole parts of a key."""


def put_whole(objects: Objects, key: str, parts: Iterator[bytes]) -> None:
    """Store an object whose size is known when it is made, and look whether it is whole: nobody can see that
    later. Raises Unavailable.
    """
    made = 0

    def counted() -> Iterator[bytes]:
        nonlocal made
        for part in parts:
            made += len(part)
            yield part

    objects.put(key, counted(), None)
    size = objects.size(key)
    if size != made:
        objects.delete([key])
        raise Unavailable(f"{key} has {size} bytes after {made} were stored")


def no_remote(name: str) -> Unavailable:
    """Return the error of a store that is not configured."""
    return Unavailable(f"this node has no remote '{name}' (stream_remotes)")


class NoObjects:
    """Stands for a store that is not configured."""

    def __init__(self, name: str) -> None:
        self._name = name

    def put(self, key: str, parts: Iterator[bytes], size: int | None) -> None:
        raise no_remote(self._name)

    def read(self, key: str, position: int, size: int) -> bytes:
        raise no_remote(self._name)

    def size(self, key: str) -> int | None:
        raise no_remote(self._name)

    def delete(self, keys: Sequence[str]) -> None:
        raise no_remote(self._name)

    def found(self, prefix: str) -> Iterator[Found]:
        raise no_remote(self._name)


__all__ = ["Absent", "Found", "NoObjects", "Objects", "Unavailable", "Unknown", "no_remote", "put_whole"]
