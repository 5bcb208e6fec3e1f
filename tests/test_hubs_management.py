"""Nothing in the management API names the whole that it is a part of, not even for its type: its imports,
those for types included, have no circle.

import-linter's contracts are about imports that run (`exclude_type_checking_imports`), so this is a test.
"""

from __future__ import annotations

from functools import cache

import grimp
import pytest

PACKAGES = ("amqp_server", "exchanges", "persistence", "quorum_queue", "spark_sink")
#: Who may name the composition root: what starts it.
ROOT, STARTERS = "amqp_server.app", {"amqp_server.main"}
MANAGEMENT = "amqp_server.management"


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules of which each one leads to each other."""
    reach: dict[str, set[str]] = {}
    for module in imports:
        seen: set[str] = set()
        left = [module]
        while left:
            new = imports.get(left.pop(), set()) - seen
            seen |= new
            left += new
        reach[module] = seen
    found = [
        frozenset(one for one in reach[each] if each in reach[one]) for each in imports if each in reach[each]
    ]
    return [set(each) for each in dict.fromkeys(found)]


def test_only_what_starts_the_node_names_the_composition_root() -> None:
    assert graph().find_modules_that_directly_import(ROOT) == STARTERS


def test_management_has_no_circle_of_imports_for_types() -> None:
    own = {module for module in graph().modules if module.startswith(MANAGEMENT)}
    assert len(own) > 40
    # Modules outside may be on a circle with some of management, too.
    around = own | graph().find_upstream_modules(MANAGEMENT, as_package=True)
    imports = {module: graph().find_modules_directly_imported_by(module) & around for module in around}
    assert [circle for circle in circles(imports) if circle & own] == []


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set[str]()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [{"a", "b", "c"}]),
    ],
)
def test_circles_are_found(imports: dict[str, set[str]], expected: list[set[str]]) -> None:
    assert circles(imports) == expected
