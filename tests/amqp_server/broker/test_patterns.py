"""Patterns of policies and permissions: what a name begins with is looked at first."""

from __future__ import annotations

from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from amqp_server.broker.pattern import compile_policy

#: What comes in patterns, between them and in names.
PIECES = (
    *"ab-. \n",
    "é",
    "^",
    "$",
    "*",
    "+",
    "?",
    "|",
    "(",
    ")",
    "{1}",
    "{0,2}",
    "[ab]",
    "\\b",
    "\\.",
    "(?i)",
)


@given(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.lists(st.text(alphabet="abAB-. \né", max_size=5), min_size=1, max_size=8),
)
def test_a_pattern_matches_as_re2_does(pattern: str, names: list[str]) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        bare = re2.compile(f"^{pattern}".encode(), options)
    except re2.error:
        return
    matches = compile_policy(f"^{pattern}", 1_024, 5, 100)
    for name in names:
        expected = bare.search(name.encode()) or (name.endswith("\n") and bare.search(name[:-1].encode()))
        assert matches(name) == bool(expected), (pattern, name)


def test_names_that_begin_otherwise_do_not_come_to_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100 policies for a queue or two each, 20,000 queues took seconds of one step at a start."""
    searched: list[bytes] = []

    class Compiled:
        def __init__(self, *_: Any) -> None: ...

        def search(self, name: bytes) -> None:
            searched.append(name)

    monkeypatch.setattr(re2, "compile", Compiled)
    for pattern in ("^orders-1$", "^orders-1.*", r"^orders-1\.", "^orders-1(2)?"):
        matches = compile_policy(pattern, 1_024, 5, 100)
        for number in range(100):
            matches(f"invoices-{number}")
    # An alternative may begin otherwise, and a character with a quantifier may be absent.
    for pattern in ("^orders|nvo", "^i?nvo", "nvo"):
        compile_policy(pattern, 1_024, 5, 100)("invoices")
    assert searched == [b"invoices"] * 3
