"""Rows for people and scripts: columns between tabs, under a header."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from amqp_server.mqctl.client import USAGE, Failure
from amqp_server.mqctl.command import Invocation


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], invocation: Invocation) -> None:
    """As rabbitmqctl: prints nothing for no rows, and no header with --quiet. In JSON, an array of objects."""
    if invocation.json:
        objects = (json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows)
        click.echo(
            "[\n" + "".join(f"{',' if index else ''}{each}\n" for index, each in enumerate(objects)) + "]"
        )
        return
    lines = ["\t".join(map(text, row)) for row in rows]
    if lines and not invocation.quiet:
        lines.insert(0, "\t".join(columns))
    if lines:
        click.echo("\n".join(lines))


def text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return f"[{', '.join(value)}]"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    # A tab or a line's end in a name must not make two cells of one.
    told = str(value)
    return told if told.isprintable() else told.encode("unicode_escape").decode()


def pick(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], known: Mapping[str, str]
) -> list[list[Any]]:
    """The columns of the rows. `known` says where in a row each column is: `"queue.name"`."""
    unknown = [column for column in columns if column not in known]
    if unknown:
        keys, allowed = ", ".join(unknown), ", ".join(known)
        raise Failure(f"Info key(s) {keys} are not supported; there are: {allowed}", USAGE)
    return [[_at(row, known[column]) for column in columns] for row in rows]


def _at(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
