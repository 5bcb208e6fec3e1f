"""x-consistent-hash: a ring of points, each destination owning as many as its weight says.

A message goes to the owner of the next point after its hash, so that a new or lost destination moves only
the messages that it gains or loses. The points follow from the destinations' names alone: the ring is the
same after a restart and on every node. It is made when first asked for after a change.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.field import erlang_term, token, type_name
from exchanges.matcher import Depends, Destinations, Message
from exchanges.stable_hash import stable_hash

WEIGHTS_SUM_MAX = 65_536
# More points share more evenly: 128 for each unit of weight leaves about 9 % of spread. They are fewer where
# the sum of the weights is large, so that making the ring stays a matter of tens of milliseconds.
POINTS_PER_WEIGHT_MAX = 128
POINTS_MAX = 65_536

_PROPERTIES = ("correlation_id", "message_id", "timestamp")


class ConsistentHashMatcher:
    wants_all_keys = False

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self._header = _name_argument(arguments, "hash-header")
        self._property = _name_argument(arguments, "hash-property")
        if self._header is not None and self._property is not None:
            raise InvalidArgument("hash-header and hash-property are mutually exclusive")
        if self._property is not None and self._property not in _PROPERTIES:
            raise InvalidArgument(f"Unsupported property: {self._property}")
        by_key = self._header is None and self._property is None
        self.depends = Depends.KEY if by_key else Depends.HEADERS
        self._bindings: dict[Binding, int] = {}
        self._weights_sum = 0
        self._ring: Ring | None = None

    def bind(self, binding: Binding) -> None:
        weight = _weight(binding.routing_key)
        if self._weights_sum + weight > WEIGHTS_SUM_MAX:
            raise InvalidArgument(
                f"The weights of a consistent hash exchange add up to {WEIGHTS_SUM_MAX} at most, "
                f"got {self._weights_sum} and {weight} more"
            )
        self._bindings[binding] = weight
        self._weights_sum += weight
        self._ring = None

    def unbind(self, binding: Binding) -> None:
        self._weights_sum -= self._bindings.pop(binding)
        self._ring = None

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        if not self._bindings:
            return ()
        if self._ring is None:
            self._ring = Ring(self._bindings, self._weights_sum)
        return (self._ring.owner(self._hashed(routing_key, message)),)

    def _hashed(self, routing_key: str, message: Message | None) -> bytes:
        if self.depends is Depends.KEY:
            return routing_key.encode()
        value: object = None
        if message is not None and self._property is not None:
            value = message.get(self._property)
        elif message is not None:
            headers = message.get("headers")
            value = headers.get(self._header) if isinstance(headers, Mapping) else None
        # A message without the value goes where all without it go.
        return value.encode() if isinstance(value, str) else repr(token(value)).encode()


class Ring:
    def __init__(self, bindings: Mapping[Binding, int], weights_sum: int) -> None:
        points_per_weight = POINTS_PER_WEIGHT_MAX
        while points_per_weight > 1 and points_per_weight * weights_sum > POINTS_MAX:
            points_per_weight //= 2
        weights: dict[tuple[str, str], int] = {}
        self._owners: list[Destinations] = []
        for binding in sorted(bindings, key=lambda each: each.order):
            place = (binding.kind, binding.destination)
            if place not in weights:
                self._owners.append(Destinations())
            weights[place] = weights.get(place, 0) + bindings[binding]
            self._owners[-1].add(binding)
        pairs = [
            (point, owner)
            for owner, ((kind, destination), weight) in enumerate(weights.items())
            for point in _points(f"{kind}\0{destination}".encode(), weight * points_per_weight)
        ]
        pairs.sort()
        self._points = array("Q", [point for point, _ in pairs])
        self._owner_of_point = array("L", [owner for _, owner in pairs])

    def owner(self, hashed: bytes) -> Destinations:
        place = bisect_left(self._points, stable_hash(hashed))
        if place == len(self._points):
            place = 0
        return self._owners[self._owner_of_point[place]]


def _points(seed: bytes, count: int) -> "array[int]":
    """The first `count` points of a destination; a longer list starts with the shorter one."""
    points = array("Q")
    for block in range((count + 7) // 8):
        digest = blake2b(seed, salt=block.to_bytes(16, "little")).digest()
        points.extend([int.from_bytes(digest[at : at + 8], "little") for at in range(0, 64, 8)])
    return points[:count]


def _weight(routing_key: str) -> int:
    digits = routing_key[1:] if routing_key[:1] in ("+", "-") else routing_key
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidArgument(f"The binding key must be an integer: {erlang_term(routing_key)}")
    if routing_key[0] == "-" or not digits.strip("0"):
        raise InvalidArgument("The binding key must be greater than 0")
    if len(digits.lstrip("0")) > len(str(WEIGHTS_SUM_MAX)):
        raise InvalidArgument(f"The binding key must be {WEIGHTS_SUM_MAX} at most")
    return int(digits)


def _name_argument(arguments: Mapping[str, object], name: str) -> str | None:
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, str):
        raise InvalidArgument(f"Invalid {name} field type {type_name(value)}; expected longstr")
    return value
