"""Which interpreters a release builds wheels for, and what is said of others; how a wheel is tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deploy import interpreters, trying

OWN = f"3.{sys.version_info.minor}"


def program(directory: Path, name: str, script: str) -> str:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def answering(version: str, name: str = "cpython", headers: bool = True, free_threaded: bool = False) -> str:
    major, minor = version.split(".")
    return f"echo {major} {minor} {name} {headers} {free_threaded}"


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that a release has wheels for, instead of those in pyproject.toml."""
    wanted = [OWN, "3.97", "3.98", "3.99"]
    monkeypatch.setattr(interpreters, "versions", lambda: wanted)
    return wanted


def test_the_versions_are_those_of_cibuildwheel() -> None:
    found = interpreters.versions()
    assert OWN in found and found[0] == "3.11" and all(each.startswith("3.") for each in found)


def test_this_interpreter_answers() -> None:
    assert interpreters.ask(sys.executable) == (sys.executable, OWN)


def test_an_interpreter_of_each_version_is_taken(
    versions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are given come before those in PATH; of those in PATH, the first that runs."""
    shims, there = tmp_path / "shims", tmp_path / "bin"
    given = program(tmp_path, "given", answering("3.97"))
    program(there, "python3.97", answering("3.97"))
    program(shims, "python3.98", "echo 'pyenv: python3.98: command not found' >&2; exit 127")
    found = program(there, "python3.98", answering("3.98"))
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{there}")
    chosen, missing = interpreters.find([given])
    assert [each.path for each in chosen] == [sys.executable, given, found]
    assert missing == [
        "a compiled wheel for Python 3.99: none is in PATH; --python PATH or RELEASE_PYTHONS names one"
    ]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "does not run, or lacks venv: it says nothing"),
        (
            "echo 'pyenv: command not found' >&2; echo hint >&2; exit 1",
            "lacks venv: pyenv: command not found",
        ),
        ("printf 'Traceback\\nNo module ensurepip\\n' >&2; exit 1", "lacks venv: No module ensurepip"),
        (answering("3.97", name="pypy"), "is no CPython"),
        (answering("3.97", free_threaded=True), "is no CPython with a global lock"),
        (answering("3.97", headers=False), "has no Python.h"),
        (answering("3.9"), "is 3.9, which pyproject.toml does not list"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_reason(
    versions: list[str], tmp_path: Path, script: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    path = program(tmp_path, "python", script)
    chosen, missing = interpreters.find([path, str(tmp_path / "none")])
    assert [each.version for each in chosen] == [OWN]
    assert path in missing[0] and reason in missing[0]
    assert "none does not run" in missing[1]


def test_paths_come_from_the_environment() -> None:
    assert interpreters.given_in(None) == interpreters.given_in("") == []
    assert interpreters.given_in("/a/python:/b/python") == ["/a/python", "/b/python"]


def test_programs_are_tried_by_a_client_and_an_operator() -> None:
    """Those of this environment, which are not compiled."""
    line = trying.try_programs(Path(sys.executable).parent, "pure")
    assert line.startswith("mqd ready node=") and "(pure" in line


def test_a_pure_build_is_no_compiled_one() -> None:
    with pytest.raises(trying.Failed, match="should be compiled, and is pure"):
        trying.try_programs(Path(sys.executable).parent, "compiled")


def test_a_program_that_does_not_serve_is_told_with_its_log(tmp_path: Path) -> None:
    program(tmp_path, "python", f'exec {sys.executable} "$@"')
    program(tmp_path, "mqd", "echo 'the disk is full' >&2; exit 1")
    with pytest.raises(
        trying.Failed, match="ended before it was ready; the end of mqd's log: the disk is full"
    ):
        trying.try_programs(tmp_path, "pure")
