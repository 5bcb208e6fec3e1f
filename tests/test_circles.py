"""Who names whom, imports for types included: import-linter looks at what is imported when the broker runs.

A part that names its whole for its type can be read, tested and changed only together with it. So there are
classes that only some modules may name, and no circle of modules may grow; see
docs/adr/0049-parts-do-not-name-their-whole.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("amqp_server", "exchanges", "persistence", "quorum_queue", "spark_sink", "stream_tables")
#: Modules with a class that is a whole, and the modules that may name it: they stand above it, or handle all
#: of it. Packages end with a dot.
HUBS = {
    "amqp_server.broker.broker": (
        "amqp_server.app",
        "amqp_server.broker.recovery.recovery",
        "amqp_server.channel.connection",
        "amqp_server.channel.routing",
        "amqp_server.channel.tracing",
        "amqp_server.cluster.",
        "amqp_server.connection.",
        "amqp_server.management.",
        "amqp_server.shovels.",
        "amqp_server.startup.",
    ),
    "amqp_server.channel.channel": (
        "amqp_server.channel.basic_methods",
        "amqp_server.channel.exchange_methods",
        "amqp_server.channel.moving",
        "amqp_server.channel.publish",
        "amqp_server.channel.queue_methods",
        "amqp_server.channel.subscription",
        "amqp_server.channel.transactions.",
        "amqp_server.connection.",
        "amqp_server.management.",
    ),
    "amqp_server.connection.session": (
        "amqp_server.connection.ack_timeout",
        "amqp_server.connection.handed_over",
        "amqp_server.connection.incoming",
        "amqp_server.connection.sockets.",
        "amqp_server.connection.unfinished_publishes",
        "amqp_server.connection.unread_output",
        "amqp_server.management.",
    ),
    "amqp_server.app": ("amqp_server.main",),
}
#: A row of the table in docs/architecture.md: package, circles before, circles now.
ROW = re.compile(r"^\| `([a-z_/]+)` \| ([0-9, –]+) \| ([0-9, –]+) \|", re.MULTILINE)


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def circles(imports: dict[str, set[str]]) -> Iterator[set[str]]:
    """The sets of two or more modules of which each leads to each other (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_ones: list[str] = []
    for root in sorted(imports):
        if root in numbers:
            continue
        numbers[root] = lowest[root] = len(numbers)
        open_ones.append(root)
        way = [(root, iter(sorted(imports[root])))]
        while way:
            module, left = way[-1]
            for other in left:
                if other not in numbers:
                    numbers[other] = lowest[other] = len(numbers)
                    open_ones.append(other)
                    way.append((other, iter(sorted(imports[other]))))
                    break
                if other in open_ones:
                    lowest[module] = min(lowest[module], numbers[other])
            else:
                way.pop()
                if way:
                    lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[module])
                if lowest[module] == numbers[module]:
                    at = open_ones.index(module)
                    found = set(open_ones[at:])
                    del open_ones[at:]
                    if len(found) > 1:
                        yield found


def package_of(circle: set[str]) -> str:
    """The package that most of these modules are in: `amqp_server/broker`, or `persistence`."""
    packages = ["/".join(each.split(".")[: 2 if each.startswith("amqp_server.") else 1]) for each in circle]
    return max(sorted(packages), key=packages.count)


@cache
def present() -> dict[str, list[set[str]]]:
    found: dict[str, list[set[str]]] = {}
    imports = {module: graph().find_modules_directly_imported_by(module) for module in graph().modules}
    for circle in circles(imports):
        found.setdefault(package_of(circle), []).append(circle)
    return found


def sizes_of(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"[0-9]+", text)]


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a", "f"}}
    assert sorted(map(sorted, circles(imports))) == [["a", "b", "c"], ["d", "e"]]
    # A type is imported from a module that imports nothing back at run time.
    assert any(
        {"amqp_server.channel.channel", "amqp_server.channel.publish"} <= each
        for each in present()["amqp_server/channel"]
    )


def test_there_may_be_none() -> None:
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": set()})) == []
    one = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert list(circles(one)) == [{"a", "b", "c"}]


def test_no_module_of_management_is_in_a_circle() -> None:
    """Not even in one with modules of other packages."""
    own = {module for module in graph().modules if module.startswith("amqp_server.management")}
    assert len(own) > 40
    assert [each for found in present().values() for each in found if each & own] == []


@pytest.mark.parametrize("hub", HUBS)
def test_only_these_modules_name_a_whole(hub: str) -> None:
    named_by = graph().find_modules_that_directly_import(hub)
    allowed = HUBS[hub]
    others = {
        each
        for each in named_by
        if not any(each.startswith(name) if name.endswith(".") else each == name for name in allowed)
    }
    assert named_by and others == set(), f"they name {hub}: let them name the parts that they use"


def test_no_circle_grows() -> None:
    rows = {name: sizes_of(now) for name, _, now in ROW.findall((ROOT / "docs/architecture.md").read_text())}
    assert len(rows) > 5
    for package, found in present().items():
        known = rows.get(package, [])
        told = "\n".join(", ".join(sorted(each)) for each in found)
        # One that falls apart may become two.
        assert max(map(len, found)) <= max(known, default=0), f"{package} has a larger circle:\n{told}"
        assert sum(map(len, found)) <= sum(known), f"{package} has more modules in circles:\n{told}"
