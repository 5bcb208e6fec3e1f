"""Checks that LMDB's data file is long enough, before anything maps it.

Access to a mapped page after the file's end kills the process silently (SIGBUS). LMDB does not check: it
opens and reads a file that was cut off by an incomplete copy or a file system repair.

The newest meta page says which page is the last. The file may rightly be shorter: pages that one transaction
took and gave back were never written. Those are in the list of free pages, so that list must have all missing
pages. This follows LMDB's layout of version 0.9 (mdb.c): a 16-byte header, offsets of nodes behind it, nodes
from the page's end downwards.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from persistence.errors import StoreCorrupt

_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
#: Behind a page's header: magic, version, address, map size; of the free list: page size, flags, depth,
#: branch, leaf and overflow pages, entries, root; the same of the tables; last page, transaction.
_META = struct.Struct("=IIQQ" + 2 * "IHHQQQQQ" + "QQ")
_PAGE = struct.Struct("=QHHHH")
_NODE = struct.Struct("=HHHH")
_NUMBER = struct.Struct("=Q")
_BRANCH, _LEAF = 0x01, 0x02
_BIG_DATA = 0x01
_NO_PAGE = (1 << 64) - 1
#: A tree is not deeper than LMDB's cursors are.
_DEPTH_MAX = 32


def check_length(data_file: Path, *, was_used: bool) -> None:
    """Raise StoreCorrupt if a part of the file is missing. `was_used`: there were transactions, so it is not
    empty.
    """
    try:
        file = os.open(data_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _DataFile(file, data_file).check(was_used=was_used)
    finally:
        os.close(file)


class _DataFile:
    def __init__(self, file: int, name: Path) -> None:
        self._file = file
        self._name = name
        self._size = os.fstat(file).st_size
        self._page_bytes = 0

    def check(self, *, was_used: bool) -> None:
        if not self._size and not was_used:
            # The process ended between making the file and writing its first page.
            return
        metas = self._metas()
        last_page, free_root = max(metas)[1:]
        wanted = (last_page + 1) * self._page_bytes
        if self._size >= wanted:
            return
        missing = set(range(self._size // self._page_bytes, last_page + 1))
        missing.difference_update(self._free_pages(free_root))
        if missing:
            raise self._cut_off(f"at least {(max(missing) + 1) * self._page_bytes}")

    def _cut_off(self, wanted: str) -> StoreCorrupt:
        return StoreCorrupt(self._name, f"it was cut off, it has {self._size} bytes of {wanted}")

    def _metas(self) -> list[tuple[int, int, int]]:
        """Transaction, last page and root of the free list, by both meta pages. Raises StoreCorrupt."""
        found: list[tuple[int, int, int]] = []
        for number in (0, 1):
            raw = os.pread(self._file, _META.size, number * self._page_bytes + _PAGE.size)
            if len(raw) < _META.size:
                raise self._cut_off("at least two pages")
            meta = _META.unpack(raw)
            if meta[:2] != (_MAGIC, _DATA_VERSION):
                what = f"page {number} is not the first one of an LMDB file of format {_DATA_VERSION}"
                raise StoreCorrupt(self._name, what)
            self._page_bytes = self._page_bytes or meta[4]
            found.append((meta[-1], meta[-2], meta[11]))
        return found

    def _read(self, page: int, count: int = 1) -> bytes:
        raw = os.pread(self._file, count * self._page_bytes, page * self._page_bytes)
        if len(raw) < count * self._page_bytes:
            raise self._cut_off(f"at least {(page + count) * self._page_bytes}")
        return raw

    def _free_pages(self, page: int, depth: int = 0) -> Iterator[int]:
        """Walk the tree of the free list."""
        if page == _NO_PAGE:
            return
        raw = self._read(page)
        try:
            _, _, flags, lower, _ = _PAGE.unpack_from(raw)
            for (at,) in struct.iter_unpack("=H", raw[_PAGE.size : lower]):
                low, high, node_flags, key_bytes = _NODE.unpack_from(raw, at)
                data = at + _NODE.size + key_bytes
                if flags & _LEAF:
                    yield from self._numbers(raw, data, low | high << 16, node_flags)
                elif flags & _BRANCH and depth < _DEPTH_MAX:
                    yield from self._free_pages(low | high << 16 | node_flags << 32, depth + 1)
        except struct.error as error:
            raise StoreCorrupt(self._name, f"its list of free pages cannot be read: {error}") from error

    def _numbers(self, raw: bytes, at: int, size: int, flags: int) -> Iterator[int]:
        """A count, and so many pages."""
        content = raw[at : at + size]
        if flags & _BIG_DATA:
            (first,) = _NUMBER.unpack_from(raw, at)
            pages = -(-(_PAGE.size + size) // self._page_bytes)
            content = self._read(first, pages)[_PAGE.size : _PAGE.size + size]
        (count,) = _NUMBER.unpack_from(content)
        for (page,) in _NUMBER.iter_unpack(content[_NUMBER.size : (count + 1) * _NUMBER.size]):
            yield page
