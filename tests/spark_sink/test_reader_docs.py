"""docs/spark.md lists the options that there are."""

from __future__ import annotations

import re
from pathlib import Path

from spark_sink.options import OPTIONS
from tests.spark_sink.option_table import PAGE, current

SOURCES = Path(__file__).parents[2] / "spark_sink"


def test_the_table_is_current() -> None:
    text = PAGE.read_text()
    assert text == current(text), "python -m tests.spark_sink.option_table"
    assert all(f"| `{option.name}` |" in text for option in OPTIONS)


def test_the_errors_are_what_the_code_says() -> None:
    listed = re.search(r"## Errors\n(.*)", PAGE.read_text(), re.DOTALL)
    assert listed is not None
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in sorted(SOURCES.rglob("*.py"))))
    texts = [
        text
        for row in re.findall(r"^\| (`.*?) \|", listed[1], re.MULTILINE)
        for text in re.findall("`(.*?)`", row)
    ]
    assert len(texts) > 10
    for text in texts:
        # Names stand in braces there.
        pattern = re.sub(r"'q'", r"'\\{.*?\\}'", re.escape(text)).replace(" N ", r" \{.*?\} ")
        assert re.search(pattern.replace(r"\ N\ ", r"\ \{.*?\}\ "), code), text
