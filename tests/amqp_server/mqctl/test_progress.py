"""A progress bar for commands that take long: on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from amqp_server.mqctl import progress as module
from amqp_server.mqctl.client import UNAVAILABLE, Client, Failure
from amqp_server.mqctl.progress import each, progress
from conformance_tests.inbox import wait_for

from .conftest import Addresses, Mqctl

Captured = pytest.CaptureFixture[str]


def look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stderr a terminal for programs, and show the bar from the first moment on."""
    # Patched here, because fixtures run before pytest replaces stderr for the test.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.01)


def shown(capsys: Captured) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return [line for line in err.replace("\x1b[?25l", "").replace("\x1b[?25h", "").split("\r") if line]


def test_how_many_are_done(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_it(monkeypatch)
    with each("Closing", ["a", "b", "c", "d"]) as taken:
        assert [next(taken), next(taken), next(taken)] == ["a", "b", "c"]
        wait_for(lambda: any("2/4" in line for line in shown(capsys)), "a bar")
        assert list(taken) == ["d"]
    last = shown(capsys)[-1]
    assert last.startswith("Closing  [####") and "4/4" in last and last.endswith("\n")


def test_a_look_that_fails_is_tried_again(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_it(monkeypatch)
    answers: list[Callable[[], tuple[int, int]]] = [lambda: (7, 9)]

    def refused() -> tuple[int, int]:
        raise Failure("no answer", UNAVAILABLE)

    answers += [refused, refused, lambda: (3, 9)]
    with progress("Queues on n4", lambda: (answers.pop() if len(answers) > 1 else answers[0])()):
        wait_for(lambda: len(answers) == 1, "all answers to be asked for")
    lines = shown(capsys)
    assert any("3/9" in line for line in lines) and "7/9" in lines[-1]


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_it(monkeypatch)
    before = threading.active_count()
    with pytest.raises(Failure), each("Closing", ["a"]) as taken:
        for _ in taken:
            raise Failure("refused", UNAVAILABLE)
    assert threading.active_count() == before


def test_nothing_is_shown_where_nobody_looks(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    with progress("Waiting"), each("Closing", ["a", "b"]) as taken:
        assert list(taken) == ["a", "b"]
    assert shown(capsys) == []


def test_what_is_quick_shows_nothing(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("Waiting"):
        pass
    assert shown(capsys) == []


def test_growing_tells_of_the_queues_that_have_grown(mqctl: Mqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_it(monkeypatch)
    grown = {"a": ["n1", "n2"], "b": ["n1"], "c": ["n1"]}
    looks: list[int] = []
    may_end = threading.Event()

    def get(client: Client, *path: str, **query: str) -> list[dict[str, list[str]]]:
        assert (path, query) == (("cluster", "queues"), {"columns": "members"})
        looks.append(len(looks))
        if len(looks) > 1:
            grown["b"].append("n2")
            may_end.set()
        return [{"members": members} for members in grown.values()]

    def post(client: Client, *path: str, body: object) -> dict[str, int]:
        assert path == ("cluster", "nodes", "n2", "grow")
        assert may_end.wait(60)
        return {"queues": 2}

    monkeypatch.setattr(Client, "get", get)
    monkeypatch.setattr(Client, "post", post)
    outcome = mqctl("cluster", "grow", "n2")
    assert (outcome.code, outcome.out) == (0, "2 queues are growing\n")
    assert "Queues on n2" in outcome.err and "1/3" in outcome.err and "2/3" in outcome.err


def test_on_a_real_terminal(mqd: Addresses, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "amqp_server.mqctl", "--url", f"http://{mqd.http}"]
        command += ["await_online_nodes", "2", "--timeout", "1.3"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False)
        said = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, done.stdout) == (UNAVAILABLE, b"")
    bar, _, error = said.partition("Error: ")
    assert "Waiting  [" in bar and " s" in bar and bar.rstrip("\x1b[?25h").endswith("\n")
    assert error == "fewer than 2 nodes were up within 1.3 s\r\n"
