from collections.abc import Sequence

from exchanges.matcher import Depends, Destinations, Message
from exchanges.modulus_hash import ListMatcher


class RandomMatcher(ListMatcher):
    """Picks by the caller's nonce: chance comes from outside, so that routing itself can be repeated."""

    depends = Depends.NONCE
    wants_all_keys = False

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        return self.pick(nonce)
