"""The options as docs/spark.md lists them: `python -m tests.spark_sink.option_table` writes them there."""

from __future__ import annotations

from pathlib import Path

from spark_sink.options import OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BEGIN, END = "<!-- options: python -m tests.spark_sink.option_table -->\n", "<!-- end -->"


def table() -> str:
    lines = ["| option | default | read or written | |", "| --- | --- | --- | --- |"]
    for option in OPTIONS:
        default = {None: "", "": "", (): "", True: "`true`", False: "`false`"}.get(
            option.default, f"`{option.default}`"
        )
        side = {("sink", "source"): "both", ("sink",): "written", ("source",): "read"}[option.sides]
        lines.append(f"| `{option.name}` | {default} | {side} | {option.meaning} |")
    return "\n".join(lines) + "\n"


def current(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text()))
