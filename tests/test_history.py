"""The example whose stream DuckDB and Spark read in its object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.history import run


def test_duckdb_and_spark_read_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--events", "60000", "--segment-bytes", "400000", "--directory", str(tmp_path / "store")]
    assert run.main(arguments) == 0
    told = capsys.readouterr().out
    assert "DuckDB: 1" in told and "Spark: 1" in told and told.count(" right, ") == 2
    # Several files, and names that sort by offset.
    files = sorted(path.name for path in (tmp_path / "store" / "tables" / "@2f" / "events").iterdir())
    assert len(files) > 3 and files[0].startswith(20 * "0" + "-")
