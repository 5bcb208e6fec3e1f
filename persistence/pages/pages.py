"""Locates the pages of some keys in LMDB's data file, without LMDB.

py-lmdb reads every page of a value that it returns, so it cannot locate a value without a wait for the disk;
and a thread may have no read transaction of its own (see persistence/store.py). This module reads the tree's
pages from the file, and uses them only to locate pages. If a commit reuses a page meanwhile, the result is a
wrong location or one of DAMAGES, and the worst consequence is that a later read through LMDB waits for a
page.

The format is that of LMDB 0.9 (MDB_DATA_VERSION 1): two meta pages, each with the root of a tree of tables;
keys in order; values up to a little under half a page beside their keys, larger ones in pages of their own.
"""

import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

META_BYTES = 4096
MAGIC = 0xBEEFC0DE
DATA_VERSION = 1
DEPTH_MAX = 32
NO_ROOT = (1 << 64) - 1
#: Offset in the page, magic, version, address, size of the map; the root's table; last page, transaction.
META = struct.Struct("<16xIIQQ48x48sQQ")
#: Page size, which is in the table of free pages.
PAGE_SIZE = struct.Struct("<40xI")
#: Padding, flags, depth; branch, leaf and overflow pages, entries; root.
TABLE = struct.Struct("<IHHQQQQQ")
#: Page number, padding, flags, where the pointers to its nodes end.
PAGE = struct.Struct("<QHHH2x")
#: Low and high half of the size of the value, flags, size of the key. Of a branch: the page number in three
#: parts.
NODE = struct.Struct("<HHHH")
NUMBER = struct.Struct("<Q")
BRANCH, LEAF = 1, 2
BIG, TABLE_NODE = 1, 2
#: Exceptions that a page reused meanwhile may cause.
DAMAGES = (struct.error, IndexError, ValueError)

#: Returns the keys of another table that belong to the keys up to the given one.
Others = Callable[[bytes], "KeyRange"]
#: Returns bytes of the file: offset, size.
Read = Callable[[int, int], bytes]


class KeyRange(NamedTuple):
    """Keys of a table from `low` to `high`, and the one before `low`."""

    table: str
    low: bytes
    high: bytes


class Span(NamedTuple):
    """Bytes of the file."""

    offset: int
    size: int


class Deletion(NamedTuple):
    """The pages that must be in memory to delete some keys."""

    #: The last of these keys; None if they are the whole range.
    last: bytes | None
    #: The first pages of values with pages of their own: LMDB reads those, too.
    values: list[Span]


class Leaf(NamedTuple):
    """A page of keys, and the offsets of some of its nodes."""

    page: bytes
    nodes: tuple[int, ...]


def value_spans(read: Read, ranges: list[KeyRange]) -> list[Span]:
    """Read the tree's pages above and beside these keys; return the places of values with pages of their own.

    Raises one of DAMAGES if the file is not as expected.
    """
    page_bytes, root = _newest(read)
    tables: dict[str, int] = {}
    found: list[Span] = []
    for table, low, high in ranges:
        if table not in tables:
            tables[table] = _table_root(read, page_bytes, root, table.encode())
        for leaf in _leaves(read, page_bytes, tables[table], low, high, 0):
            found += _large_values(page_bytes, leaf)
    return _joined(found)


def to_delete(read: Read, keys: KeyRange, others: Others, leaves_max: int) -> Deletion:
    """Read the tree's pages with the first of these keys and with those that go with them.

    Raises as `value_spans`.
    """
    page_bytes, root = _newest(read)
    found: list[Span] = []
    last: Leaf | None = None
    left = leaves_max
    for leaf in _leaves(
        read, page_bytes, _table_root(read, page_bytes, root, keys.table.encode()), keys.low, keys.high, 0
    ):
        if left == 0:
            break
        # The first node may be the one before `low`.
        if leaf.nodes and _key(leaf.page, leaf.nodes[-1]) >= keys.low:
            last = leaf
        left -= 1
    else:
        left = -1
    if last is None:
        return Deletion(None, found)
    last_key = _key(last.page, last.nodes[-1])
    table, low, high = others(last_key)
    for leaf in _leaves(read, page_bytes, _table_root(read, page_bytes, root, table.encode()), low, high, 0):
        for offset, _ in _large_values(page_bytes, leaf):
            found.append(Span(offset, page_bytes))
    return Deletion(None if left < 0 else last_key, _joined(found))


def _newest(read: Read) -> tuple[int, int]:
    """Page size and root of the newest state."""
    if sys.byteorder != "little":
        raise ValueError("LMDB's files are read here in little-endian order only")
    first = read(0, META_BYTES)
    (page_bytes,) = PAGE_SIZE.unpack_from(first)
    if page_bytes < META_BYTES or page_bytes & (page_bytes - 1):
        raise ValueError(f"a page size of {page_bytes}")
    newest, root = -1, NO_ROOT
    for meta in (first, read(page_bytes, META_BYTES)):
        magic, version, _, _, table, _, transaction = META.unpack_from(meta)
        if magic != MAGIC or version != DATA_VERSION:
            raise ValueError("another format of the data file")
        if transaction > newest:
            newest, root = transaction, TABLE.unpack(table)[-1]
    return page_bytes, root


def _table_root(read: Read, page_bytes: int, root: int, name: bytes) -> int:
    if root == NO_ROOT:
        return NO_ROOT
    for _ in range(DEPTH_MAX):
        page = read(root * page_bytes, page_bytes)
        flags, nodes = _nodes(page)
        at = bisect_right(nodes, name, 1 if flags & BRANCH else 0, key=lambda node: _key(page, node)) - 1
        low, high, node_flags, key_bytes = NODE.unpack_from(page, nodes[at])
        if flags & BRANCH:
            root = low | high << 16 | node_flags << 32
            continue
        if at < 0 or _key(page, nodes[at]) != name or not node_flags & TABLE_NODE:
            raise ValueError("no such table")
        return int(TABLE.unpack_from(page, nodes[at] + NODE.size + key_bytes)[-1])
    raise ValueError("a tree without an end")


def _leaves(read: Read, page_bytes: int, number: int, low: bytes, high: bytes, depth: int) -> Iterator[Leaf]:
    """The leaves with these keys, in order, and of their nodes those that have one of them."""
    if number == NO_ROOT:
        return
    if depth > DEPTH_MAX:
        raise ValueError("a tree without an end")
    page = read(number * page_bytes, page_bytes)
    flags, nodes = _nodes(page)
    # The first key of a branch stands for all lower ones, too.
    begin = 1 if flags & BRANCH else 0

    def key_at(node: int) -> bytes:
        return _key(page, node)

    start = max(bisect_right(nodes, low, begin, key=key_at) - 1, 0)
    stop = bisect_right(nodes, high, max(begin, start), key=key_at)
    if not flags & BRANCH:
        yield Leaf(page, nodes[start:stop])
        return
    for node in nodes[start:stop]:
        small, large, node_flags, _ = NODE.unpack_from(page, node)
        yield from _leaves(read, page_bytes, small | large << 16 | node_flags << 32, low, high, depth + 1)


def _large_values(page_bytes: int, leaf: Leaf) -> Iterator[Span]:
    page = leaf.page
    for node in leaf.nodes:
        small, large, node_flags, key_bytes = NODE.unpack_from(page, node)
        if node_flags & BIG:
            (first,) = NUMBER.unpack_from(page, node + NODE.size + key_bytes)
            size = PAGE.size + (small | large << 16)
            yield Span(first * page_bytes, -(-size // page_bytes) * page_bytes)


def _nodes(page: bytes) -> tuple[int, tuple[int, ...]]:
    """Flags of the page, and the offsets of its nodes."""
    _, _, flags, end = PAGE.unpack_from(page)
    if not flags & (BRANCH | LEAF):
        raise ValueError("not a page of a tree")
    return flags, struct.unpack_from(f"<{(end - PAGE.size) // 2}H", page, PAGE.size)


def _key(page: bytes, node: int) -> bytes:
    size = NODE.unpack_from(page, node)[3]
    return page[node + NODE.size : node + NODE.size + size]


def _joined(spans: list[Span]) -> list[Span]:
    """The same bytes, in order and in as few spans as possible."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and joined[-1].offset + joined[-1].size >= span.offset:
            offset = joined[-1].offset
            joined[-1] = Span(offset, max(joined[-1].size, span.offset + span.size - offset))
        else:
            joined.append(span)
    return joined


def pieces(spans: list[Span], size_max: int) -> Iterator[Span]:
    """The same bytes in pieces of bounded size."""
    for offset, size in spans:
        for start in range(0, size, size_max):
            yield Span(offset + start, min(size_max, size - start))
