"""Installs this tree compiled, beside the editable install: `python -m deploy.compiled` prints where its
programs are. With --wheel it installs nothing, and prints where the wheel for its interpreter is.

The wheel is built from a copy of the tree, and kept under the digest of all its inputs, so that compiled code
is never older than its source, and nothing is built twice. A separate environment, .venv/compiled, has mqd
and uses the libraries of .venv. Without a C compiler, or with MQD_PURE=1, the editable install runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEELS = ROOT / "build" / "wheels"
#: Number of wheels that are kept: switching between two branches builds nothing.
WHEELS_KEPT = 8
#: Compiled C files: if one module has changed, those of the others are reused if their C is the same.
OBJECTS = ROOT / "build" / "objects"
PACKAGES = ("amqp_server", "exchanges", "persistence", "quorum_queue", "spark_sink", "stream_tables")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "mqd.py", "pyspark_amqp.py")
#: Files that are only in the wheel's metadata: a change of them needs no new build.
TEXTS = ("README.md", "LICENSE")


class BuildFailed(Exception):
    pass


def sources() -> Iterator[Path]:
    """All input files of the wheel."""
    yield from (ROOT / name for name in FILES)
    for package in PACKAGES:
        yield from sorted(
            path
            for path in (ROOT / package).rglob("*")
            if path.is_file() and path.parent.name != "__pycache__"
        )


def compiler() -> str:
    return str(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]


def lack() -> str | None:
    """Return the missing tool for a compilation, or None; so this is known without a build."""
    if shutil.which(compiler()) is None:
        return f"there is no C compiler ({compiler()})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "there is no Python.h"
    return None


def tools() -> str:
    """The compiler and its versions; they may change."""
    path = shutil.which(compiler())
    version = path and subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return f"{sys.version} {sysconfig.get_platform()} {compiler()} {version}"


def digest() -> str:
    found = hashlib.sha256(tools().encode())
    for path in sources():
        if path.name in TEXTS:
            continue
        content = path.read_bytes()
        found.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:20]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def say_pure(why: str) -> None:
    say(f"mqd: runs as pure Python, slower than compiled: {why}")
    say("mqd: on Debian: apt-get install gcc python3-dev")


def has_build_tools() -> bool:
    """Return whether the requirements of the build are installed here, as they are for the tests."""
    requires: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for line in requires:
        name, least = re.match(r"([a-z]+)>=([0-9.]+)", line).groups()  # type: ignore[union-attr]
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return False
        if [int(part) for part in installed.split(".")[:2]] < [int(part) for part in least.split(".")]:
            return False
    return True


def build(place: Path) -> Path:
    """Build the wheel of this tree, and return it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqd-build-") as name:
        copy, made = Path(name, "source"), Path(name, "wheel")
        for path in sources():
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--verbose",
            "--no-deps",
            "--disable-pip-version-check",
        ]
        if has_build_tools():
            # So they are not installed again for each build.
            command.append("--no-build-isolation")
        process = subprocess.Popen(
            [*command, "--wheel-dir", str(made), str(copy)],
            env={**os.environ, "MQD_BUILD_CACHE": str(OBJECTS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if line.strip().startswith("mqd: "):
                say(line.strip())
        if process.wait():
            raise BuildFailed("".join(told[-60:]))
        [wheel] = made.glob("*.whl")
        place.parent.mkdir(parents=True, exist_ok=True)
        # Rename it, so that it appears complete.
        ready = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
        shutil.move(wheel, ready / wheel.name)
        shutil.rmtree(place, ignore_errors=True)
        ready.rename(place)
    say(f"mqd: built in {time.monotonic() - began:.0f} s")
    return place / wheel.name


def forget_old() -> None:
    kept = sorted(WHEELS.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[WHEELS_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def install(wheel: Path, where: Path) -> None:
    """Install the wheel in an environment that uses the libraries of ours, but not our editable mqd."""
    shutil.rmtree(where, ignore_errors=True)
    # Linked, not copied: a copied python3 lacks its library if it was built with a shared one.
    venv.create(where, symlinks=os.name != "nt", with_pip=False)
    python = where / "bin" / "python"
    outer, inner = (
        subprocess.run(
            [str(program), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for program in (sys.executable, python)
    )
    # A directory that a .pth file names is searched last, and its own .pth files, such as an editable
    # install's, are not read.
    Path(inner, "libraries.pth").write_text(outer + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    subprocess.run([*command, "--quiet", "--no-deps", str(wheel)], check=True, stdout=sys.stderr)


def is_compiled(wheel: Path) -> bool:
    return not wheel.name.endswith("-none-any.whl")


def programs() -> Path:
    """Build and install whatever is missing; return the directory of the programs to run."""
    ours = Path(sys.executable).parent
    if os.environ.get("MQD_PURE", "0") not in ("", "0"):
        say("mqd: runs as pure Python, slower than compiled: MQD_PURE is set")
        return ours
    why = lack()
    if why is not None:
        say_pure(why)
        return ours
    with only_one():
        return _programs(ours)


@contextmanager
def only_one() -> Iterator[None]:
    """Another make may be building the same."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    with open(WHEELS.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wheel_of(key: str) -> Path:
    """Return the wheel of this tree for this interpreter, which is built unless it is there."""
    place = WHEELS / key
    wheel = next(place.glob("*.whl"), None) or build(place)
    os.utime(place)
    forget_old()
    return wheel


def _programs(ours: Path) -> Path:
    key = digest()
    wheel = wheel_of(key)
    if not is_compiled(wheel):
        say_pure(f"the C compiler ({compiler()}) does not work")
        return ours
    where = Path(sys.prefix) / "compiled"
    stamp = where / "digest"
    if not stamp.exists() or stamp.read_text() != key:
        install(wheel, where)
        stamp.write_text(key)
    return where / "bin"


def built() -> Path:
    """Return the wheel for this interpreter, without installing it. Raises BuildFailed if it is pure."""
    with only_one():
        wheel = wheel_of(digest())
    if not is_compiled(wheel):
        raise BuildFailed(f"the C compiler ({compiler()}) does not work")
    return wheel


if __name__ == "__main__":
    try:
        print(built() if sys.argv[1:] == ["--wheel"] else programs())
    except BuildFailed as failed:
        say(f"{failed}\nmqd: the build failed; MQD_PURE=1 runs it as pure Python")
        raise SystemExit(1) from None
