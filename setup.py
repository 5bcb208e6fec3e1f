"""Compiles what is pure and often run, by mypyc, when a wheel is built. See docs/compiled.md.

MQD_PURE=1 leaves all as plain Python, as does a machine without a C compiler. An editable install is always
plain Python: a compiled module beside its source would hide later changes of the source.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
#: The library that has all compiled code, where its C is written, and the C of the libraries that Python
#: imports.
LIBRARY = "mqd__mypyc"
GENERATED = "build/mypyc"
SHIM_NAME = "mqd_shim.c"
#: Measured: -O2 takes a third longer to compile than -O1, and gains less than what two runs of one build
#: differ by.
OPTIMISATION = "1"
#: -Og takes a third less than -O1; the code of the hot loops gets up to 9 % slower.
SELDOM_OPTIMISATION = "g"
#: What each message passes gets OPTIMISATION, the rest SELDOM_OPTIMISATION.
HOT = (
    "amqp_server.backpressure",
    "amqp_server.channel.",
    "amqp_server.connection.",
    "amqp_server.streams.layout.",
    "amqp_server.turn",
    "amqp_server.wire.",
    "exchanges.router",
    "persistence.",
    "quorum_queue.cluster.",
    "quorum_queue.links.",
    "quorum_queue.local_host",
    "quorum_queue.machine.",
    "quorum_queue.raft.",
)
#: Interval of lines about a step that says nothing itself, s.
TICK_S = 10.0
#: Objects that the cache keeps: about ten builds, 100 MB.
OBJECTS_KEPT = 1600
#: What every message passes; what runs seldom would only make the build longer.
COMPILED = (
    "exchanges/*.py",
    "persistence/commits/ack_wait.py",
    "persistence/commits/commit.py",
    "persistence/commits/committing.py",
    "persistence/commits/holds.py",
    "persistence/commits/layer.py",
    "persistence/commits/layer_codec.py",
    "persistence/commits/wal.py",
    "persistence/delivered_marks.py",
    "persistence/journal.py",
    "persistence/pages/pages.py",
    "persistence/record.py",
    "persistence/replica_logs/changes.py",
    "persistence/replica_logs/logs.py",
    "persistence/replica_logs/record.py",
    "persistence/replica_logs/writer.py",
    "persistence/settled.py",
    "persistence/transaction.py",
    "persistence/worker.py",
    "quorum_queue/*.py",
    "quorum_queue/cluster/*.py",
    "quorum_queue/cluster/*/*.py",
    "quorum_queue/consumer_groups/*.py",
    "quorum_queue/links/*.py",
    "quorum_queue/message_status/*.py",
    "quorum_queue/machine/*.py",
    "quorum_queue/machine/*/*.py",
    "quorum_queue/raft/*.py",
    "amqp_server/backpressure.py",
    "amqp_server/broker/*.py",
    "amqp_server/broker/*/*.py",
    "amqp_server/channel/*.py",
    "amqp_server/clock.py",
    "amqp_server/cluster/membership/disk_progress.py",
    "amqp_server/cluster/hosts.py",
    "amqp_server/cluster/incoming.py",
    "amqp_server/cluster/peers.py",
    "amqp_server/cluster/leader_counts.py",
    "amqp_server/cluster/replication.py",
    "amqp_server/cluster/store.py",
    "amqp_server/cluster/topology_progress.py",
    "amqp_server/connection/*.py",
    "amqp_server/connection/*/*.py",
    "amqp_server/streams/*.py",
    "amqp_server/streams/*/*.py",
    "amqp_server/turn.py",
    "amqp_server/wire/*.py",
)
INTERPRETED = {
    # Decoded by msgspec, which needs the types of its fields: a compiled class tells `type` for each union.
    "quorum_queue/machine/attributes.py",
    "quorum_queue/machine/settings.py",
    # Stands for objects of other classes, attribute by attribute.
    "amqp_server/broker/in_parts/host_parts.py",
    # Its fields have the types of modules that are imported for their types only.
    "amqp_server/broker/topology/parts.py",
    # Classes that are not compiled inherit from it.
    "amqp_server/broker/reply.py",
    # Compiled code would not see that what a container does is overridden.
    "quorum_queue/empty.py",
    # Seldom run, and long.
    "amqp_server/broker/declared/argument_table.py",
    "amqp_server/broker/topology/policies.py",
    "quorum_queue/cluster/snapshots/lost_entries.py",
    "quorum_queue/cluster/snapshots/transfer.py",
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


#: Python imports each module as a library of its own. All these libraries are copies of one, which asks the
#: library that has the code for the module by its full name. mypyc would compile one for each module, at 0.2
#: s each.
SHIM = """
#include <Python.h>

static PyObject *create(PyObject *spec, PyModuleDef *unused) {
    PyObject *name = NULL, *parts = NULL, *joiner = NULL, *flat = NULL, *library = NULL, *capsule = NULL, *made = NULL;
    (void)unused;
    if ((name = PyObject_GetAttrString(spec, "name")) && (parts = PyObject_CallMethod(name, "split", "s", ".")) &&
        (joiner = PyUnicode_FromString("___")) && (flat = PyUnicode_Join(joiner, parts)) &&
        (library = PyImport_ImportModule("mqd__mypyc"))) {
        PyObject *attribute = PyUnicode_FromFormat("init_%U", flat);
        if (attribute) {
            capsule = PyObject_GetAttr(library, attribute);
            Py_DECREF(attribute);
        }
    }
    if (capsule) {
        PyObject *(*init)(void) = (PyObject * (*)(void)) PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
        if (init) made = init();
    }
    Py_XDECREF(name);
    Py_XDECREF(parts);
    Py_XDECREF(joiner);
    Py_XDECREF(flat);
    Py_XDECREF(library);
    Py_XDECREF(capsule);
    return made;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_create, create},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};
static PyModuleDef shim = {PyModuleDef_HEAD_INIT, .m_name = "mqd", .m_slots = slots};
"""


def shim_source(modules: Sequence[str]) -> str:
    """C of the one library that stands for these modules."""
    # Python looks for a function named after the last part of the module's name.
    names = sorted({name.rpartition(".")[2] for name in modules})
    return SHIM + "".join(
        f"PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModuleDef_Init(&shim); }}\n" for name in names
    )


class ObjectCache:
    """Compiled C files by the digest of all that goes into them, in the directory MQD_BUILD_CACHE."""

    def __init__(self, place: Path, tools: str, generated: Path) -> None:
        self._place = place
        self._tools = tools.encode()
        # Headers say where each thing stands that one C file uses of another.
        self._headers = b"".join(path.read_bytes() for path in sorted(generated.glob("*.h")))
        place.mkdir(parents=True, exist_ok=True)

    def path(self, source: Path, flags: Sequence[str]) -> Path:
        text = source.read_bytes()
        found = hashlib.sha256(self._tools + repr(flags).encode() + b"\n" + text)
        if b'#include "__native' in text:
            found.update(self._headers)
        return self._place / f"{found.hexdigest()[:40]}.o"

    def keep(self, made: str, path: Path) -> None:
        # Under its name at once and whole; another build may do the same.
        fresh = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        shutil.copyfile(made, fresh)
        fresh.replace(path)

    def forget_old(self) -> None:
        kept = sorted(self._place.glob("*.o"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[OBJECTS_KEPT:]:
            path.unlink(missing_ok=True)


class ParallelBuild(build_ext):
    """Compiles the C files of the library side by side, and one library for all modules to be imported by."""

    _shim: str | None = None

    def build_extension(self, ext: Extension) -> None:
        if ext.name == LIBRARY or not any(source.endswith(SHIM_NAME) for source in ext.sources):
            super().build_extension(ext)
        elif self._shim is None:
            super().build_extension(ext)
            self._shim = self.get_ext_fullpath(ext.name)
        else:
            path = self.get_ext_fullpath(ext.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copyfile(self._shim, path)

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile
        total = sum(len(extension.sources) for extension in self.extensions if extension.name == LIBRARY)
        tools = [sys.version, importlib.metadata.version("mypy"), *getattr(self.compiler, "compiler_so", ())]
        cache = None
        if "MQD_BUILD_CACHE" in os.environ and len(tools) > 2:
            version = subprocess.run([tools[2], "--version"], capture_output=True, text=True, check=False)
            place = Path(os.environ["MQD_BUILD_CACHE"])
            cache = ObjectCache(place, repr([*tools, version.stdout]), Path(GENERATED))
        done = 0
        lock = threading.Lock()

        def compile_one(source: str, options: dict[str, Any]) -> list[str]:
            nonlocal done
            flags = options["extra_postargs"] = [*(options.get("extra_postargs") or ()), *level_of(source)]
            kept = cache.path(Path(source), flags) if cache else None
            if kept and kept.exists():
                objects = self.compiler.object_filenames([source], output_dir=options["output_dir"])
                os.makedirs(os.path.dirname(objects[0]), exist_ok=True)
                shutil.copyfile(kept, objects[0])
                os.utime(kept)
            else:
                objects = compile_all([source], **options)
                if cache and kept:
                    cache.keep(objects[0], kept)
            with lock:
                done += 1
                if done % 25 == 0 or done == total:
                    say(f"{done} of {total} C files compiled")
            return list(objects)

        def compile_side_by_side(sources: Sequence[str], **options: Any) -> list[str]:
            # The largest first, so that none of them is the last one at work.
            order = sorted(sources, key=os.path.getsize, reverse=True)
            with ThreadPoolExecutor(jobs()) as pool:
                made = dict(
                    zip(
                        order,
                        pool.map(lambda source: compile_one(source, dict(options)), order),
                        strict=True,
                    )
                )
            return [name for source in sources for name in made[source]]

        self.compiler.compile = compile_side_by_side
        super().build_extensions()
        if cache:
            cache.forget_old()


def level_of(source: str) -> list[str]:
    """Flags for this C file that the others have not: a later -O is the one that counts."""
    if os.name == "nt":
        return []
    module = Path(source).stem.removeprefix("__native_").replace("___", ".")
    hot = not module.startswith(("amqp_server.", "exchanges.", "persistence.", "quorum_queue.", "mqd")) or (
        module.startswith(HOT)
    )
    return [] if hot else [f"-O{SELDOM_OPTIMISATION}"]


def say(text: str) -> None:
    print(f"mqd: {text}", file=sys.stderr, flush=True)


@contextmanager
def ticking(what: str, every_s: float = TICK_S) -> Iterator[None]:
    """Say at intervals that this work goes on: mypyc says nothing for half a minute or longer."""
    ended = threading.Event()
    began = time.monotonic()

    def tick() -> None:
        while not ended.wait(every_s):
            say(f"{what}, {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    say(f"{what} took {time.monotonic() - began:.0f} s")


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
    # Libraries may be installed where a wheel is built, or not: it is the same wheel. What they give is
    # checked when used.
    options = [
        "--ignore-missing-imports",
        "--no-site-packages",
        "--follow-imports=silent",
        "--config-file=",
        "--no-warn-no-return",
    ]
    with ticking("generating C"):
        made: list[Extension] = mypycify(
            [*options, *modules],
            opt_level=OPTIMISATION,
            debug_level="0",
            multi_file=True,
            group_name="mqd",
            target_dir=GENERATED,
        )
    for extension in made:
        # Other compilers warn of other things.
        extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        # mypyc's libraries for it export another function.
        return made
    names = [extension.name for extension in made if extension.name != LIBRARY]
    shim = Path(GENERATED, SHIM_NAME)
    shim.write_text(shim_source(names))
    return [
        *(extension for extension in made if extension.name == LIBRARY),
        *(Extension(name, sources=[str(shim)], extra_compile_args=["-Os", "-g0"]) for name in names),
    ]


if __name__ == "__main__":
    os.chdir(ROOT)
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
