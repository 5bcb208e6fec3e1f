"""docs/spark.md lists all options, columns and errors."""

from __future__ import annotations

import re
from pathlib import Path

from spark_sink.options import OPTIONS
from spark_sink.rows import SINK_COLUMNS, source_schema
from tests.spark_sink.option_table import PAGE, current

SOURCES = Path(__file__).parents[2] / "spark_sink"


def test_the_table_is_current() -> None:
    text = PAGE.read_text()
    assert text == current(text), "python -m tests.spark_sink.option_table"
    assert all(f"| `{option.name}` |" in text for option in OPTIONS)


def test_the_columns_are_those_of_a_read_and_a_write() -> None:
    listed = re.search(r"## Columns\n(.*?)\n## ", PAGE.read_text(), re.DOTALL)
    assert listed is not None
    read: dict[str, str] = {}
    written: set[str] = set()
    for line in re.findall(r"^\| `.*\|$", listed[1], re.MULTILINE):
        names, kinds, may_be_written, _ = (cell.strip() for cell in line.strip("|").split(" |", 3))
        columns = re.findall(r"`(\w+)`", names)
        types = kinds.split(", ") if kinds.count(", ") else [kinds] * len(columns)
        if kinds != "no":
            read.update(zip(columns, types, strict=True))
        written.update(columns if may_be_written != "no" else ())
    ours = source_schema(of_stream=True)
    assert read == {field.name: field.dataType.simpleString() for field in ours} | {"offset": "long"}
    assert written == set(SINK_COLUMNS)


def test_the_errors_are_what_the_code_says() -> None:
    listed = re.search(r"## Errors\n(.*)", PAGE.read_text(), re.DOTALL)
    assert listed is not None
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in sorted(SOURCES.rglob("*.py"))))
    texts = [
        text
        for row in re.findall(r"^\| (`.*?) \|", listed[1], re.MULTILINE)
        for text in re.findall("`(.*?)`", row)
    ]
    assert len(texts) > 25
    for text in texts:
        # Names are in braces there.
        pattern = re.sub(r"(?<= )'q'", r"'\\{.*?\\}'", re.escape(text)).replace(" N ", r" \{.*?\} ")
        assert re.search(pattern.replace(r"\ N\ ", r"\ \{.*?\}\ "), code), text
