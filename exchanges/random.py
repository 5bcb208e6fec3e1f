"""The exchange type x-random: each message goes to one of the bindings."""

from collections.abc import Sequence

from exchanges.matcher import Depends, Destinations, Message
from exchanges.modulus_hash import ListMatcher


class RandomMatcher(ListMatcher):
    """Picks by the caller's nonce: randomness comes from outside, so that routing itself is repeatable."""

    depends = Depends.NONCE
    wants_all_keys = False

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        return self.pick(nonce)
