"""Decision records say since when they hold, and the index has all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ADR = Path(__file__).parents[1] / "docs" / "adr"
PAGES = sorted(ADR.glob("[0-9]*.md"))
INDEX = (ADR / "README.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (?:\[(.*)\]\((.*)\)|(.*?)) \| (.*?) \| ?(.*?) ?\|$", re.MULTILINE)
STATUS = re.compile(r"\A# (\d+)\. (.*)\n\n- Status: (\w+, \d{4}-\d\d-\d\d)(?:; ((?:.|\n  )+))?\n\n")
NUMBER = re.compile(r"\[ADR\s+(\d+)\]")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_record_has_its_status_under_its_title(page: Path) -> None:
    assert STATUS.match(page.read_text()), "write: - Status: accepted, DATE"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_index_says_what_the_record_says(page: Path) -> None:
    head = STATUS.match(page.read_text())
    assert head is not None
    number, title, status, note = head.groups()
    assert int(number) == int(page.name[:4])
    [row] = [row for row in ROW.findall(INDEX) if row[2] == page.name]
    assert (row[0], row[1]) == (number, title)
    assert row[4].partition(";")[0] == status
    # The records that change it.
    later = NUMBER.findall(note or "")
    assert re.findall(r"\d+", row[4].partition(";")[2]) == later
    assert all(int(number) < int(each) for each in later)
    assert row[5].endswith(".")


def test_the_index_has_each_number_once() -> None:
    rows = ROW.findall(INDEX)
    assert len(rows) == INDEX.count("\n| ") - 2
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert {row[2] for row in rows if row[2]} == {page.name for page in PAGES}
    # These need a word of their own.
    assert [(row[0], row[3]) for row in rows if not row[2]] == [("39", "The number was not used")]
