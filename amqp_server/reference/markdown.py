"""Parts of pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 110
NOTE = "<!-- made from the code: python -m amqp_server.reference -->"


def head(title: str, *paragraphs: str) -> list[str]:
    lines = [f"# {title}", "", NOTE, ""]
    for paragraph in paragraphs:
        lines += prose(paragraph)
    return lines


def prose(text: str) -> list[str]:
    """The lines of a paragraph, and an empty one."""
    return [*textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def code(text: object) -> str:
    return f"`{text}`"


def cell(text: str) -> str:
    """Text in a row of a table; what is between backticks stays as it is, but for the bar."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("  |", " |")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, and an empty line."""
    return [row(header), row(["---"] * len(header)), *map(row, rows), ""]
