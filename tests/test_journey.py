"""The stations of docs/journey.md are in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATION = re.compile(r"((?:[a-z_]+/)+)?\s*([a-z_]+\.py):([a-z_]+)")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def stations() -> list[tuple[str, str]]:
    """Return file and function of each; a long path stands on a line of its own, before its file."""
    text = (ROOT / "docs/journey.md").read_text()
    return [(f"{folder}{file}", name) for folder, file, name in STATION.findall(text)]


def test_every_station_is_in_the_code() -> None:
    found = stations()
    assert len(found) > 35
    gone = [f"{file}:{name}" for file, name in found if name not in functions(ROOT / file)]
    assert not gone
