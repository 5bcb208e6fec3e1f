"""Lists as the query asks for them: filtered by name, sorted, some columns, one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from amqp_server.broker.pattern import InvalidPattern, compile_pattern
from amqp_server.management.answer import bad_request

PAGE_SIZE_MAX = 500
PAGE_MAX = 1_000_000
FILTER_BYTES_MAX = 256
FILTER_MS = 5
COLUMNS_MAX = 64


def listing(views: Iterable[Any], query: Mapping[str, str]) -> Any:
    rows = [row if isinstance(row, dict) else msgspec.structs.asdict(row) for row in views]
    total = len(rows)
    rows = _filtered(rows, query)
    if "sort" in query:
        path = query["sort"].split(".")
        rows.sort(key=lambda row: _order(_at(row, path)), reverse=query.get("sort_reverse") == "true")
    if "page" not in query:
        return _columns(rows, query)
    page, size = _bounded(query, "page", 1, PAGE_MAX), _bounded(query, "page_size", 100, PAGE_SIZE_MAX)
    pages = max(1, -(-len(rows) // size))
    if page > pages:
        raise bad_request(f"page {page} is out of range; there are {pages}")
    items = _columns(rows[(page - 1) * size : page * size], query)
    return {
        "filtered_count": len(rows),
        "item_count": len(items),
        "items": items,
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": total,
    }


def _filtered(rows: list[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    name = query.get("name", "")
    if not name:
        return rows
    if query.get("use_regex") != "true":
        return [row for row in rows if name.lower() in str(row.get("name", "")).lower()]
    try:
        matches = compile_pattern(name, FILTER_BYTES_MAX, FILTER_MS)
    except InvalidPattern as failure:
        raise bad_request(f"name: {failure}") from None
    return [row for row in rows if matches(str(row.get("name", "")))]


def _columns(rows: list[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    if not query.get("columns"):
        return rows
    paths = [column.split(".") for column in query["columns"].split(",", COLUMNS_MAX)[:COLUMNS_MAX]]
    return [_picked(row, paths) for row in rows]


def _picked(row: dict[str, Any], paths: list[list[str]]) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for path in paths:
        value = _at(row, path)
        if value is None:
            continue
        into = picked
        for step in path[:-1]:
            into = into.setdefault(step, {})
        into[path[-1]] = value
    return picked


def _at(row: dict[str, Any], path: list[str]) -> Any:
    value: Any = row
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _order(value: Any) -> tuple[int, float, str]:
    """Anything can be compared with anything: nothing first, then numbers, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _bounded(query: Mapping[str, str], name: str, default: int, high: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= high):
        raise bad_request(f"{name} must be 1 to {high}")
    return int(text)
