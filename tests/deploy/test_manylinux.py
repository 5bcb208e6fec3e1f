"""Compiled wheels are named after the oldest system that they run on."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

from deploy import release


def test_a_wheel_is_named_after_the_oldest_system_that_it_runs_on(tmp_path: Path) -> None:
    """It holds a compiled library of another package, which is published for old systems, too."""
    core = Path(str(importlib.import_module("msgspec._core").__file__))
    content = tmp_path / "content"
    (content / "some-1.dist-info").mkdir(parents=True)
    shutil.copy(core, content)
    tag = f"cp3{sys.version_info.minor}"
    platform = f"linux_{os.uname().machine}"
    (content / "some-1.dist-info" / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-{platform}\n"
    )
    (content / "some-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1\n")
    (content / "some-1.dist-info" / "RECORD").write_text(f"{core.name},,\n")
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", content)
    wheel = Path(packed).rename(tmp_path / f"some-1-{tag}-{tag}-{platform}.whl")
    missing: list[str] = []
    named = release.honest(wheel, missing)
    assert missing == [] and "-manylinux" in named.name and named.exists() and not wheel.exists()


def test_a_wheel_that_cannot_be_judged_keeps_its_name(tmp_path: Path) -> None:
    wheel = tmp_path / "some-1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"not an archive")
    missing: list[str] = []
    assert release.honest(wheel, missing) == wheel and wheel.exists()
    assert missing[0].startswith(f"a manylinux tag of {wheel.name}: ") and len(missing) == 1
