from collections.abc import Sequence

from exchanges.binding import Binding
from exchanges.matcher import Depends, Destinations, Message
from exchanges.stable_hash import stable_hash


class ListMatcher:
    """Bindings in an order that follows from themselves, for the types that pick one by number."""

    def __init__(self) -> None:
        self._bindings: dict[Binding, Destinations] = {}
        self._ordered: list[Destinations] | None = []

    def bind(self, binding: Binding) -> None:
        destinations = self._bindings[binding] = Destinations()
        destinations.add(binding)
        self._ordered = None

    def unbind(self, binding: Binding) -> None:
        del self._bindings[binding]
        self._ordered = None

    def pick(self, number: int) -> Sequence[Destinations]:
        if self._ordered is None:
            ordered = sorted(self._bindings, key=lambda each: each.order)
            self._ordered = [self._bindings[binding] for binding in ordered]
        if not self._ordered:
            return ()
        return (self._ordered[number % len(self._ordered)],)


class ModulusHashMatcher(ListMatcher):
    depends = Depends.KEY
    wants_all_keys = False

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        return self.pick(stable_hash(routing_key.encode()))
