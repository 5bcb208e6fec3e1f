"""The exchange type fanout: a message goes wherever the exchange is bound."""

from collections.abc import Sequence

from exchanges.binding import Binding
from exchanges.matcher import Depends, Destinations, Message


class FanoutMatcher:
    depends = Depends.KEY
    wants_all_keys = False

    def __init__(self) -> None:
        self._all = Destinations()

    def bind(self, binding: Binding) -> None:
        self._all.add(binding)

    def unbind(self, binding: Binding) -> None:
        self._all.remove(binding)

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        return (self._all,) if self._all else ()
