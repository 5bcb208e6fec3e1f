"""The interpreters for which a release has compiled wheels: `[tool.cibuildwheel]` in pyproject.toml names
their versions; where they are, the caller or PATH says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy import compiled

#: Paths of interpreters, separated as in PATH, beside those of --python.
VARIABLE = "RELEASE_PYTHONS"
#: Seconds after which an interpreter does not run.
ANSWER_S = 30
#: Where the environments are in which wheels for other interpreters are built.
PLACE = compiled.ROOT / "build" / "pythons"
QUESTION = (
    "import sys, sysconfig, pathlib, venv, ensurepip; "
    "print(*sys.version_info[:2], sys.implementation.name, "
    "pathlib.Path(sysconfig.get_paths()['include'], 'Python.h').exists(), "
    "bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
)


class Interpreter(NamedTuple):
    path: str
    #: As in 3.12.
    version: str


class Unusable(Exception):
    """Why no wheel is built for an interpreter."""


def versions() -> list[str]:
    """Return the versions of CPython that a release has wheels for, as in 3.12."""
    options = tomllib.loads((compiled.ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    return [f"3.{minor}" for minor in re.findall(r"\bcp3(\d+)-", options["build"])]


def ask(path: str) -> Interpreter:
    """Raises Unusable."""
    try:
        done = subprocess.run(
            [path, "-c", QUESTION], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"{path} does not run: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        # Of a traceback the last line, of all else the first.
        why = said[-1] if said[0].startswith("Traceback") else said[0]
        raise Unusable(f"{path} does not run, or lacks venv: {why}")
    major, minor, name, headers, free_threaded = done.stdout.split()
    if name != "cpython" or free_threaded == "True":
        raise Unusable(f"{path} is no CPython with a global lock")
    if headers != "True":
        raise Unusable(f"{path} has no Python.h; on Debian: apt-get install python{major}.{minor}-dev")
    return Interpreter(path, f"{major}.{minor}")


def find(given: Sequence[str]) -> tuple[list[Interpreter], list[str]]:
    """Return an interpreter of each version, and what is missing: first this one, then those given, then
    those in PATH. One that was given and cannot be used is missing, too.
    """
    wanted, missing = versions(), list[str]()
    chosen: dict[str, Interpreter] = {}

    def take(path: str) -> None:
        try:
            found = ask(path)
        except Unusable as error:
            missing.append(f"a compiled wheel: {error}")
            return
        if found.version not in wanted:
            missing.append(f"a compiled wheel: {path} is {found.version}, which pyproject.toml does not list")
        else:
            chosen.setdefault(found.version, found)

    own = f"3.{sys.version_info.minor}"
    if own in wanted:
        chosen[own] = Interpreter(sys.executable, own)
    for path in given:
        take(path)
    for version in wanted:
        if version in chosen:
            continue
        reasons = []
        for path in _in_path(f"python{version}"):
            try:
                chosen[version] = ask(path)
                break
            except Unusable as error:
                reasons.append(str(error))
        else:
            why = reasons[0] if reasons else "none is in PATH; --python PATH or RELEASE_PYTHONS names one"
            missing.append(f"a compiled wheel for Python {version}: {why}")
    return [chosen[version] for version in wanted if version in chosen], missing


def _in_path(name: str) -> Iterator[str]:
    """Yield all programs of this name: the first one may be a shim of pyenv's that runs nothing."""
    for directory in os.get_exec_path():
        found = shutil.which(name, path=directory)
        if found is not None:
            yield found


def given_in(environment: str | None) -> list[str]:
    return [path for path in (environment or "").split(os.pathsep) if path]


def wheel_of(interpreter: Interpreter) -> Path:
    """Build the compiled wheel for another interpreter, unless it is there. Raises
    subprocess.CalledProcessError.
    """
    place = PLACE / interpreter.version
    python = place / "bin" / "python"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([interpreter.path, "-m", "venv", str(place)], check=True, stdout=sys.stderr)
    done = subprocess.run(
        [str(python), "-m", "deploy.compiled", "--wheel"],
        cwd=compiled.ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Path(done.stdout.splitlines()[-1])
