"""Compilation: which modules are compiled, and that a compiled module is never older than its source. See
docs/compiled.md.
"""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import compiled

ROOT = Path(__file__).parent.parent
SETUP = runpy.run_path(str(ROOT / "setup.py"))
MODULES = list(SETUP["compiled_modules"]())
PACKAGES = ("amqp_server", "exchanges", "persistence", "quorum_queue")


def test_what_every_message_passes_is_compiled() -> None:
    hot = {
        "amqp_server/channel/basic_methods.py",
        "amqp_server/channel/publish.py",
        "amqp_server/connection/incoming.py",
        "amqp_server/connection/session.py",
        "amqp_server/turn.py",
        "amqp_server/wire/intake.py",
        "exchanges/router.py",
        "quorum_queue/cluster/queues/member_host.py",
        "quorum_queue/local_host.py",
        "quorum_queue/machine/machine.py",
        "quorum_queue/machine/replicated.py",
        "quorum_queue/raft/core.py",
    }
    assert hot <= set(MODULES), {name: SETUP["obstacle"](ROOT / name) for name in hot - set(MODULES)}


def test_no_class_has_a_method_under_a_second_name() -> None:
    """In a compiled class that would be an attribute whose value is looked up in the module when an object is
    made, and is not found there.
    """
    found = []
    for name in MODULES:
        for node in ast.walk(ast.parse((ROOT / name).read_bytes())):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = {
                each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            found += [
                f"{name}: {node.name}: {ast.unparse(each)}"
                for each in node.body
                if isinstance(each, ast.Assign)
                and isinstance(each.value, ast.Name)
                and each.value.id in methods
            ]
    assert not found


def _bases(path: Path) -> Iterator[tuple[str, str, str]]:
    """Each class and its bases: class, module of the base, base."""
    tree = ast.parse(path.read_bytes())
    found = {
        name.asname or name.name: (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                name = ast.unparse(base)
                if name in found:
                    yield node.name, *found[name]


def _is_native(module: str, name: str, *interpreted: str) -> bool:
    """Return whether no base has such a name: protocols, enumerations and named tuples stay classes of the
    interpreter.
    """
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_bytes())
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return bool(found) and not any(
        ast.unparse(base).split("[")[0].endswith(interpreted or ("Protocol", "NamedTuple", "Flag", "Enum"))
        for base in found[0].bases
    )


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    modules = {name.removesuffix(".py").replace("/", ".") for name in MODULES}
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    interpreted = [path for path in paths if path.relative_to(ROOT).as_posix() not in MODULES]
    assert interpreted and len(interpreted) < len(paths)
    wrong = [
        f"{path.relative_to(ROOT)}: {heir}({base})"
        for path in interpreted
        for heir, module, base in _bases(path)
        if module in modules and _is_native(module, base)
    ]
    assert not wrong, "these raise a TypeError when they are made; let them stand beside their base"


def _decoded(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each of our classes that msgspec decodes: a class given to a decoder, or a field of
    a Struct.
    """
    tree = ast.parse(path.read_bytes())
    here = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    found = {node.name: (here, node.name) for node in tree.body if isinstance(node, ast.ClassDef)} | {
        name.asname or name.name: (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    types: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func).endswith(".Decoder"):
                types += node.args
            types += [keyword.value for keyword in node.keywords if keyword.arg == "type"]
        elif isinstance(node, ast.ClassDef) and any("msgspec." in ast.unparse(base) for base in node.bases):
            types += [field.annotation for field in node.body if isinstance(field, ast.AnnAssign)]
    for type_ in types:
        for part in ast.walk(type_):
            if isinstance(part, ast.Name) and part.id in found:
                yield found[part.id]


def test_what_msgspec_decodes_is_not_compiled() -> None:
    """A compiled class reports `type` for each field whose annotation is not a plain class."""
    compiled_ones = {name.removesuffix(".py").replace("/", ".") for name in MODULES}
    decoded = {
        pair for package in PACKAGES for path in (ROOT / package).rglob("*.py") for pair in _decoded(path)
    }
    assert ("quorum_queue.machine.settings", "Settings") in decoded
    assert {pair for pair in decoded if pair[0] in compiled_ones and _is_native(*pair, "Enum")} == set()


@pytest.mark.parametrize(
    ("source", "obstacle"),
    [
        ("async def f() -> None: ...", "awaits"),
        ("import trio", "uses Trio"),
        ("import msgspec\nclass C(msgspec.Struct, tag=1): ...", "a msgspec Struct would lose its options"),
        (
            "@dataclass(slots=True)\nclass C: ...",
            "slots=True makes a second class, and compiled code would go on with the first",
        ),
        ("'Only text.'", "nothing but a docstring"),
        ("x = 1", None),
    ],
)
def test_what_mypyc_cannot_compile(tmp_path: Path, source: str, obstacle: str | None) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert SETUP["obstacle"](path) == obstacle


def test_nothing_is_compiled_if_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQD_PURE", "1")
    assert SETUP["hindrance"]() == "MQD_PURE is set"


def test_without_a_compiler_the_install_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQD_PURE", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert SETUP["hindrance"]() == "there is no C compiler (no-such-compiler)"
    monkeypatch.setenv("CC", "false")
    assert SETUP["hindrance"]() == "the C compiler (false) finds no Python.h or does not work"


def test_make_run_goes_on_without_a_compiler(tmp_path: Path) -> None:
    """The PATH has no compiler, and nothing is built to find that out."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "deploy.compiled"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert Path(done.stdout.strip()) == Path(sys.executable).parent
    assert "runs as pure Python, slower than compiled: there is no C compiler" in done.stderr
    assert "built" not in done.stderr


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in compiled.FILES:
        (tmp_path / name).write_text(name)
    for package in compiled.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    monkeypatch.setattr(compiled, "WHEELS", tmp_path / "build" / "wheels")
    return tmp_path


def test_each_source_has_a_wheel_of_its_own(tree: Path) -> None:
    first = compiled.digest()
    module = tree / "quorum_queue" / "module.py"
    module.write_text("x = 2\n")
    changed = compiled.digest()
    assert changed != first
    module.write_text("x = 1\n")
    assert compiled.digest() == first, "the wheel of a source that comes back is used again"
    (tree / "README.md").write_text("Only text.")
    assert compiled.digest() == first
    (tree / "quorum_queue" / "new.py").touch()
    assert compiled.digest() != first


def test_another_compiler_or_interpreter_builds_anew(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled.digest()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiled.digest() != first


def test_a_kept_object_is_found_by_all_that_goes_into_it(tmp_path: Path) -> None:
    generated = tmp_path / "generated"
    generated.mkdir()
    header, source = generated / "__native_mqd.h", generated / "module.c"
    runtime = generated / "runtime.c"
    header.write_text("int x;")
    source.write_text('#include "__native_mqd.h"\nint a;')
    runtime.write_text("#include <CPy.h>")

    def path(of: Path, flags: list[str], tools: str = "gcc 12") -> Path:
        found: Path = SETUP["ObjectCache"](tmp_path / "objects", tools, generated).path(of, flags)
        return found

    first, shared = path(source, ["-O1"]), path(runtime, ["-O1"])
    assert path(source, ["-O1"]) == first != shared
    others = {path(source, ["-Og"]), path(source, ["-O1"], "gcc 13")}
    source.write_text('#include "__native_mqd.h"\nint b;')
    others.add(path(source, ["-O1"]))
    source.write_text('#include "__native_mqd.h"\nint a;')
    header.write_text("int x, y;")
    others.add(path(source, ["-O1"]))
    assert len(others - {first}) == 4
    assert path(runtime, ["-O1"]) == shared, "mypyc's own runtime needs no header of the modules"


def test_what_runs_for_each_message_is_optimised_more() -> None:
    level_of = SETUP["level_of"]
    for module in MODULES:
        flat = module.removesuffix(".py").replace("/", "___")
        hot = module.replace("/", ".").startswith(SETUP["HOT"])
        assert level_of(f"build/mypyc/__native_{flat}.c") == ([] if hot else ["-Og"])
    assert level_of("build/mypyc/dict_ops.c") == [], "all code uses mypyc's runtime"
    for prefix in SETUP["HOT"]:
        assert any(module.replace("/", ".").startswith(prefix) for module in MODULES), prefix


def test_one_library_stands_for_all_modules() -> None:
    source = SETUP["shim_source"](["amqp_server.turn", "exchanges.settings", "quorum_queue.settings"])
    assert [line.split("(")[0] for line in source.splitlines() if line.startswith("PyMODINIT_FUNC")] == [
        "PyMODINIT_FUNC PyInit_settings",
        "PyMODINIT_FUNC PyInit_turn",
    ]


def test_what_the_build_requires_must_be_installed_to_do_without_another_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"mypy": "2.4.1", "setuptools": "84.2.1"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert compiled.has_build_tools()
    versions["mypy"] = "1.20.0"
    assert not compiled.has_build_tools()
