"""The write-ahead log: a file that small commits are written to, with one write each, before LMDB has them.

A transaction of LMDB changes several pages and syncs twice, even for a small change. A record of this log
takes one write that is synced. LMDB gets many of them later, in one transaction, and never sees the messages
that were acked meanwhile.

The file is a ring of blocks behind a header. It is never written beyond its first size, so that a write
changes nothing but its blocks. A record begins with a block, so a torn write harms no other record. Each has
the next sequence number. Which of them LMDB has is noted in LMDB, by the transaction that brings them: it
needs no order between the two files, and their blocks are used again.

A restart reads all blocks. A record is written after the sync of the one before. So the last one may be torn,
and a record that is missing before others was damaged by the disk. The salt in the header is part of each
record: what clients publish cannot look like one.
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from struct import Struct
from typing import Final
from zlib import crc32

from persistence.errors import FULL, CommitFailed, DataDirectoryUnusable, StorageFull

BLOCK_BYTES: Final = 4096
MAGIC: Final = b"mqd-log1"
SALT_BYTES: Final = 16
HEADER: Final = Struct(f"<8s{SALT_BYTES}s")
#: Salt, sequence number, bytes of the content, CRC-32 of everything else.
RECORD: Final = Struct(f"<{SALT_BYTES}sQII")


class LogDamaged(Exception):
    """The text says what is missing. The missing messages had been confirmed."""


class WriteAheadLog:
    """Made by `open`. Positions are counted in blocks. `write` is for a worker thread, all other methods for
    the loop's thread.
    """

    def __init__(self, file: int, path: Path, salt: bytes, blocks: int) -> None:
        self._file = file
        self._path = path
        self.salt = salt
        self._blocks = blocks
        #: Sequence number of the last record, and of the last that is on the disk.
        self.sequence = self.synced = 0
        #: Records that LMDB does not have: sequence number, first block, number of blocks.
        self._used: deque[tuple[int, int, int]] = deque()
        self._used_blocks = 0
        self._next = 1

    @classmethod
    def open(cls, path: Path, size: int, *, sync: bool = True, needed: bool = True) -> "WriteAheadLog":
        """Open the log, or make one of this many bytes, at least. `needed`: LMDB may lack records of it.

        Raises OSError, and DataDirectoryUnusable.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_DSYNC if sync else 0)
        try:
            file = os.open(path, flags)
        except FileNotFoundError:
            return cls._made(path, size, flags, sync)
        try:
            header = os.pread(file, HEADER.size, 0)
            magic, salt = HEADER.unpack(header) if len(header) == HEADER.size else (b"", b"")
            if magic == MAGIC:
                size = os.fstat(file).st_size
                # A copy may have left out its empty blocks. Without room for them writes wait, no more. Where
                # each block is written for this, no write of it must wait for the disk.
                with suppress(OSError), path.open("r+b") as unsynced:
                    os.posix_fallocate(unsynced.fileno(), 0, size)
                return cls(file, path, salt, size // BLOCK_BYTES)
            # Earlier versions could die between its size and its header.
            if any(header) or (header and needed):
                raise DataDirectoryUnusable(
                    f"{path} is not a log of mqd, or its beginning is damaged. Restore it from a backup; if that "
                    f"is impossible, empty it (: > {path}), which loses the last confirmed messages."
                )
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return cls._made(path, size, flags, sync)

    @classmethod
    def _made(cls, path: Path, size: int, flags: int, sync: bool) -> "WriteAheadLog":
        """Make an empty log. It gets its name when it is whole. Raises OSError."""
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        file = os.open(new, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            salt = _make(file, size, sync)
            new.rename(path)
            if sync:
                sync_directory(path.parent)
        except BaseException:
            os.close(file)
            raise
        return cls(file, path, salt, size // BLOCK_BYTES)

    def close(self) -> None:
        os.close(self._file)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._blocks * BLOCK_BYTES

    def recover(self, stored: int) -> list[bytes]:
        """Return the contents of the records that LMDB does not have, in order. `stored` is the last that it
        has.

        Raises LogDamaged.
        """
        found = self._records()
        self.sequence = self.synced = max([stored, *found])
        contents = []
        for sequence in range(stored + 1, self.sequence + 1):
            if sequence not in found:
                raise LogDamaged(f"record {sequence} is missing, but record {self.sequence} exists")
            contents.append(found[sequence])
        return contents

    def _records(self) -> dict[int, bytes]:
        """All whole records, those that LMDB has too, by sequence number."""
        data = memoryview(os.pread(self._file, self._blocks * BLOCK_BYTES, 0))
        found = {}
        for start in range(BLOCK_BYTES, len(data), BLOCK_BYTES):
            salt, sequence, size, checksum = RECORD.unpack_from(data, start)
            content = data[start + RECORD.size : start + RECORD.size + size]
            if salt == self.salt and len(content) == size and checksum == _checksum(salt, sequence, content):
                found[sequence] = bytes(content)
        return found

    def reserve(self, size: int) -> tuple[int, int] | None:
        """Take the next sequence number, and blocks for a content of this size; None if there is no room."""
        blocks = -(-(RECORD.size + size) // BLOCK_BYTES)
        first = self._next
        oldest = self._used[0][1] if self._used else self._blocks
        # Free are the blocks from `first` to the oldest record, or to the end and then from the beginning.
        if self._used and first <= oldest:
            end = oldest
        else:
            end = self._blocks
            if first + blocks > end:
                first, end = 1, oldest
        if first + blocks > end:
            return None
        self.sequence += 1
        self._used.append((self.sequence, first, blocks))
        self._used_blocks += blocks
        self._next = first + blocks
        return self.sequence, first

    def write(self, sequence: int, first: int, content: bytes) -> None:
        """Write a record, and wait for the disk. Raises StorageFull and CommitFailed."""
        head = RECORD.pack(self.salt, sequence, len(content), _checksum(self.salt, sequence, content))
        record = bytearray().join((head, content))
        # The rest of the block, too: the kernel need not read it first.
        record += bytes(-len(record) % BLOCK_BYTES)
        rest, position = memoryview(record), first * BLOCK_BYTES
        while rest:
            try:
                written = os.pwrite(self._file, rest, position)
            except OSError as error:
                if error.errno in FULL:
                    # Some file systems write to other blocks than those that the file has.
                    raise StorageFull(f"{self._path}: {error}") from error
                raise CommitFailed(f"{self._path}: {error}") from error
            if not written:
                raise CommitFailed(
                    f"{self._path}: only {len(record) - len(rest)} of {len(record)} bytes were written"
                )
            # A disk that gets full takes a part; the next write says why.
            rest, position = rest[written:], position + written
        self.synced = sequence

    def stored(self, sequence: int) -> None:
        """LMDB has all records up to this one."""
        while self._used and self._used[0][0] <= sequence:
            self._used_blocks -= self._used.popleft()[2]

    @property
    def is_needed(self) -> bool:
        """Return whether the log has records that LMDB does not have."""
        return bool(self._used)

    @property
    def is_half_full(self) -> bool:
        return 2 * self._used_blocks >= self._blocks


def sync_directory(directory: Path) -> None:
    """Make the names in it durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _make(file: int, size: int, sync: bool) -> bytes:
    """Give an empty file its size and its header; return the salt. Raises OSError."""
    salt = token_bytes(SALT_BYTES)
    os.posix_fallocate(file, 0, size // BLOCK_BYTES * BLOCK_BYTES)
    os.pwrite(file, HEADER.pack(MAGIC, salt).ljust(BLOCK_BYTES, b"\0"), 0)
    if sync:
        os.fsync(file)
    return salt


def _checksum(salt: bytes, sequence: int, content: bytes | memoryview) -> int:
    return crc32(content, crc32(b"%d %d" % (sequence, len(content)), crc32(salt)))
