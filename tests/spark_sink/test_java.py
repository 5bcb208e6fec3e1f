"""Java on a machine that has none, and on one that has."""

import subprocess
from pathlib import Path

import pytest

from spark_sink.java import VERSION_MIN, bundled, java_home, version


def test_the_bundled_java_takes_the_flag_that_spark_always_gives(tmp_path: Path) -> None:
    home = bundled(tmp_path)
    assert (version(home / "bin" / "java") or 0) >= VERSION_MIN
    command: list[str | Path] = [
        home / "bin" / "java",
        "--add-modules=jdk.incubator.vector",
        "-Dof=two words",
        "-XshowSettings:properties",
    ]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "of = two words" in done.stderr
    assert bundled(tmp_path) == home


def test_a_java_that_is_too_old_or_none_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\"' >&2\n")
    (old / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert version(old / "bin" / "java") == 11
    assert java_home(tmp_path / "cache").parent == tmp_path / "cache"
    assert version(tmp_path / "nothing" / "java") is None
