"""Lists as the query asks for them: filtered by name, sorted, reduced to some columns, one page.

A list may have 100,000 rows, so no step here goes over all of them, and rows are kept only until the client
has read them: a list that is neither sorted nor paged is made while it is sent.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from amqp_server.broker.pattern import InvalidPattern, compile_filter
from amqp_server.management.request.answer import Answer, Refusal, bad_request, encode
from amqp_server.management.request.call import Call
from amqp_server.management.request.columns import Read, Row, reader
from amqp_server.management.request.columns import picked as picked_of
from amqp_server.management.request.time_slices import Slices

PAGE_SIZE_MAX = 500
PAGE_MAX = 1_000_000
FILTER_BYTES_MAX = 256
COLUMNS_MAX = 64
#: Rows that are sorted in one step.
SORTED_AT_ONCE = 1_000
#: Items that are looked up together before their rows are made.
AHEAD = 100
#: Bytes that are sent at a time.
CHUNK_BYTES = 1 << 16

#: True if the list is to have the item with this name.
Wanted = Callable[[Any], bool]
#: Makes the row of an item, None if the item no longer exists; a row that needs a thread is awaited.
Shown = Callable[[Any], Row | None | Awaitable[Row | None]]
#: Returns a function that reads one column of an item, None if only a whole row has the column.
Columns = Callable[[list[str]], Read | None]
#: Returns a function that makes the rows of the items of a page.
Whole = Callable[[list[Any]], Awaitable[Shown]]
#: Sort key of a row.
Order = tuple[int, float, str]
#: A row as JSON, with its sort key.
Placed = tuple[Order, bytes]


class Rows:
    """A JSON array that is made while it is sent."""

    def __init__(
        self,
        items: Iterable[object | None],
        slices: Slices,
        shown: Shown | None = None,
        paths: Sequence[Sequence[str]] = (),
    ) -> None:
        """`shown` makes the rows, unless the items are rows as JSON. With `paths`, only these columns are
        sent.
        """
        self._items = items
        self._slices = slices
        self._shown = shown
        self._paths = paths

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        # An answer that fits in one chunk comes as one.
        chunk = b"["
        async with aclosing(self._some(CHUNK_BYTES)) as some:
            async for rows in some:
                if len(chunk) > 1:
                    yield chunk
                    chunk = b","
                chunk += b",".join(rows)
        yield chunk + b"]"

    async def parts(self, part_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield the rows in arrays of about `part_bytes`."""
        async with aclosing(self._some(part_bytes)) as some:
            async for rows in some:
                yield b"[" + b",".join(rows) + b"]"

    async def _some(self, size_bytes: int) -> AsyncGenerator[list[bytes], None]:
        """Yield rows as JSON, so many bytes at a time."""
        found: list[bytes] = []
        size = 0
        shown, paths, slices = self._shown, self._paths, self._slices
        for item in self._items:
            # The list may be long: without need, this calls nothing and awaits nothing.
            if perf_counter() >= slices.ends:
                await slices.rest()
            if item is None:
                continue
            if isinstance(item, bytes):
                encoded = item
            else:
                assert shown is not None
                row = item if isinstance(item, dict) else shown(item)
                if row is not None and not isinstance(row, dict):
                    row = await row
                if row is None:
                    continue
                encoded = encode(picked_of(row, paths) if paths else row)
            found.append(encoded)
            size += len(encoded)
            if size >= size_bytes:
                yield found
                found, size = [], 0
        if found:
            yield found


class Ahead:
    """Looks up the data for rows, for many items at a time."""

    def __init__(
        self, look_up: Callable[[Sequence[Any]], Awaitable[None]], shown: Callable[[Any], Row | None]
    ) -> None:
        """`shown` makes the row of an item after `look_up` was awaited with it."""
        self._look_up = look_up
        self._shown = shown
        self._next: list[Any] = []

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        items = iter(items)
        while chunk := list(islice(items, AHEAD)):
            self._next = chunk
            yield from chunk

    async def row(self, item: Any) -> Row | None:
        """Return the row of an item that `over` has yielded last."""
        if self._next:
            found, self._next = self._next, []
            await self._look_up(found)
        return self._shown(item)

    async def all_rows(self, items: list[Any]) -> Shown:
        """Look up the data for the rows of these items; return the function that makes the rows."""
        for start in range(0, len(items), AHEAD):
            await self._look_up(items[start : start + AHEAD])
        return self._shown


async def listing(
    call: Call,
    items: Iterable[object | None],
    shown: Shown = msgspec.structs.asdict,
    columns: Columns | None = None,
    whole: Whole | None = None,
) -> Any:
    """Return the answer with these items; `shown` makes the row of one.

    None among the items stands for an object that was looked at and is not shown. With `columns`, which
    returns a function that reads one column of an item, whole rows are made only of the items whose name
    matches and that are on the page. `whole` is awaited with the items of the page, and returns the function
    that makes their rows.
    """
    query, slices = call.query, call.slices
    wanted, paths = _filter(call), _column_paths(query)
    if not ({"sort", "page"} & query.keys() or wanted is not None):
        return Rows(items, slices, shown, paths)
    page = Page(query) if "page" in query else None
    path = sort_path(query)
    name = None if columns is None else columns(["name"])
    key = columns(path) if columns is not None and path else None
    if name is not None and page is not None and (key is not None or not path):
        found = await _selected(call, items, wanted, name, key)
        of_page = await page.part(found.items, slices)
        placed = await _placed(call, of_page, shown if whole is None else await whole(of_page))
        # Values may have changed since the rows were selected.
        placed.sort(key=itemgetter(0), reverse=bool(path) and _is_reversed(query))
        return page.answer([row for _, row in placed], found.matching, found.total)
    counted = _Counted(items)
    placed = await _placed(call, counted, shown, wanted, name)
    ordered: Iterator[bytes] = (row for _, row in placed)
    if path:
        ordered = await _sorted(placed, slices, reverse=_is_reversed(query))
    if page is None:
        return Rows(ordered, slices)
    return page.answer(await page.part(ordered, slices), len(placed), counted.count)


class _Counted:
    """Counts the items that there are."""

    def __init__(self, items: Iterable[object | None]) -> None:
        self._items = items
        self.count = 0

    def __iter__(self) -> Iterator[object | None]:
        for item in self._items:
            self.count += item is not None
            yield item


async def _placed(
    call: Call,
    items: Iterable[object | None],
    shown: Shown,
    wanted: Wanted | None = None,
    name: Read | None = None,
) -> list[Placed]:
    """Return the rows of items with their sort keys. `name` reads the name that is `wanted`; without it, the
    row has the name.
    """
    placed: list[Placed] = []
    paths, path, slices = _column_paths(call.query), sort_path(call.query), call.slices
    value = reader(path) if path else None
    for item in items:
        if perf_counter() >= slices.ends:
            await slices.rest()
        if item is None or (name is not None and wanted is not None and not wanted(name(item))):
            continue
        row = item if isinstance(item, dict) else shown(item)
        if row is not None and not isinstance(row, dict):
            row = await row
        if row is None:
            continue
        if name is not None or wanted is None or wanted(row.get("name", "")):
            key = _FIRST if value is None else _order(value(row))
            placed.append((key, encode(picked_of(row, paths) if paths else row)))
    return placed


class _Selected(NamedTuple):
    items: Iterator[Any]
    matching: int
    total: int


async def _selected(
    call: Call, items: Iterable[object | None], wanted: Wanted | None, name: Read, key: Read | None
) -> _Selected:
    total = 0
    placed: list[tuple[Order, Any]] = []
    slices = call.slices
    for item in items:
        if perf_counter() >= slices.ends:
            await slices.rest()
        if item is None:
            continue
        total += 1
        if wanted is None or wanted(name(item)):
            placed.append((_FIRST if key is None else _order(key(item)), item))
    found: Iterator[Any] = (item for _, item in placed)
    if key is not None:
        found = await _sorted(placed, slices, reverse=_is_reversed(call.query))
    return _Selected(found, len(placed), total)


def sort_path(query: Mapping[str, str]) -> list[str]:
    """Return the path of the column that the list is sorted by, empty if it is not sorted."""
    return query["sort"].split(".") if "sort" in query else []


def _is_reversed(query: Mapping[str, str]) -> bool:
    return query.get("sort_reverse") == "true"


def picked(answer: Any, query: Mapping[str, str]) -> Any:
    """Return the columns that the query asks for of a single object. A page has picked those of its rows."""
    if not query.get("columns") or "page" in query:
        return answer
    if isinstance(answer, Answer):
        return answer._replace(body=picked(answer.body, query))
    if isinstance(answer, msgspec.Struct):
        answer = msgspec.structs.asdict(answer)
    return picked_of(answer, _column_paths(query)) if isinstance(answer, dict) else answer


async def _sorted(placed: list[Any], slices: Slices, *, reverse: bool) -> Iterator[Any]:
    first = itemgetter(0)
    runs = []
    for start in range(0, len(placed), SORTED_AT_ONCE):
        await slices.rest()
        runs.append(sorted(placed[start : start + SORTED_AT_ONCE], key=first, reverse=reverse))
    return (row for _, row in heapq.merge(*runs, key=first, reverse=reverse))


class Page:
    def __init__(self, query: Mapping[str, str]) -> None:
        number, size = query["page"], query.get("page_size")
        if not _is_number(number) or not (size is None or _is_number(size)):
            raise bad_request("Pagination parameters are invalid")
        self._number, self._size = int(number), 100 if size is None else int(size)
        if not (1 <= self._number <= PAGE_MAX and 1 <= self._size <= PAGE_SIZE_MAX):
            told = "undefined" if size is None else self._size
            raise Refusal(
                400,
                "invalid_pagination_parameters",
                f"Invalid pagination parameters: page number {self._number}, page size {told}",
            )

    async def part(self, rows: Iterator[Any], slices: Slices) -> list[Any]:
        """Return those of these rows that are on the page."""
        start = (self._number - 1) * self._size
        found: list[Any] = []
        for number, row in enumerate(islice(rows, start + self._size)):
            # Rows before the page have to be sorted, too.
            if perf_counter() >= slices.ends:
                await slices.rest()
            if number >= start:
                found.append(row)
        return found

    def answer(self, rows: list[bytes], count: int, total: int) -> Answer:
        """Return the page with these rows, of `count` that match."""
        pages = max(1, -(-count // self._size))
        if self._number > pages:
            raise Refusal(
                400,
                "page_out_of_range",
                f"Page out of range, page: {self._number} page size: {self._size}, len: {count}",
            )
        told = {
            "filtered_count": count,
            "item_count": len(rows),
            "items": [msgspec.Raw(row) for row in rows],
            "page": self._number,
            "page_count": pages,
            "page_size": self._size,
            "total_count": total,
        }
        return Answer(200, told)


def _filter(call: Call) -> Wanted | None:
    name = call.query.get("name", "")
    if not name:
        return None
    if call.query.get("use_regex") == "true":
        return _matching(name, call.filter_ms)
    lowered = name.lower()
    return lambda name: lowered in str(name).lower()


def _matching(pattern: str, filter_ms: int) -> Wanted:
    try:
        matches = compile_filter(pattern, FILTER_BYTES_MAX)
    except InvalidPattern as failure:
        raise bad_request(f"name: {failure}") from None
    left_s = filter_ms / 1000

    def wanted(name: Any) -> bool:
        nonlocal left_s
        began = perf_counter()
        found = matches(str(name))
        left_s -= perf_counter() - began
        if left_s < 0:
            raise bad_request(f"name: matching took longer than {filter_ms} ms (http_filter_ms)")
        return found

    return wanted


def _column_paths(query: Mapping[str, str]) -> list[list[str]]:
    if not query.get("columns"):
        return []
    return [column.split(".") for column in query["columns"].split(",", COLUMNS_MAX)[:COLUMNS_MAX]]


def columns_read(query: Mapping[str, str]) -> set[str] | None:
    """Return the names of all columns that the answer is made of; None if it has whole rows."""
    paths = _column_paths(query)
    return {path[0] for path in ([*paths, sort_path(query)] if "sort" in query else paths)} if paths else None


_FIRST = (0, 0.0, "")


def _order(value: Any) -> Order:
    """Return a sort key that makes all values comparable: missing values first, then numbers, then texts."""
    if value is None:
        return _FIRST
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit() and text.isascii() and len(text) <= 9
