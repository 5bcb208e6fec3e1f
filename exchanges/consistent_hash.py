"""x-consistent-hash: a ring of points; each destination owns points in proportion to its weight.

A message goes to the owner of the next point after its hash, so that a new or lost destination moves only the
messages that it gains or loses. The points follow from the destinations' names alone: the ring is the same
after a restart and on every node. The ring is updated when it is next used, and only points of changed
destinations are touched; but when the sum of the weights passes a power of two, all destinations get half or
twice as many. Other clients wait meanwhile, so the number of points is bounded, and work on all of them is
one call into C (sort, filter).
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from sys import byteorder

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.field import erlang_term, token, type_name
from exchanges.matcher import Depends, Destinations, Message
from exchanges.stable_hash import stable_hash

WEIGHTS_SUM_MAX = 65_536
# More points distribute more evenly: 128 for each unit of weight leave about 9 % of spread. A large sum of
# weights has fewer for each, so that making the whole ring takes a few milliseconds. Each destination has at
# least one.
POINTS_PER_WEIGHT_MAX = 128
POINTS_MAX = 16_384

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
        self._weights_sum = 0
        self._bindings: dict[Binding, int] = {}
        self._ring = Ring()

    def bind(self, binding: Binding) -> None:
        weight = _weight(binding.routing_key)
        if self._weights_sum + weight > WEIGHTS_SUM_MAX:
            raise InvalidArgument(
                f"The weights of a consistent hash exchange add up to {WEIGHTS_SUM_MAX} at most, "
                f"got {self._weights_sum} and {weight} more"
            )
        self._bindings[binding] = weight
        self._weights_sum += weight
        self._ring.add(binding, weight)

    def unbind(self, binding: Binding) -> None:
        weight = self._bindings.pop(binding)
        self._weights_sum -= weight
        self._ring.remove(binding, weight)

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        if not self._bindings:
            return ()
        self._ring.adjust(self._weights_sum)
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
        # All messages without the value go to one destination.
        return value.encode() if isinstance(value, str) else repr(token(value)).encode()


class Owner:
    """A destination, and its points."""

    __slots__ = ("destinations", "place", "points", "weight")

    def __init__(self, binding: Binding) -> None:
        self.destinations = Destinations()
        self.place = (binding.kind, binding.destination)
        self.weight = 0
        #: Its points on the ring, in the order in which they were made.
        self.points = array("Q")


class Ring:
    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], Owner] = {}
        self._changed: dict[tuple[str, str], Owner] = {}
        #: How many times POINTS_PER_WEIGHT_MAX is halved.
        self._halvings = 0
        #: All points in rising order, and their owners.
        self._points: list[int] = []
        self._owner_of_point: dict[int, Owner] = {}

    def add(self, binding: Binding, weight: int) -> None:
        place = (binding.kind, binding.destination)
        owner = self._owners.get(place)
        if owner is None:
            owner = self._owners[place] = self._changed.get(place) or Owner(binding)
        owner.weight += weight
        owner.destinations.add(binding)
        self._changed[place] = owner

    def remove(self, binding: Binding, weight: int) -> None:
        place = (binding.kind, binding.destination)
        owner = self._owners[place]
        owner.weight -= weight
        owner.destinations.remove(binding)
        self._changed[place] = owner
        if not owner.weight:
            del self._owners[place]

    def adjust(self, weights_sum: int) -> None:
        """Apply the changes since the last call."""
        if not self._changed:
            return
        halvings = 0
        while weights_sum * POINTS_PER_WEIGHT_MAX >> halvings > POINTS_MAX:
            halvings += 1
        if halvings != self._halvings:
            self._halvings = halvings
            self._changed |= self._owners
        changed, self._changed = self._changed, {}
        owner_of_point = self._owner_of_point
        if sum([self._shorten(owner) for owner in changed.values()]):
            self._points = list(filter(owner_of_point.__contains__, self._points))
        before = len(self._points)
        for owner in changed.values():
            self._lengthen(owner)
        if len(self._points) > before:
            self._points.sort()

    def _count(self, owner: Owner) -> int:
        """Return how many points the owner should have."""
        count = owner.weight * POINTS_PER_WEIGHT_MAX >> self._halvings
        return max(count, 1) if owner.weight else 0

    def _shorten(self, owner: Owner) -> int:
        """Remove the owner's surplus points; return how many."""
        count = self._count(owner)
        gone = owner.points[count:]
        del owner.points[count:]
        for point in gone:
            # Two destinations may share a point, if somebody has searched for such names.
            self._owner_of_point.pop(point, None)
        return len(gone)

    def _lengthen(self, owner: Owner) -> None:
        """Append the owner's missing points."""
        count = self._count(owner)
        if count == len(owner.points):
            return
        new = _points("\0".join(owner.place).encode(), len(owner.points), count)
        owner.points += new
        self._owner_of_point.update(dict.fromkeys(new, owner))
        self._points += new

    def owner(self, hashed: bytes) -> Destinations:
        place = bisect_left(self._points, stable_hash(hashed))
        point = self._points[place if place < len(self._points) else 0]
        return self._owner_of_point[point].destinations


def _points(seed: bytes, first: int, stop: int) -> "array[int]":
    """The points `first` to `stop` of a destination; a longer list starts with the shorter one."""
    octets = bytearray()
    for block in range(first // 8, (stop + 7) // 8):
        octets += blake2b(seed, salt=block.to_bytes(16, "little")).digest()
    points = array("Q", bytes(octets))
    if byteorder == "big":
        points.byteswap()
    return points[first % 8 : first % 8 + stop - first]


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
