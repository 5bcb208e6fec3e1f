"""Builds all that a release consists of, in build/release: `make release`.

Source distribution, a compiled wheel for each interpreter that is found and a pure one, the context for an
image, a Debian package with systemd unit and man pages, a bill of materials, and checksums. Each wheel is
installed in a fresh environment and has to serve. What this machine lacks (a compiler, an interpreter,
dpkg-deb) is named and left out; --require-all makes that an error.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from amqp_server.config import VERSION
from deploy import bill_of_materials, compiled, interpreters, manual, manylinux, trying

ROOT = Path(__file__).parent.parent
RELEASE = ROOT / "build" / "release"
PROGRAMS = {"mqd": "amqp_server.main", "mqctl": "amqp_server.mqctl.main", "mqd-backup": "amqp_server.backup"}
#: Where the Debian package has mqd and its libraries.
LIBRARY = "usr/lib/mqd"
WRAPPER = """#!/usr/bin/python3 -I
import os
import sys

here = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(here, "..", "lib", "mqd"))
from {module} import main

main()
"""
POSTINST = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
"""
#: Times in archives, so that the same sources give the same archives: 2026-01-01.
STAMP = 1_767_225_600


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def copy_sources(place: Path) -> None:
    for path in compiled.sources():
        target = place / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def source_distribution(out: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="mqd-sdist-") as name:
        copy_sources(Path(name))
        code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
        done = subprocess.run(
            [sys.executable, "-c", code, str(out.resolve())],
            cwd=name,
            capture_output=True,
            text=True,
            check=True,
        )
    return out / done.stdout.splitlines()[-1]


def pure_wheel(out: Path, source: Path) -> Path:
    """Build it from the source distribution, which is tried so."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    if compiled.has_build_tools():
        command.append("--no-build-isolation")
    subprocess.run(
        [*command, "--wheel-dir", str(out), str(source)],
        check=True,
        env={**os.environ, "MQD_PURE": "1"},
        stdout=sys.stderr,
    )
    return out / f"mqd-{VERSION}-py3-none-any.whl"


def compiled_wheel(out: Path) -> Path | None:
    """Return the wheel that `make build` has built, or builds now; None where nothing can be compiled."""
    if compiled.lack() is not None or compiled.programs() == Path(sys.executable).parent:
        return None
    [wheel] = (compiled.WHEELS / compiled.digest()).glob("*.whl")
    return Path(shutil.copy(wheel, out))


def other_wheels(out: Path, found: Iterable[interpreters.Interpreter], missing: list[str]) -> dict[Path, str]:
    """Build wheels for other interpreters; return each with the interpreter that it is for."""
    wheels = {}
    for interpreter in found:
        try:
            wheel = honest(Path(shutil.copy(interpreters.wheel_of(interpreter), out)), missing)
        except subprocess.CalledProcessError as failed:
            missing.append(f"a compiled wheel for Python {interpreter.version}: the build failed: {failed}")
        else:
            wheels[wheel] = interpreter.path
    return wheels


def tried(wheels: Mapping[Path, str]) -> list[str]:
    """Install each wheel by its interpreter, and let it serve; return what failed."""
    failures = []
    for wheel, python in wheels.items():
        try:
            say(f"{wheel.name}: {trying.try_wheel(python, wheel)}")
        except trying.Failed as failed:
            failures.append(f"{wheel.name}, by {python}: {failed}")
    return failures


def honest(wheel: Path, missing: list[str]) -> Path:
    """Name a compiled wheel after the oldest system that it runs on; return where it is now."""
    why = manylinux.lack()
    if why is None:
        try:
            return manylinux.named(wheel)
        except subprocess.CalledProcessError as failed:
            why = (failed.stderr.strip().splitlines() or [str(failed)])[-1]
    missing.append(f"a manylinux tag of {wheel.name}: {why}")
    return wheel


def image_context(out: Path) -> Path:
    """Pack what `docker build -` needs: the sources and the Dockerfile, which stands at the top."""
    path = out / f"mqd-{VERSION}-image.tar.gz"
    files = {str(each.relative_to(ROOT)): each for each in compiled.sources()}
    files["Dockerfile"] = ROOT / "deploy" / "Dockerfile"
    with gzip.GzipFile(path, "wb", mtime=STAMP) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, file in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = file.stat().st_size, STAMP
            member.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            with file.open("rb") as content:
                archive.addfile(member, content)
    return path


def man_pages(out: Path) -> list[Path]:
    (out / "man").mkdir(exist_ok=True)
    made = []
    for name, text in manual.pages().items():
        path = out / "man" / name
        path.write_text(text)
        made.append(path)
    return made


def libraries(wheel: Path, place: Path) -> None:
    """Install the wheel and all that it needs into a directory."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    subprocess.run([*command, "--target", str(place), str(wheel)], check=True, stdout=sys.stderr)
    shutil.rmtree(place / "bin", ignore_errors=True)


def debian_package(out: Path, library: Path, pages: Iterable[Path]) -> Path:
    """Package a directory with mqd and its libraries, for this machine's architecture and Python."""
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    path = out / f"mqd_{VERSION}_{architecture}.deb"
    with tempfile.TemporaryDirectory(prefix="mqd-deb-") as name:
        root = Path(name)
        root.chmod(0o755)
        shutil.copytree(library, root / LIBRARY)
        for program, module in PROGRAMS.items():
            _write(root / "usr/bin" / program, WRAPPER.format(module=module), 0o755)
        for page in pages:
            packed = gzip.compress(page.read_bytes(), mtime=STAMP)
            _write(root / f"usr/share/man/man{page.suffix[1:]}/{page.name}.gz", packed)
        unit = (ROOT / "deploy/mqd.service").read_text().replace("/opt/mqd/bin/mqd", "/usr/bin/mqd")
        lines = unit.splitlines(keepends=True)
        # The comment at the top says how to install it by hand.
        _write(root / "lib/systemd/system/mqd.service", "".join(lines[lines.index("[Unit]\n") :]))
        _write(root / "etc/mqd/mqd.toml", (ROOT / "deploy/mqd.example.toml").read_text())
        _write(root / "usr/share/doc/mqd/copyright", (ROOT / "LICENSE").read_text())
        _write(root / "DEBIAN/conffiles", "/etc/mqd/mqd.toml\n")
        _write(root / "DEBIAN/postinst", POSTINST, 0o755)
        size = sum(each.stat().st_size for each in root.rglob("*") if each.is_file()) // 1024
        _write(root / "DEBIAN/control", _control(architecture, size))
        command = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(path)]
        subprocess.run(
            command, check=True, stdout=sys.stderr, env={**os.environ, "SOURCE_DATE_EPOCH": str(STAMP)}
        )
    return path


def _control(architecture: str, size_kib: int) -> str:
    minor = sys.version_info.minor
    return (
        f"Package: mqd\nVersion: {VERSION}\nArchitecture: {architecture}\nSection: net\nPriority: optional\n"
        "Maintainer: The mqd authors\n"
        f"Depends: python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}), libc6\nInstalled-Size: {size_kib}\n"
        "Description: message broker that speaks AMQP 0-9-1\n"
        " Stock clients of RabbitMQ use it unchanged, on one node or on three.\n"
    )


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def checksums(out: Path) -> Path:
    """Write them as `sha256sum --check` reads them."""
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out)}\n" for path in files]
    path = out / "SHA256SUMS"
    path.write_text("".join(lines))
    return path


def release(out: Path, *, pythons: Sequence[str], require_all: bool) -> int:
    missing: list[str] = []
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = source_distribution(out)
    pure = pure_wheel(out, source)
    wheel = compiled_wheel(out)
    wheels = {pure: sys.executable}
    if wheel is None:
        missing.append("compiled wheels: there is no C compiler, or MQD_PURE is set")
    else:
        wheel = honest(wheel, missing)
        wheels[wheel] = sys.executable
        found, lacking = interpreters.find(pythons)
        missing += lacking
        wheels |= other_wheels(out, [each for each in found if each.path != sys.executable], missing)
    failures = tried(wheels)
    image_context(out)
    pages = man_pages(out)
    (out / f"mqd-{VERSION}.cdx.json").write_text(json.dumps(bill_of_materials.bill(), indent=1) + "\n")
    if shutil.which("dpkg-deb") is None:
        missing.append("a Debian package: there is no dpkg-deb")
    else:
        with tempfile.TemporaryDirectory(prefix="mqd-library-") as name:
            libraries(wheel or pure, Path(name))
            debian_package(out, Path(name), pages)
    checksums(out)
    for path in sorted(out.iterdir()):
        print(path.relative_to(ROOT))
    for text in missing:
        say(f"left out: {text}")
    for text in failures:
        say(f"FAILED: {text}")
    return 1 if failures or (missing and require_all) else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--require-all", action="store_true", help="end with 1 if something was left out")
    parser.add_argument(
        "--python",
        action="append",
        default=interpreters.given_in(os.environ.get(interpreters.VARIABLE)),
        metavar="PATH",
        help="an interpreter for which a wheel is built; those in PATH are found. May be repeated; "
        f"{interpreters.VARIABLE} has others, with colons between them",
    )
    options = parser.parse_args()
    return release(RELEASE, pythons=options.python, require_all=options.require_all)


if __name__ == "__main__":
    sys.exit(main())
