"""A file system in memory that crashes: after a crash, data that was not synced may be there whole, in part
or not at all.
"""

import errno
import random
from collections.abc import Sequence
from pathlib import Path


class Crashed(BaseException):
    """The machine went down in the middle of a call."""


class CrashingFiles:
    """See persistence.streams.files.Files. Writes reach the disk in blocks, in any order; names reach it
    separately.
    """

    BLOCK = 64

    def __init__(self) -> None:
        self.now: dict[Path, bytearray] = {}
        self.synced: dict[Path, bytes] = {}
        #: The names that a crash certainly leaves.
        self.names_synced: set[Path] = set()
        #: Renames that a crash may undo, in order: old name, new name, and the earlier content of the new one
        #: on the disk.
        self.renames: list[tuple[Path, Path, bytes | None]] = []
        #: Calls with changes until the crash; None for never.
        self.left: int | None = None
        #: Bytes that all files together may take; None for no limit.
        self.room: int | None = None
        self.random = random.Random(0)

    @property
    def used(self) -> int:
        """Bytes that all files take."""
        return sum(map(len, self.now.values()))

    def crash(self) -> None:
        """Leave a state that a crash may leave."""
        kept = self.random.randint(0, len(self.renames))
        for old, new, before in reversed(self.renames[kept:]):
            if new in self.now:
                self.now[old], self.synced[old] = self.now.pop(new), self.synced.pop(new)
                self.names_synced.add(old)
            self.names_synced.discard(new)
            if before is not None:
                self.now[new], self.synced[new] = bytearray(before), before
                self.names_synced.add(new)
        for _, new, _ in self.renames[:kept]:
            self.names_synced.add(new)
        self.renames = []
        after: dict[Path, bytearray] = {}
        for path in sorted({*self.now, *self.synced}):
            named = path in self.names_synced
            exists = path in self.now
            if named != exists and self.random.random() < 0.5:
                named = exists
            if named and exists:
                after[path] = self._torn(self.synced.get(path, b""), bytes(self.now[path]))
            elif named:
                # The file was removed, and is back.
                after[path] = bytearray(self.synced.get(path, b""))
        self.now = after
        self.synced = {path: bytes(data) for path, data in after.items()}
        self.names_synced = set(after)
        self.left = None

    def _torn(self, synced: bytes, now: bytes) -> bytearray:
        size = self.random.choice((len(now), len(synced), self.random.randint(0, max(len(now), len(synced)))))
        # A file that grew keeps what it had, and one that was cut what was left of it.
        size = max(size, min(len(now), len(synced)))
        data = bytearray(synced.ljust(size, b"\0")[:size])
        for at in range(0, size, self.BLOCK):
            if self.random.random() < 0.5:
                block = now[at : min(at + self.BLOCK, size)]
                data[at : at + len(block)] = block
        return data

    def _step(self) -> bool:
        """Return whether the machine goes down within this call."""
        if self.left is None:
            return False
        self.left -= 1
        return self.left <= 0

    def names(self, directory: Path) -> list[str]:
        return [path.name for path in self.now if path.parent == directory]

    def make(self, directory: Path) -> None: ...

    def size(self, path: Path) -> int:
        return len(self._file(path))

    def read(self, path: Path, position: int, size: int) -> bytes:
        if position < 0:
            raise OSError(22, "a negative position")
        return bytes(self._file(path)[position : position + size])

    def write(self, path: Path, position: int, parts: Sequence[bytes]) -> None:
        crashes = self._step()
        data = self.now.setdefault(path, bytearray())
        whole = written = b"".join(parts)
        if crashes:
            written = written[: self.random.randint(0, len(written))]
        if self.room is not None:
            # Existing bytes are overwritten in place.
            end = max(len(data) + max(self.room - self.used, 0), position)
            written = written[: end - position]
        if written:
            data += bytes(max(position - len(data), 0))
            data[position : position + len(written)] = written
        if crashes:
            raise Crashed
        if len(written) < len(whole):
            raise OSError(errno.ENOSPC, "no space left on device", str(path))

    def sync(self, path: Path) -> None:
        if self._step():
            raise Crashed
        self.synced[path] = bytes(self._file(path))

    def sync_names(self, directory: Path) -> None:
        if self._step():
            raise Crashed
        self.renames = [each for each in self.renames if each[0].parent != directory]
        self.names_synced = {
            *(path for path in self.names_synced if path.parent != directory),
            *(path for path in self.now if path.parent == directory),
        }
        self.synced = {
            path: data for path, data in self.synced.items() if path in self.now or path.parent != directory
        }

    def cut(self, path: Path, size: int) -> None:
        if self._step():
            raise Crashed
        data = self._file(path)
        del data[size:]
        data += bytes(size - len(data))

    def rename(self, path: Path, name: str) -> None:
        if self._step():
            raise Crashed
        new = path.parent / name
        assert self.synced.get(path) == bytes(self._file(path)), "a file that is renamed was synced"
        before = self.synced.get(new) if new in self.names_synced and new in self.now else None
        self.renames.append((path, new, before))
        self.now[new], self.synced[new] = self.now.pop(path), self.synced.pop(path)
        self.names_synced.discard(path)

    def remove(self, path: Path) -> None:
        if self._step():
            raise Crashed
        self.now.pop(path, None)

    def remove_all(self, directory: Path) -> None:
        for path in [path for path in self.now if path.parent == directory]:
            self.remove(path)

    def _file(self, path: Path) -> bytearray:
        try:
            return self.now[path]
        except KeyError:
            raise FileNotFoundError(2, "no such file", str(path)) from None
