"""The exchange type x-modulus-hash: the routing key chooses one of the bindings."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from exchanges.binding import Binding
from exchanges.matcher import Depends, Destinations, Message
from exchanges.stable_hash import stable_hash


class ListMatcher:
    """Bindings in an order that depends only on themselves, for types that pick one by number.

    The list stays sorted: sorting it again at each change would take long with many bindings.
    """

    def __init__(self) -> None:
        #: Sort keys and bindings.
        self._orders: list[tuple[str, str, str, str]] = []
        self._bindings: list[Binding] = []
        self._destinations: list[Destinations] = []

    def bind(self, binding: Binding) -> None:
        destinations = Destinations()
        destinations.add(binding)
        place = bisect_right(self._orders, binding.order)
        self._orders.insert(place, binding.order)
        self._bindings.insert(place, binding)
        self._destinations.insert(place, destinations)

    def unbind(self, binding: Binding) -> None:
        place = self._place(binding)
        assert place is not None
        del self._orders[place], self._bindings[place], self._destinations[place]

    def _place(self, binding: Binding) -> int | None:
        """Return the place of a binding in the list, if it has one."""
        order = binding.order
        place = bisect_left(self._orders, order)
        # Other arguments may look alike.
        while place < len(self._orders) and self._orders[place] == order:
            if self._bindings[place] == binding:
                return place
            place += 1
        return None

    def pick(self, number: int) -> Sequence[Destinations]:
        if not self._destinations:
            return ()
        return (self._destinations[number % len(self._destinations)],)


class ModulusHashMatcher(ListMatcher):
    depends = Depends.KEY
    wants_all_keys = False

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        return self.pick(stable_hash(routing_key.encode()))
