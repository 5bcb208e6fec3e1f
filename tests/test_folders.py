"""A folder of the product is small enough to be read at a glance, and says what is in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("amqp_server", "exchanges", "persistence", "quorum_queue", "spark_sink", "stream_tables")
FILES_MAX = 20
FOLDERS = sorted({path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_has_few_files(folder: Path) -> None:
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= FILES_MAX


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_and_its_files_say_what_they_hold(folder: Path) -> None:
    silent = [
        path.name
        for path in folder.glob("*.py")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
