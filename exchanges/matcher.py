"""The interface of every exchange type: it keeps bindings in the form that is fastest to match."""

import enum
from collections.abc import Sequence
from typing import Final, Protocol

from exchanges.binding import Binding


class Message(Protocol):
    """What exchanges may look at besides the routing key: `headers`, a mapping or None, and properties."""

    def get(self, name: str, /) -> object: ...


class Depends(enum.IntFlag):
    """Inputs beside exchange and routing key on which the answer depends."""

    KEY = 0
    HEADERS = 1
    NONCE = 2
    #: On the nonce if the routing key is empty. A route never has this value; it has the one that applies to
    #: its key.
    KEYLESS = 4


#: Must never be changed.
_NONE: Final[dict[str, int]] = {}


class Destinations:
    """The destinations of one routing condition. The dictionaries count the bindings to each destination, in
    the order of binding. A kind of destination without bindings uses a shared empty one.
    """

    __slots__ = ("exchanges", "queues")

    def __init__(self) -> None:
        self.queues: dict[str, int] = _NONE
        self.exchanges: dict[str, int] = _NONE

    def add(self, binding: Binding) -> None:
        if binding.kind == "queue":
            counts = self.queues = self.queues or {}
        else:
            counts = self.exchanges = self.exchanges or {}
        counts[binding.destination] = counts.get(binding.destination, 0) + 1

    def remove(self, binding: Binding) -> None:
        counts = self.queues if binding.kind == "queue" else self.exchanges
        counts[binding.destination] -= 1
        if not counts[binding.destination]:
            del counts[binding.destination]

    def join(self, others: "Destinations") -> None:
        """Add all bindings that `others` counts."""
        if others.queues:
            self.queues = _sum(self.queues, others.queues)
        if others.exchanges:
            self.exchanges = _sum(self.exchanges, others.exchanges)

    def __bool__(self) -> bool:
        return bool(self.queues or self.exchanges)

    def __len__(self) -> int:
        return len(self.queues) + len(self.exchanges)


def _sum(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    counts = counts or {}
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
    return counts


class Matcher(Protocol):
    depends: Depends
    #: True if a message with several keys goes to the destinations of all keys; for other types the first key
    #: decides.
    wants_all_keys: bool

    def bind(self, binding: Binding) -> None:
        """The binding is new. Raises InvalidArgument, and then nothing has changed."""

    def unbind(self, binding: Binding) -> None:
        """The binding was bound."""

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        """The non-empty destinations that this message reaches; the same one may occur more than once."""
