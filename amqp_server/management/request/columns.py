"""Columns of lists, each declared once: a table's row says what a column is called and how it is read. From
the table come whole rows, rows of some columns, the values that a list is sorted by, what comes from other
nodes, and the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

Row = dict[str, Any]
#: Reads a column of an object.
Read = Callable[[Any], Any]


class Absent:
    """The value of a column that a row does not have."""


ABSENT = Absent()


class Merge(Enum):
    """How a column comes together from the nodes of a cluster."""

    #: It is the same on each node.
    SAME = 0
    #: Only the node that reports the object knows it.
    HOME = 1
    #: Each node counts its own clients; the counts are added up.
    ADDED = 2


class Level(Enum):
    """Which rows have a column."""

    #: All of them.
    BASIC = 0
    #: With `disable_stats` only if `enable_queue_totals` is set, too.
    TOTAL = 1
    #: Not with `disable_stats`.
    STATISTIC = 2


class Column(NamedTuple):
    name: str
    #: Its type in JSON, `?` at the end if it may be null; or two types with `|` between them.
    schema: str
    #: Path of an attribute of the object. Or a function of what a request reads with and of the object, which
    #: returns the values of all columns that have this function, in their order: a row of 35 columns should
    #: not cost as many calls.
    read: str | Callable[[Any, Any], Sequence[Any]]
    level: Level = Level.STATISTIC
    merge: Merge = Merge.HOME
    #: The types of objects that have it; None: all of them.
    types: frozenset[Any] | None = None


#: Names and function of the columns that are read by attribute, then those of the columns that are read
#: together; "" for a column that the row does not have.
_Plan = tuple[tuple[str, ...], Read, tuple[tuple[tuple[str, ...], Read], ...]]


class Table:
    def __init__(
        self,
        name: str,
        columns: Iterable[Column],
        type_path: str = "",
        types: Iterable[Any] = (),
        *,
        gone: str = "",
    ) -> None:
        """`name` is that of the rows' schema. `type_path` is the attribute with the name of an object's type,
        one of `types`. Objects whose attribute `gone` is true have no rows.
        """
        self._is_gone = attrgetter(gone) if gone else None
        self.name = name
        self.columns = {column.name: column for column in columns}
        self._type_of = attrgetter(type_path) if type_path else None
        self._types = tuple(types)
        #: The columns that are read together.
        self._groups: dict[Callable[[Any, Any], Sequence[Any]], list[Column]] = {}
        for column in self.columns.values():
            if not isinstance(column.read, str):
                self._groups.setdefault(column.read, []).append(column)

    def rows(self, reads: Any, wanted: Iterable[str] | None = None) -> Callable[[Any], Row | None]:
        """Return a function that makes the row of an object, None if it is gone; with the columns of these
        names if they are given. `reads` is handed to the columns' functions.
        """
        names = frozenset(self.columns if wanted is None else wanted)
        by_type: Mapping[str, _Plan] = {each.name: self._plan(reads, names, each) for each in self._types}
        only = None if by_type else self._plan(reads, names, None)
        type_of, is_gone = self._type_of, self._is_gone

        def row(of: Any) -> Row | None:
            if is_gone is not None and is_gone(of):
                return None
            plan = only
            if plan is None:
                assert type_of is not None
                plan = by_type[type_of(of)]
            plain, values, groups = plan
            made = dict(zip(plain, values(of), strict=False))
            for together, read in groups:
                for name, value in zip(together, read(of), strict=True):
                    if name and value is not ABSENT:
                        made[name] = value
            return made

        return row

    def _plan(self, reads: Any, names: frozenset[str], type_: Any) -> _Plan:
        def told(column: Column) -> str:
            return column.name if column.name in names and _has(column, type_) else ""

        plain = [column for column in self.columns.values() if isinstance(column.read, str) and told(column)]
        # attrgetter returns a tuple only for two attributes and more.
        paths = [str(column.read) for column in plain] + ["__class__", "__class__"]
        groups = (
            (tuple(map(told, together)), partial(read, reads))
            for read, together in self._groups.items()
            if any(map(told, together))
        )
        return tuple(column.name for column in plain), attrgetter(*paths), tuple(groups)

    def one(self, reads: Any, name: str) -> Read | None:
        """Return a function that reads one column, with None where a row does not have it; None if there is
        no such column.
        """
        column = self.columns.get(name)
        if column is None:
            return None
        with_it = [each.name for each in self._types if _has(column, each)]
        if isinstance(column.read, str):
            alone: Read = attrgetter(column.read)
        else:
            alone = _alone(partial(column.read, reads), self._groups[column.read].index(column))
        if len(with_it) == len(self._types):
            return alone
        type_of = self._type_of
        assert type_of is not None
        return lambda of: alone(of) if type_of(of) in with_it else None

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: {"type": _types(column)} for name, column in self.columns.items()},
        }


def _has(column: Column, type_: Any) -> bool:
    return type_ is None or column.types is None or type_ in column.types


def _alone(read: Read, place: int) -> Read:
    def alone(of: Any) -> Any:
        value = read(of)[place]
        return None if value is ABSENT else value

    return alone


def _types(column: Column) -> str | list[str]:
    if "|" in column.schema:
        return column.schema.split("|")
    name = column.schema.removesuffix("?")
    return name if name == column.schema else [name, "null"]


def at(row: Row, path: Sequence[str]) -> Any:
    """Return the value at a path of a row, None if there is none."""
    value: Any = row
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def reader(path: Sequence[str]) -> Callable[[Row], Any]:
    """Return a function that reads the value at a path of a row."""
    return methodcaller("get", path[0]) if len(path) == 1 else partial(at, path=path)


def nested(path: Sequence[str], value: Any) -> Row:
    """Return a row with a value at this path."""
    for step in reversed(path):
        value = {step: value}
    row: Row = value
    return row


def put(row: Row, path: Sequence[str], value: Any) -> None:
    """Put a value at a path of a row, unless it is None, or the path leads through a value that is no row."""
    if value is None:
        return
    into: Any = row
    for step in path[:-1]:
        into = into.setdefault(step, {})
        if not isinstance(into, dict):
            return
    into[path[-1]] = value


def picked(row: Row, paths: Iterable[Sequence[str]]) -> Row:
    """Return the values at these paths of a row."""
    told: Row = {}
    for path in paths:
        if len(path) > 1:
            put(told, path, at(row, path))
        elif row.get(path[0]) is not None:
            told[path[0]] = row[path[0]]
    return told
