"""Finds objects that reference counts alone do not free: the collector is off during some work, and runs
after it.

A broker with millions of messages can't wait for the collector, which looks at each of them, and runs once in
so many allocations: deleted objects must be free at once.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any


class Garbage:
    def __init__(self) -> None:
        self.found: list[Any] = []

    def __str__(self) -> str:
        kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in self.found)
        return f"{len(self.found)} objects are in cycles: {dict(kinds.most_common(30))}"


@contextmanager
def garbage() -> Iterator[Garbage]:
    """Run the block without the collector; at its end, `found` has the objects that only the collector would
    have freed.

    Meanwhile earlier objects are left out, by `alive` as well: there are many of them, and they belong to
    other tests.
    """
    found = Garbage()
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found.found = [] if _of_msgspec(gc.garbage) else list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        if enabled:
            gc.enable()


def _of_msgspec(found: list[Any]) -> bool:
    """msgspec leaves a few functions behind when it meets a type for the first time; return True if nothing
    else is found.
    """
    return all(
        isinstance(each, CellType | tuple | dict)
        or str(getattr(each, "__module__", "")).startswith("msgspec.")
        for each in found
    )


def alive(kind: type, is_wanted: Callable[[Any], bool] = lambda _: True) -> list[Any]:
    """Return the objects of a type that exist now."""
    return [each for each in gc.get_objects() if type(each) is kind and is_wanted(each)]
