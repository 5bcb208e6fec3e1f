"""How mqctl prints rows, as tables that fit a terminal and as CSV, and how it completes commands."""

from __future__ import annotations

import csv
import io
import subprocess

import pytest

from amqp_server.mqctl.commands.completion import SHELLS
from amqp_server.mqctl.table import WIDTH_MIN, fitted

from .conftest import Mqctl

ROWS = [
    ["name", "messages", "arguments"],
    ["a", "12", '{"x-queue-type": "quorum", "x-max-length": 1000}'],
    ["a much longer name than others", "1234567", "{}"],
]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 30])
def test_a_table_fits_the_terminal(width: int) -> None:
    lines = fitted(ROWS, width)
    assert len(lines) == len(ROWS)
    assert max(map(len, lines)) <= width
    # Short columns are not cut to make room for long ones.
    assert all(row[1] in line for row, line in zip(ROWS, lines, strict=True)) or width < 40


def test_what_has_room_is_whole() -> None:
    assert fitted(ROWS, 200)[1].split() == ["a", "12", *ROWS[1][2].split()]
    starts = {
        line.index(cell) for line, cell in zip(fitted(ROWS, 200), ("messages", "12", "1234567"), strict=True)
    }
    assert len(starts) == 1


def test_a_terminal_that_is_too_narrow_gets_something_readable() -> None:
    assert all(len(line) <= 3 * WIDTH_MIN + 4 for line in fitted(ROWS, 5))


def test_csv_quotes_what_has_commas_and_quotes(mqctl: Mqctl) -> None:
    mqctl("add_vhost", 'odd, "name"')
    try:
        outcome = mqctl("list_vhosts", "--formatter", "csv")
        assert outcome.code == 0
        rows = list(csv.reader(io.StringIO(outcome.out)))
        assert rows[0][0] == "name" and 'odd, "name"' in [row[0] for row in rows]
        assert "name" not in mqctl("-q", "list_vhosts", "--formatter", "csv").out.splitlines()[0].split(",")
    finally:
        mqctl("delete_vhost", 'odd, "name"')


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_its_completion(mqctl: Mqctl, shell: str) -> None:
    outcome = mqctl("completion", shell)
    assert outcome.code == 0 and "_MQCTL_COMPLETE" in outcome.out


def test_the_shell_is_told_commands_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import sys

    told = {"_MQCTL_COMPLETE": "bash_complete", "COMP_WORDS": "mqctl list_q", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "amqp_server.mqctl"],
        env=os.environ | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plain,list_queues" in done.stdout.split()
