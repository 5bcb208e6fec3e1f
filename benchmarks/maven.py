"""Programs of other people, fetched by Maven when they are first needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .client import Unexpected

FETCH_MAX_S = 300
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def missing() -> str | None:
    """Return the missing program, or None."""
    found = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return f"{' and '.join(found)} not installed" if found else None


def fetched(directory: Path) -> Path:
    """Return where the jars are that the pom.xml in this directory names. Raises Unexpected."""
    jars = directory / ".cache"
    if not jars.exists():
        command = ["mvn", "-q", "-B", COPY, "-DincludeScope=runtime", f"-DoutputDirectory={jars}.new"]
        done = subprocess.run(
            command, cwd=directory, timeout=FETCH_MAX_S, check=False, text=True, capture_output=True
        )
        if done.returncode:
            raise Unexpected(f"Maven cannot fetch what {directory.name} needs: {done.stdout[-500:]}")
        Path(f"{jars}.new").rename(jars)
    return jars
