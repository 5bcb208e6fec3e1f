"""Headers routing, without looking at every binding for every message.

A binding that wants *all* of its headers is filed under one of them, the rarest so far, and the others are
compared when that one is met. A binding that wants *any* is filed under each of them, and met is matched.
So a message costs a lookup for each of its headers, and the bindings that stand under those.
"""

from collections.abc import Hashable, Mapping, Sequence

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.field import erlang_term, matching_token, type_name
from exchanges.matcher import Depends, Destinations, Message

# What a void value in a binding asks for: that the header is there, whatever its value.
PRESENT = ("present",)
Condition = tuple[str, Hashable]

_KINDS = ("all", "any", "all-with-x", "any-with-x")


def x_match(arguments: Mapping[str, object]) -> str:
    if "x-match" not in arguments:
        return "all"
    kind = arguments["x-match"]
    if not isinstance(kind, str):
        raise InvalidArgument(
            f"Invalid x-match field type {type_name(kind)} (value {erlang_term(kind)}); expected longstr"
        )
    if kind not in _KINDS:
        raise InvalidArgument(
            f"Invalid x-match field value {erlang_term(kind)}; expected all, any, all-with-x, or any-with-x"
        )
    return kind


def conditions(arguments: Mapping[str, object], kind: str) -> list[Condition]:
    with_x = kind.endswith("-with-x")
    return [
        (name, PRESENT if value is None else matching_token(value))
        for name, value in sorted(arguments.items())
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]


class Pattern:
    """The bindings with the same arguments. `rest` is to be compared when a filed condition is met."""

    __slots__ = ("destinations", "filed", "rest")

    def __init__(self) -> None:
        self.destinations = Destinations()
        self.filed: list[Condition] = []
        self.rest: list[Condition] = []

    def holds(self, headers: Mapping[str, object]) -> bool:
        for name, wanted in self.rest:
            if name not in headers:
                return False
            if wanted != PRESENT and matching_token(headers[name]) != wanted:
                return False
        return True


class Bucket:
    """The patterns filed under one condition: those it decides alone, and those with more to compare."""

    __slots__ = ("decided", "open")

    def __init__(self) -> None:
        self.decided: dict[Destinations, None] = {}
        self.open: dict[Pattern, None] = {}

    def __len__(self) -> int:
        return len(self.decided) + len(self.open)


class HeadersMatcher:
    depends = Depends.HEADERS

    def __init__(self) -> None:
        self._patterns: dict[Hashable, Pattern] = {}
        self._index: dict[str, dict[Hashable, Bucket]] = {}
        self._unconditional: dict[Destinations, None] = {}

    def bind(self, binding: Binding) -> None:
        kind = x_match(binding.arguments)
        pattern = self._patterns.get(binding.arguments_token)
        if pattern is None:
            pattern = self._patterns[binding.arguments_token] = Pattern()
            self._file(pattern, conditions(binding.arguments, kind), wants_all=kind.startswith("all"))
        pattern.destinations.add(binding)

    def unbind(self, binding: Binding) -> None:
        pattern = self._patterns[binding.arguments_token]
        pattern.destinations.remove(binding)
        if not pattern.destinations:
            del self._patterns[binding.arguments_token]
            self._withdraw(pattern)

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        matched = [*self._unconditional]
        headers = message.get("headers") if message else None
        if not headers:
            return matched
        assert isinstance(headers, Mapping)
        index = self._index
        for name, value in headers.items():
            buckets = index.get(name)
            if buckets is None:
                continue
            kind = type(value)
            bucket = buckets.get(value if kind is str or kind is int else matching_token(value))
            if bucket is not None:
                matched.extend(bucket.decided)
                if bucket.open:
                    matched += [pattern.destinations for pattern in bucket.open if pattern.holds(headers)]
            bucket = buckets.get(PRESENT)
            if bucket is not None:
                matched.extend(bucket.decided)
                if bucket.open:
                    matched += [pattern.destinations for pattern in bucket.open if pattern.holds(headers)]
        return matched

    def _file(self, pattern: Pattern, wanted: list[Condition], *, wants_all: bool) -> None:
        if not wants_all:
            pattern.filed = wanted
        elif wanted:
            rarest = min(wanted, key=self._bucket_length)
            pattern.filed = [rarest]
            pattern.rest = [condition for condition in wanted if condition != rarest]
        else:
            self._unconditional[pattern.destinations] = None
        for name, value in pattern.filed:
            bucket = self._index.setdefault(name, {}).setdefault(value, Bucket())
            if pattern.rest:
                bucket.open[pattern] = None
            else:
                bucket.decided[pattern.destinations] = None

    def _withdraw(self, pattern: Pattern) -> None:
        self._unconditional.pop(pattern.destinations, None)
        for name, value in pattern.filed:
            buckets = self._index[name]
            bucket = buckets[value]
            bucket.open.pop(pattern, None)
            bucket.decided.pop(pattern.destinations, None)
            if not bucket:
                del buckets[value]
            if not buckets:
                del self._index[name]

    def _bucket_length(self, condition: Condition) -> int:
        name, value = condition
        return len(self._index.get(name, {}).get(value, ()))
