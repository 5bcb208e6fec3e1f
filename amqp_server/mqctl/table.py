"""Rows for people and scripts: columns under a header, between tabs or in CSV, and side by side on a
terminal.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from amqp_server.mqctl.client import USAGE, Failure
from amqp_server.mqctl.command import Invocation
from amqp_server.spelling import hint


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], invocation: Invocation) -> None:
    """Print rows as rabbitmqctl does: nothing if there are no rows, and no header with --quiet. In JSON,
    print an array of objects.
    """
    if invocation.json:
        objects = (json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows)
        click.echo(
            "[\n" + "".join(f"{',' if index else ''}{each}\n" for index, each in enumerate(objects)) + "]"
        )
        return
    cells = [[text(value) for value in row] for row in rows]
    if cells and not invocation.quiet:
        cells.insert(0, list(columns))
    if not cells:
        return
    if invocation.formatter == "csv":
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(cells)
        click.echo(written.getvalue(), nl=False)
    elif sys.stdout.isatty():
        click.echo("\n".join(fitted(cells, shutil.get_terminal_size().columns)))
    else:
        click.echo("\n".join(map("\t".join, cells)))


def show_columns(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], invocation: Invocation
) -> None:
    """Print these columns of rows that have all of them."""
    show(columns, [[row[column] for column in columns] for row in rows], invocation)


#: Blanks between two columns, and minimum width of a column on a narrow terminal.
GAP, WIDTH_MIN = 2, 6


def fitted(cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return lines of columns side by side; the widest columns are cut until the lines fit."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    over = sum(widths) + GAP * (len(widths) - 1) - width
    while over > 0:
        widest = max(widths)
        if widest <= WIDTH_MIN:
            break
        next_ = max((each for each in widths if each < widest), default=0)
        wide = [index for index, each in enumerate(widths) if each == widest]
        less = min(widest - max(next_, WIDTH_MIN), -(-over // len(wide)))
        for index in wide:
            widths[index] -= less
        over -= less * len(wide)
    return [
        (" " * GAP).join(_cut(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cut(cell: str, width: int) -> str:
    return cell.ljust(width) if len(cell) <= width else cell[: width - 1] + "…"


def text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return f"[{', '.join(value)}]"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    # A tab or a line end in a name must not split a cell.
    told = str(value)
    return told if told.isprintable() else told.encode("unicode_escape").decode()


def pick(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], known: Mapping[str, str]
) -> list[list[Any]]:
    """Return the columns of the rows. `known` maps each column to its path in a row: `"queue.name"`."""
    unknown = [column for column in columns if column not in known]
    if unknown:
        keys, allowed = ", ".join(unknown), ", ".join(known)
        spelling = hint(unknown[0], known)
        raise Failure(f"Info key(s) {keys} are not supported; there are: {allowed}{spelling}", USAGE)
    return [[_at(row, known[column]) for column in columns] for row in rows]


def _at(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def moment(ms: int) -> str:
    """Return a time of the wall clock; empty for none."""
    if not ms:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
