"""What LMDB and its file say when the file is damaged, as one exception that ends the process.

LMDB has no checksums: a page that is not what it was shows in one of these ways, or in records that fail their own
checksums, or not at all. Whoever went on would read the same page again and again, or write over what can still be saved.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType

import lmdb

from persistence.errors import StoreCorrupt

#: struct.error: a key is longer or shorter than keys of its table are. SystemError: py-lmdb's cursors say nothing
#: else of some damaged pages. BadTxnError follows upon any of the others.
DAMAGE = (
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

#: What writing to LMDB raises.
WRITE_ERRORS = (lmdb.Error, *DAMAGE)


class Guard:
    """Stands around whatever touches one data file: `with guard: …`."""

    __slots__ = ("_data_file", "_found", "_lasts")

    def __init__(self, data_file: Path, *, lasts: bool) -> None:
        """`lasts`: the file is not made anew at each start."""
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
        """Raise again what was found before: nothing of the file is used any more, whoever caught it."""
        if self._found is not None:
            raise self._found

    def damaged(self, error: Exception | str) -> StoreCorrupt:
        """Note that the file is damaged; return what is to be raised."""
        self._found = StoreCorrupt(self._data_file, str(error), lasts=self._lasts)
        return self._found
