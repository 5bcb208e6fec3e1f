"""Compiles what is pure and often run, by mypyc, when a wheel is built. See docs/compiled.md.

MQD_PURE=1 leaves all as plain Python, as does a machine without a C compiler. An editable install is always plain
Python: a compiled module beside its source would hide later changes of the source.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
#: Measured: -O2 takes twice as long to compile, and gains less than what two runs of one build differ by.
OPTIMISATION = "1"
#: What every message passes; what runs seldom would only make the build longer.
COMPILED = (
    "exchanges/*.py",
    "persistence/layer.py",
    "persistence/pages.py",
    "persistence/settled.py",
    "quorum_queue/*.py",
    "quorum_queue/cluster/*.py",
    "quorum_queue/links/*.py",
    "quorum_queue/machine/*.py",
    "quorum_queue/raft/*.py",
    "amqp_server/broker/*.py",
    "amqp_server/channel/*.py",
    "amqp_server/clock.py",
    "amqp_server/cluster/disk_progress.py",
    "amqp_server/cluster/hosts.py",
    "amqp_server/cluster/replication.py",
    "amqp_server/connection/*.py",
    "amqp_server/streams/*.py",
    "amqp_server/turn.py",
    "amqp_server/wire/*.py",
)
#: Seldom run, and long.
INTERPRETED = {
    "quorum_queue/cluster/lost_entries.py",
    "quorum_queue/cluster/transfer.py",
    "quorum_queue/links/handshake.py",
}


def obstacle(path: Path) -> str | None:
    """Return why mypyc cannot compile this module, or None."""
    if path.name == "errors.py":
        return "tables of exception classes"
    tree = ast.parse(path.read_bytes())
    if not any(not isinstance(node, ast.Expr) for node in tree.body):
        return "nothing but a docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            # Trio wants coroutines of the interpreter's own.
            return "awaits"
        if isinstance(node, ast.Import) and any(name.name == "trio" for name in node.names):
            return "uses Trio"
        if isinstance(node, ast.ClassDef):
            if any(ast.unparse(base).startswith("msgspec.") for base in node.bases):
                return "a msgspec Struct would lose its options"
            if any("slots=True" in ast.unparse(decorator) for decorator in node.decorator_list):
                return "slots=True makes a second class, and compiled code would go on with the first"
    return None


def compiled_modules() -> Iterator[str]:
    """The modules that are compiled, as paths from the top of the tree."""
    for pattern in COMPILED:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name not in INTERPRETED and obstacle(path) is None:
                yield name


def hindrance() -> str | None:
    """Return why nothing is compiled here, or None."""
    if os.environ.get("MQD_PURE", "0") not in ("", "0"):
        return "MQD_PURE is set"
    try:
        import mypyc.build  # noqa: F401
    except ImportError:
        return "mypyc is not installed"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "probe.c")
        program.write_text("#include <Python.h>\n")
        command = [
            *compiler.split(),
            f"-I{include}",
            "-c",
            str(program),
            "-o",
            str(program.with_suffix(".o")),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return f"there is no C compiler ({compiler})"
    if done.returncode:
        return f"the C compiler ({compiler}) finds no Python.h or does not work"
    return None


def jobs() -> int:
    chosen = os.environ.get("MQD_BUILD_JOBS")
    return (
        int(chosen)
        if chosen
        else len(os.sched_getaffinity(0))
        if sys.platform == "linux"
        else os.cpu_count() or 1
    )


class ParallelBuild(build_ext):
    """Compiles the C files of one extension side by side; setuptools itself does so with extensions only."""

    def build_extensions(self) -> None:
        self.parallel = jobs()
        compile_all = self.compiler.compile
        total = sum(len(extension.sources) for extension in self.extensions)
        finished = 0
        lock = threading.Lock()

        def compile_one(source: str, options: dict[str, Any]) -> list[str]:
            nonlocal finished
            objects: list[str] = compile_all([source], **options)
            with lock:
                finished += 1
                if finished % 25 == 0 or finished == total:
                    say(f"{finished} of {total} C files compiled")
            return objects

        def compile_side_by_side(sources: Sequence[str], **options: Any) -> list[str]:
            # The largest first, so that none of them is the last one at work.
            order = sorted(sources, key=os.path.getsize, reverse=True)
            with ThreadPoolExecutor(jobs()) as pool:
                made = dict(
                    zip(order, pool.map(lambda source: compile_one(source, options), order), strict=True)
                )
            return [name for source in sources for name in made[source]]

        self.compiler.compile = compile_side_by_side
        super().build_extensions()


def say(text: str) -> None:
    print(f"mqd: {text}", file=sys.stderr, flush=True)


def extensions() -> list[Extension]:
    # This file also runs for questions, such as for the version, and for editable installs.
    if not {"bdist_wheel", "build_ext", "build"}.intersection(sys.argv):
        return []
    for old in Path("build").glob("lib*"):
        # What an earlier build left goes into the wheel: a compiled module beside newer source.
        shutil.rmtree(old)
    why = hindrance()
    if why is not None:
        say(f"installs as pure Python, slower than compiled: {why}")
        return []
    from mypyc.build import mypycify

    modules = list(compiled_modules())
    say(f"compiling {len(modules)} modules on {jobs()} cores (MQD_PURE=1 leaves them as they are)")
    # Libraries are not installed where wheels are built; what they give is checked when it is used.
    options = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file=", "--no-warn-no-return"]
    made: list[Extension] = mypycify(
        [*options, *modules],
        opt_level=OPTIMISATION,
        debug_level="0",
        multi_file=True,
        group_name="mqd",
        target_dir="build/mypyc",
    )
    for extension in made:
        # Other compilers warn of other things.
        extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
    return made


if __name__ == "__main__":
    os.chdir(ROOT)
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
