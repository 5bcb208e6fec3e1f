"""The languages of the client programs: their requirements, how to prepare them once, how to run the
programs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON_PACKAGE = "conformance_tests.clients.python"

PREPARE_SECONDS = 300


class PrepareFailed(Exception):
    pass


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple[str, ...]
    directory: Path


@dataclass(frozen=True)
class Toolchain:
    name: str
    # Executable and the package that has it, for the line about what is missing.
    needs: Mapping[str, str]
    # Files that decide whether the last preparation is still valid.
    sources: tuple[str, ...]
    product: Callable[[Path], Path]
    steps: Callable[[Path], list[list[str]]]
    programs: Callable[[Path], list[Program]]
    environment: Callable[[Path], Mapping[str, str]] = field(default=lambda cache: {})

    def missing(self) -> str | None:
        for executable, package in self.needs.items():
            if shutil.which(executable) is None:
                return f"{executable} not found (install {package})"
        return None

    def prepare(self, cache: Path) -> None:
        """Install and build into the cache, unless nothing has changed since the last time."""
        stamp, wanted = cache / f"{self.name}.stamp", self._digest()
        if self.product(cache).exists() and stamp.exists() and stamp.read_text() == wanted:
            return
        cache.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        for step in self.steps(cache):
            self._run(step, cache)
        stamp.write_text(wanted)

    def _run(self, step: list[str], cache: Path) -> None:
        try:
            done = subprocess.run(
                step,
                cwd=HERE / self.name,
                env={**os.environ, **self.environment(cache)},
                check=False,
                capture_output=True,
                text=True,
                timeout=PREPARE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise PrepareFailed(f"{' '.join(step)} took more than {PREPARE_SECONDS} s") from None
        if done.returncode != 0:
            raise PrepareFailed(f"{' '.join(step)} gave {done.returncode}\n{done.stdout}{done.stderr}")

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for pattern in self.sources:
            for path in sorted((HERE / self.name).glob(pattern)):
                digest.update(f"{path.name}\0".encode() + path.read_bytes())
        return digest.hexdigest()


def _python(cache: Path) -> str:
    return str(cache / "python" / "bin" / "python")


def _python_programs(cache: Path) -> list[Program]:
    # As modules from the root of the repository, which is how Celery's worker finds its tasks too.
    return [
        Program(name, (_python(cache), "-m", f"{PYTHON_PACKAGE}.{module}"), ROOT)
        for name, module in (
            ("pika", "pika_program"),
            ("aio-pika", "aio_pika_program"),
            ("kombu-celery", "kombu_celery_program"),
            ("amqpstorm", "amqpstorm_program"),
            ("tools", "management_program"),
        )
    ]


PYTHON = Toolchain(
    name="python",
    needs={},
    sources=("requirements.txt",),
    product=lambda cache: Path(_python(cache)),
    steps=lambda cache: [
        [sys.executable, "-m", "venv", "--clear", str(cache / "python")],
        [_python(cache), "-m", "pip", "install", "--quiet", "-r", "requirements.txt"],
    ],
    programs=_python_programs,
)

NODE = Toolchain(
    name="node",
    needs={"node": "Node.js 18 or later", "npm": "npm"},
    sources=("package.json", "package-lock.json", ".npmrc"),
    product=lambda cache: HERE / "node" / "node_modules" / "amqplib",
    steps=lambda cache: [["npm", "ci", "--cache", str(cache / "npm")]],
    programs=lambda cache: [Program("amqplib", ("node", "program.js"), HERE / "node")],
)

GO = Toolchain(
    name="go",
    needs={"go": "Go 1.20 or later"},
    sources=("*.go", "go.mod", "go.sum"),
    product=lambda cache: cache / "go" / "program",
    steps=lambda cache: [
        ["go", "mod", "download", "-modcacherw"],
        ["go", "vet", "./..."],
        ["go", "build", "-modcacherw", "-buildvcs=false", "-o", str(cache / "go" / "program"), "."],
    ],
    programs=lambda cache: [
        Program("amqp091-go", (str(cache / "go" / "program"),), HERE / "go"),
        Program("rabbit-hole", (str(cache / "go" / "program"), "management"), HERE / "go"),
    ],
    environment=lambda cache: {
        "GOMODCACHE": str(cache / "go" / "mod"),
        "GOCACHE": str(cache / "go" / "build"),
        "GOTOOLCHAIN": "local",
    },
)

JAVA = Toolchain(
    name="java",
    needs={"java": "a JDK 17 or later", "javac": "a JDK 17 or later", "mvn": "Maven"},
    sources=("pom.xml", "src/main/java/*.java"),
    product=lambda cache: HERE / "java" / "target" / "dependency",
    steps=lambda cache: [
        ["mvn", "--quiet", "--batch-mode", f"-Dmaven.repo.local={cache / 'maven'}", "process-classes"]
    ],
    programs=lambda cache: [
        Program(name, ("java", "-cp", "target/classes:target/dependency/*", class_), HERE / "java")
        for name, class_ in (("java-client", "Program"), ("hop", "Management"))
    ],
)

TOOLCHAINS = (PYTHON, NODE, GO, JAVA)
