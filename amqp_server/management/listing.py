"""Lists as the query asks for them: filtered by name, sorted, some columns, one page.

A list may have 100,000 rows, so nothing here goes over all of them at a stretch, and rows are kept only as long as the
client takes to read them: what is neither sorted nor paged is made while it is sent.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from amqp_server.broker.pattern import InvalidPattern, compile_filter
from amqp_server.management.answer import Answer, Refusal, bad_request, encode
from amqp_server.management.call import Call
from amqp_server.management.slices import Slices

PAGE_SIZE_MAX = 500
PAGE_MAX = 1_000_000
FILTER_BYTES_MAX = 256
COLUMNS_MAX = 64
#: Rows that are sorted at a stretch.
SORTED_AT_ONCE = 1_000
#: Items that are made ready at a time.
AHEAD = 100
#: Bytes that leave at a time.
CHUNK_BYTES = 1 << 16

Row = dict[str, Any]
Wanted = Callable[[Row], bool]
#: Makes the row of an item.
Shown = Callable[[Any], Row]
#: Makes the row of an item as JSON.
Encoded = Callable[[Any], Awaitable[bytes]]
#: Waits for what the rows of some items need.
LookUp = Callable[[Sequence[Any]], Awaitable[None]]
#: Where a row belongs in the order, and the row as JSON.
Placed = tuple[tuple[int, float, str], bytes]


class Rows:
    """A JSON array that is made while it is sent."""

    def __init__(self, items: Iterable[object | None], encoded: Encoded, slices: Slices) -> None:
        self._items = items
        self._encoded = encoded
        self._slices = slices

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        chunk = bytearray(b"[")
        comma = b""
        for item in self._items:
            await self._slices.rest()
            if item is None:
                continue
            chunk += comma
            chunk += await self._encoded(item)
            comma = b","
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk) + b"]"

    async def parts(self, part_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield the rows in arrays of about so many bytes."""
        rows: list[bytes] = []
        size = 0
        for item in self._items:
            await self._slices.rest()
            if item is None:
                continue
            row = await self._encoded(item)
            rows.append(row)
            size += len(row)
            if size >= part_bytes:
                yield b"[" + b",".join(rows) + b"]"
                rows, size = [], 0
        if rows:
            yield b"[" + b",".join(rows) + b"]"


class Ahead:
    """Looks up what rows need, for many items at a time."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._next: list[Any] = []

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        items = iter(items)
        while chunk := list(islice(items, AHEAD)):
            self._next = [item for item in chunk if item is not None]
            yield from chunk

    async def reached(self) -> None:
        """Called before each row of these items is made."""
        if self._next:
            found, self._next = self._next, []
            await self._look_up(found)


async def listing(
    call: Call,
    items: Iterable[object | None],
    shown: Shown = msgspec.structs.asdict,
    brief: Callable[[Any], Row] | None = None,
    look_up: LookUp | None = None,
) -> Any:
    """Return what is sent for these items; `shown` makes the row of one.

    None among the items stands for something that was looked at and is not shown. `brief` makes the part of a row that
    costs little: where that is all that a page is chosen by, whole rows are made for the page only. `look_up` is awaited
    for many items at a time, before rows of them are made.
    """
    query, slices = call.query, call.slices
    ahead = None if look_up is None else Ahead(look_up)

    async def row_of(item: object) -> Row:
        if ahead is not None:
            await ahead.reached()
        # Rows of other nodes are made already.
        return item if isinstance(item, dict) else shown(item)

    async def encoded(item: object) -> bytes:
        return encode(columns(await row_of(item)))

    wanted, columns = _filter(call), _columns(query)
    if not ({"sort", "page"} & query.keys() or wanted is not None):
        return Rows(items if ahead is None else ahead.over(items), encoded, slices)
    page = Page(query) if "page" in query else None
    path = query["sort"].split(".") if "sort" in query else []
    if brief is not None and page is not None and (not path or path[0] in BRIEF):
        return await _paged_by(brief, call, items, encoded, wanted, path, page, ahead)
    total = 0
    placed: list[Placed] = []
    for item in items if ahead is None else ahead.over(items):
        await slices.rest()
        if item is None:
            continue
        total += 1
        row = await row_of(item)
        if wanted is None or wanted(row):
            placed.append((_order(_at(row, path)) if path else _FIRST, encode(columns(row))))
    rows: Iterator[bytes] = (row for _, row in placed)
    if path:
        rows = await _sorted(placed, slices, reverse=query.get("sort_reverse") == "true")
    if page is None:
        return Rows(rows, _made, slices)
    return await page.of(page.part(rows), _made, len(placed), total, slices)


async def _made(row: bytes) -> bytes:
    return row


#: Columns that `brief` rows may have.
BRIEF = frozenset(("name", "vhost", "type", "durable", "auto_delete", "exclusive"))


async def _paged_by(
    brief: Callable[[Any], Row],
    call: Call,
    items: Iterable[object | None],
    encoded: Encoded,
    wanted: Wanted | None,
    path: list[str],
    page: Page,
    ahead: Ahead | None,
) -> Answer:
    total = 0
    placed: list[tuple[tuple[int, float, str], Any]] = []
    for item in items:
        await call.slices.rest()
        if item is None:
            continue
        total += 1
        row = brief(item)
        if wanted is None or wanted(row):
            placed.append((_order(_at(row, path)) if path else _FIRST, item))
    chosen: Iterator[Any] = (item for _, item in placed)
    if path:
        chosen = await _sorted(placed, call.slices, reverse=call.query.get("sort_reverse") == "true")
    part = page.part(chosen)
    return await page.of(
        part if ahead is None else ahead.over(part), encoded, len(placed), total, call.slices
    )


def picked(answer: Any, query: Mapping[str, str]) -> Any:
    """Return the columns that the query asks for of a single object."""
    if not query.get("columns"):
        return answer
    if isinstance(answer, msgspec.Struct):
        answer = msgspec.structs.asdict(answer)
    return _columns(query)(answer) if isinstance(answer, dict) else answer


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

    def part(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Return those of these rows that are on the page."""
        start = (self._number - 1) * self._size
        return islice(rows, start, start + self._size)

    async def of(
        self, part: Iterator[Any], encoded: Encoded, count: int, total: int, slices: Slices
    ) -> Answer:
        """Return the page of these rows, `count` of which match."""
        pages = max(1, -(-count // self._size))
        if self._number > pages:
            raise Refusal(
                400,
                "page_out_of_range",
                f"Page out of range, page: {self._number} page size: {self._size}, len: {count}",
            )
        items: list[msgspec.Raw] = []
        for item in part:
            await slices.rest()
            items.append(msgspec.Raw(await encoded(item)))
        told = {
            "filtered_count": count,
            "item_count": len(items),
            "items": items,
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
    return lambda row: lowered in str(row.get("name", "")).lower()


def _matching(pattern: str, filter_ms: int) -> Wanted:
    try:
        matches = compile_filter(pattern, FILTER_BYTES_MAX)
    except InvalidPattern as failure:
        raise bad_request(f"name: {failure}") from None
    left_s = filter_ms / 1000

    def wanted(row: Row) -> bool:
        nonlocal left_s
        began = time.perf_counter()
        found = matches(str(row.get("name", "")))
        left_s -= time.perf_counter() - began
        if left_s < 0:
            raise bad_request(f"name: matching took longer than {filter_ms} ms (http_filter_ms)")
        return found

    return wanted


def _columns(query: Mapping[str, str]) -> Callable[[Row], Row]:
    if not query.get("columns"):
        return lambda row: row
    paths = [column.split(".") for column in query["columns"].split(",", COLUMNS_MAX)[:COLUMNS_MAX]]
    return lambda row: _picked(row, paths)


def _picked(row: Row, paths: list[list[str]]) -> Row:
    told: Row = {}
    for path in paths:
        value = _at(row, path)
        if value is None:
            continue
        into = told
        for step in path[:-1]:
            into = into.setdefault(step, {})
            if not isinstance(into, dict):
                break
        else:
            into[path[-1]] = value
    return told


def _at(row: Row, path: list[str]) -> Any:
    value: Any = row
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


_FIRST = (0, 0.0, "")


def _order(value: Any) -> tuple[int, float, str]:
    """Anything can be compared with anything: nothing first, then numbers, then texts."""
    if value is None:
        return _FIRST
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit() and text.isascii() and len(text) <= 9
