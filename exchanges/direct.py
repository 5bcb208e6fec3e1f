"""The exchange type direct: a message goes where its routing key is bound."""

from collections.abc import Sequence

from exchanges.binding import Binding
from exchanges.matcher import Depends, Destinations, Message


class DirectMatcher:
    depends = Depends.KEY
    wants_all_keys = True

    def __init__(self) -> None:
        self._by_key: dict[str, Destinations] = {}

    def bind(self, binding: Binding) -> None:
        destinations = self._by_key.get(binding.routing_key)
        if destinations is None:
            destinations = self._by_key[binding.routing_key] = Destinations()
        destinations.add(binding)

    def unbind(self, binding: Binding) -> None:
        destinations = self._by_key[binding.routing_key]
        destinations.remove(binding)
        if not destinations:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        destinations = self._by_key.get(routing_key)
        return () if destinations is None else (destinations,)
