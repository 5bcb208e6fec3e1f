"""The exchange type x-local-random: each message goes to one of the queues on the publisher's node."""

from collections.abc import Callable
from typing import Final

from exchanges.binding import Binding
from exchanges.random import RandomMatcher

LOCAL_RANDOM: Final = "x-local-random"


def anywhere(queue: str) -> bool:
    """Where there is one node, all queues are on it."""
    return True


class LocalRandomMatcher(RandomMatcher):
    """Lists only what is here. The home of a queue does not change while the queue is bound."""

    def __init__(self, is_here: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_here = is_here

    def bind(self, binding: Binding) -> None:
        # Earlier versions also accepted exchanges as destinations.
        if binding.kind != "queue" or self._is_here(binding.destination):
            super().bind(binding)

    def unbind(self, binding: Binding) -> None:
        # The queue may be gone already.
        if self._place(binding) is not None:
            super().unbind(binding)
