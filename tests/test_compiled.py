"""What is compiled: which modules, and that a compiled one is never older than its source. See docs/compiled.md."""

from __future__ import annotations

import ast
import runpy
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
        "quorum_queue/cluster/group_host.py",
        "quorum_queue/local.py",
        "quorum_queue/machine/machine.py",
        "quorum_queue/machine/replicated.py",
        "quorum_queue/raft/core.py",
    }
    assert hot <= set(MODULES), {name: SETUP["obstacle"](ROOT / name) for name in hot - set(MODULES)}


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


def _is_native(module: str, name: str) -> bool:
    """Protocols, enumerations and named tuples stay classes of the interpreter's."""
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_bytes())
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return not any(
        ast.unparse(base).split("[")[0].endswith(("Protocol", "NamedTuple", "Flag", "Enum"))
        for base in found.bases
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
