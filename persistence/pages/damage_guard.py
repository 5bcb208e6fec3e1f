"""Turns the errors of a damaged LMDB file into one exception that ends the process.

LMDB has no checksums: a damaged page causes one of these errors, or records that fail their own checksums, or
nothing. A process that continued would read the same page again and again, or overwrite data that can still
be saved.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType

import lmdb

from persistence.errors import StoreCorrupt

#: struct.error: a key has the wrong length for its table. SystemError: py-lmdb's cursors raise only this for
#: some damaged pages. BadTxnError follows any of the others.
DAMAGE = (
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
    struct.error,
    SystemError,
)

#: Exceptions of writes to LMDB.
WRITE_ERRORS = (lmdb.Error, *DAMAGE)


class Guard:
    """Surrounds all accesses to one data file: `with guard: …`."""

    __slots__ = ("_data_file", "_found", "_lasts")

    def __init__(self, data_file: Path, *, lasts: bool) -> None:
        """`lasts`: true if the file is kept from one start to the next."""
        self._data_file = data_file
        self._lasts = lasts
        self._found: StoreCorrupt | None = None

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DAMAGE):
            raise self.damaged(error) from error

    def check(self) -> None:
        """Raise earlier damage again: the file must not be used any more, even if a caller caught the
        exception.
        """
        if self._found is not None:
            raise self._found

    def damaged(self, error: Exception | str) -> StoreCorrupt:
        """Note that the file is damaged; return the exception to raise."""
        self._found = StoreCorrupt(self._data_file, str(error), lasts=self._lasts)
        return self._found
