"""Errors of a data directory. The texts name the directory and the remedy."""

import errno
import os
from typing import Final

#: Errors of the system that say that a disk, or its user's share of it, is full.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class PersistenceError(Exception):
    """Base of all errors of this package."""


class DataDirectoryInUse(PersistenceError):
    """Another process holds the lock of the directory."""


class DataDirectoryUnusable(PersistenceError):
    """The directory can't be made, opened or understood."""


class SchemaMismatch(PersistenceError):
    """A version of the program with another layout wrote the directory."""


class CommitFailed(PersistenceError):
    """A sync failed for another reason than lack of space: the state of the disk is unknown, so the node must
    stop.
    """


class StorageFull(PersistenceError):
    """The map or the disk is full. The transaction is undone and can be tried again."""


class StoreCorrupt(BaseException):
    """A file of the store is damaged beyond its records: none of its contents is reliable, so the process
    ends.

    Only the top of the program catches this. It is no Exception because many guards confine a failure to one
    connection, link or request, and none of them may keep a node running on such a file.
    """

    def __init__(self, file: str | os.PathLike[str], what: str, *, lasts: bool = True) -> None:
        """`lasts`: true if the file is kept from one start to the next."""
        super().__init__(f"the data file {os.fspath(file)} is damaged: {what}")
        self.lasts = lasts


class CorruptRecord(PersistenceError):
    """A record on disk does not match its checksum. It is never served."""

    def __init__(self, what: str, queue_id: int | None = None, first_seq: int | None = None) -> None:
        super().__init__(what)
        self.queue_id = queue_id
        self.first_seq = first_seq


class EntryLost(PersistenceError):
    """An entry of a Raft group is missing or damaged. It is never served; a peer may have it."""

    def __init__(self, group: int, index: int, what: str = "is missing") -> None:
        super().__init__(f"entry {index} of Raft group {group} {what}")
        self.group = group
        self.index = index


class CorruptSnapshot(PersistenceError):
    """The snapshot of a Raft group is damaged. It is never served; a peer may have one."""

    def __init__(self, group: int, what: str) -> None:
        super().__init__(f"the snapshot of Raft group {group} {what}")
        self.group = group
