"""Headers routing, without looking at every binding for every message.

A binding that requires *all* of its headers is filed under one of them, the rarest so far, and the others are
compared when a message has that one. A binding that requires *any* is filed under each of them, and matches
when a message has one. So a message costs a lookup for each of its headers, and a check of the bindings filed
there. If many are filed under one header, they are also kept as bits of a number: the numbers of many headers
are joined at once, and each binding is checked only once, however many of its headers the message has. If
they lead to few queues, these queues are checked instead.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.field import erlang_term, matching_token, type_name
from exchanges.matcher import Depends, Destinations, Message

# Condition of a void value in a binding: the header is present, with any value.
PRESENT = ("present",)
Condition = tuple[str, Hashable]

#: With more patterns than this under one condition, they are also kept as bits.
MASK_FROM = 64

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
    """The bindings with the same arguments. `rest` is compared when a filed condition is met."""

    __slots__ = ("destinations", "filed", "number", "rest")

    def __init__(self, number: int) -> None:
        #: Its bit in the buckets.
        self.number = number
        self.destinations = Destinations()
        self.filed: list[Condition] = []
        self.rest: frozenset[Condition] = frozenset()


class Bucket:
    """The patterns filed under one condition: those that it alone decides, and those with more to compare."""

    __slots__ = ("decided", "mask", "open", "together")

    def __init__(self) -> None:
        self.decided: dict[Pattern, None] = {}
        #: The same patterns as bits, if there are many; else 0.
        self.mask = 0
        #: The destinations of all patterns together, if there are many.
        self.together = Destinations()
        self.open: dict[Pattern, None] = {}

    def add(self, pattern: Pattern) -> None:
        """Add a pattern, which has no destinations yet."""
        self.decided[pattern] = None
        if self.mask:
            self.mask |= 1 << pattern.number
        elif len(self.decided) == MASK_FROM:
            for each in self.decided:
                self.mask |= 1 << each.number
                self.together.join(each.destinations)

    def remove(self, pattern: Pattern) -> None:
        """Remove a pattern, which has no destinations any more."""
        if pattern in self.decided:
            del self.decided[pattern]
            if len(self.decided) < MASK_FROM:
                self.mask = 0
                self.together = Destinations()
            elif self.mask:
                self.mask ^= 1 << pattern.number

    def __len__(self) -> int:
        return len(self.decided) + len(self.open)


class HeadersMatcher:
    depends = Depends.HEADERS
    wants_all_keys = False

    def __init__(self) -> None:
        self._patterns: dict[Hashable, Pattern] = {}
        self._index: dict[str, dict[Hashable, Bucket]] = {}
        self._unconditional: dict[Destinations, None] = {}
        #: Patterns by their numbers, which are reused.
        self._numbered: list[Pattern | None] = []
        self._free: list[int] = []

    def bind(self, binding: Binding) -> None:
        kind = x_match(binding.arguments)
        pattern = self._patterns.get(binding.arguments_token)
        if pattern is None:
            pattern = self._patterns[binding.arguments_token] = self._new_pattern()
            self._file(pattern, conditions(binding.arguments, kind), wants_all=kind.startswith("all"))
        pattern.destinations.add(binding)
        for bucket in self._large(pattern):
            bucket.together.add(binding)

    def unbind(self, binding: Binding) -> None:
        pattern = self._patterns[binding.arguments_token]
        pattern.destinations.remove(binding)
        for bucket in self._large(pattern):
            bucket.together.remove(binding)
        if not pattern.destinations:
            del self._patterns[binding.arguments_token]
            self._withdraw(pattern)
            self._numbered[pattern.number] = None
            self._free.append(pattern.number)

    def _new_pattern(self) -> Pattern:
        if not self._free:
            self._free.append(len(self._numbered))
            self._numbered.append(None)
        pattern = Pattern(self._free.pop())
        self._numbered[pattern.number] = pattern
        return pattern

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        matched = [*self._unconditional]
        headers = message.get("headers") if message is not None else None
        if not headers:
            return matched
        assert isinstance(headers, Mapping)
        index = self._index
        large: list[Bucket] = []
        # The message's conditions, for patterns with more to compare.
        conditions: set[Condition] | None = None
        for name, value in headers.items():
            buckets = index.get(name)
            if buckets is None:
                continue
            kind = type(value)
            met = value if kind is str or kind is int else matching_token(value)
            for bucket in (buckets.get(met), buckets.get(PRESENT)):
                if bucket is None:
                    continue
                if bucket.mask:
                    large.append(bucket)
                else:
                    matched += [pattern.destinations for pattern in bucket.decided]
                if bucket.open:
                    if conditions is None:
                        conditions = _conditions_of(headers)
                    matched += [each.destinations for each in bucket.open if each.rest <= conditions]
        if large:
            matched += self._of_many(large)
        return matched

    def _large(self, pattern: Pattern) -> Iterator[Bucket]:
        """Yield the buckets that know the destinations of all their patterns together, for a pattern that
        these decide alone.
        """
        if not pattern.rest:
            for name, value in pattern.filed:
                bucket = self._index[name][value]
                if bucket.mask:
                    yield bucket

    def _of_many(self, buckets: list[Bucket]) -> list[Destinations]:
        """Return the destinations of the patterns of these buckets, each of which has many: bucket by bucket,
        or pattern by pattern if there are fewer patterns than destinations of all buckets.
        """
        mask = 0
        for bucket in buckets:
            mask |= bucket.mask
        if sum([len(bucket.together) for bucket in buckets]) <= mask.bit_count():
            return [bucket.together for bucket in buckets]
        return [pattern.destinations for pattern in self._with_bits(mask)]

    def _with_bits(self, mask: int) -> Iterator[Pattern]:
        octets = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
        numbered = self._numbered
        for at, octet in enumerate(octets):
            if octet:
                for bit in _BITS[octet]:
                    pattern = numbered[8 * at + bit]
                    assert pattern is not None
                    yield pattern

    def _file(self, pattern: Pattern, wanted: list[Condition], *, wants_all: bool) -> None:
        if not wants_all:
            pattern.filed = wanted
        elif wanted:
            rarest = min(wanted, key=self._bucket_length)
            pattern.filed = [rarest]
            pattern.rest = frozenset([condition for condition in wanted if condition != rarest])
        else:
            self._unconditional[pattern.destinations] = None
        for name, value in pattern.filed:
            bucket = self._index.setdefault(name, {}).setdefault(value, Bucket())
            if pattern.rest:
                bucket.open[pattern] = None
            else:
                bucket.add(pattern)

    def _withdraw(self, pattern: Pattern) -> None:
        self._unconditional.pop(pattern.destinations, None)
        for name, value in pattern.filed:
            buckets = self._index[name]
            bucket = buckets[value]
            bucket.open.pop(pattern, None)
            bucket.remove(pattern)
            if not bucket:
                del buckets[value]
            if not buckets:
                del self._index[name]

    def _bucket_length(self, condition: Condition) -> int:
        name, value = condition
        return len(self._index.get(name, {}).get(value, ()))


_BITS = [[bit for bit in range(8) if octet >> bit & 1] for octet in range(256)]


def _conditions_of(headers: Mapping[str, object]) -> set[Condition]:
    """Return all conditions that these headers meet."""
    met: set[Condition] = {(name, matching_token(value)) for name, value in headers.items()}
    met.update([(name, PRESENT) for name in headers])
    return met
