"""Which machines a compiled wheel runs on, as its name says: auditwheel looks which versions of the C
library's functions the wheel uses, and names the oldest C library that has them all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def lack() -> str | None:
    """Return what is missing, or None."""
    if importlib.util.find_spec("auditwheel") is None:
        return "auditwheel is not installed"
    if shutil.which("patchelf", path=_path()) is None:
        return "there is no patchelf"
    return None


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def named(wheel: Path) -> Path:
    """Give a wheel its honest name, and return it. Raises subprocess.CalledProcessError; then the wheel is
    as it was.
    """
    with tempfile.TemporaryDirectory(prefix="mqd-manylinux-") as name:
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", name, str(wheel)]
        subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": _path()}
        )
        [made] = Path(name).glob("*.whl")
        there = Path(shutil.copy(made, wheel.parent))
    if there != wheel:
        wheel.unlink()
    return there
