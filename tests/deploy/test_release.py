"""What `make release` builds, without the compiler: man pages, package, bill of materials, checksums."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import fields
from pathlib import Path

import pytest

from amqp_server.config import VERSION, Config
from amqp_server.mqctl.command import mqctl
from conformance_tests.patience import PATIENCE_S
from deploy import bill_of_materials, manual, release
from tests.reliability.node import Node

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", manual.pages())
def test_a_man_page_is_whole(name: str, tmp_path: Path) -> None:
    page = tmp_path / name
    page.write_text(manual.pages()[name])
    if shutil.which("groff") is None:
        pytest.skip("there is no groff")
    command = ["groff", "-man", "-Tutf8", "-P-cbou", "-ww", "-rLL=250n", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    text = " ".join(re.sub("[\u2010\u2212]", "-", done.stdout).split())
    if name == "mqctl.1":
        wanted = set(mqctl.commands)
    else:
        wanted = {
            each.name if "toml" in name else "--" + each.name.replace("_", "-") for each in fields(Config)
        }
    assert [each for each in sorted(wanted) if each not in text] == []
    assert f"mqd {VERSION}" in text or VERSION in manual.pages()[name]


def test_the_bill_has_all_libraries_of_a_node_and_no_others() -> None:
    told = bill_of_materials.bill()
    names = {each["name"] for each in told["components"]}
    assert {
        "trio",
        "lmdb",
        "msgspec",
        "pamqp",
        "click",
        "argon2-cffi",
        "argon2-cffi-bindings",
        "cffi",
    } <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "mqd"}
    assert told["metadata"]["component"]["purl"] == f"pkg:pypi/mqd@{VERSION}"
    assert all(each["version"] and each["purl"].startswith("pkg:pypi/") for each in told["components"])
    assert told == bill_of_materials.bill()


def test_a_context_for_an_image(tmp_path: Path) -> None:
    with tarfile.open(release.image_context(tmp_path)) as archive:
        names = archive.getnames()
    assert {"Dockerfile", "setup.py", "pyproject.toml", "amqp_server/app.py"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", ".", "build"))]
    again = tmp_path / "again"
    again.mkdir()
    first = next(tmp_path.glob("*.tar.gz")).read_bytes()
    assert release.image_context(again).read_bytes() == first


def test_checksums(tmp_path: Path) -> None:
    (tmp_path / "man").mkdir()
    (tmp_path / "man" / "a.1").write_text("a")
    (tmp_path / "b").write_text("b")
    release.checksums(tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "b").write_text("c")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A Debian package of the tree's packages, unpacked; it uses the libraries of this environment."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb")
    library = tmp_path / "library"
    for name in ("amqp_server", "exchanges", "persistence", "quorum_queue"):
        shutil.copytree(ROOT / name, library / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = release.debian_package(tmp_path, library, release.man_pages(tmp_path))
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    told = subprocess.run(
        ["dpkg-deb", "--field", str(package)], capture_output=True, text=True, check=True
    ).stdout
    assert f"Version: {VERSION}\n" in told and "Package: mqd\n" in told
    minor = sys.version_info.minor
    assert f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1})" in told
    return root


def test_the_files_of_a_package(unpacked: Path) -> None:
    unit = (unpacked / "lib/systemd/system/mqd.service").read_text()
    assert unit.startswith("[Unit]\n")
    assert "ExecStart=/usr/bin/mqd --config /etc/mqd/mqd.toml --data-dir /var/lib/mqd\n" in unit
    assert (unpacked / "etc/mqd/mqd.toml").read_text() == (ROOT / "deploy/mqd.example.toml").read_text()
    for page in ("man1/mqd.1.gz", "man1/mqctl.1.gz", "man5/mqd.toml.5.gz"):
        assert (unpacked / "usr/share/man" / page).stat().st_size > 1_000
    for program in release.PROGRAMS:
        assert os.access(unpacked / "usr/bin" / program, os.X_OK)


def test_the_programs_of_a_package_serve(unpacked: Path, tmp_path: Path) -> None:
    program = unpacked / "usr/bin/mqd"
    # Here with this environment's Python, which has the libraries: `python3 -I` leaves out the tree.
    node = Node(tmp_path)
    node.program = [sys.executable, "-I", str(program)]
    with node:
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                str(unpacked / "usr/bin/mqctl"),
                "--url",
                f"http://127.0.0.1:{node.http}",
                "ping",
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "Ping succeeded\n")
