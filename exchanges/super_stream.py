"""x-super-stream: a stream in partitions. The hash of the routing key chooses the partition.

Clients of RabbitMQ's stream protocol choose the partition themselves, by the same hash: both agree. A
partition is bound with its number as key. Messages without a key go to one partition for a while, then to the
next one.
"""

from collections.abc import Sequence

import mmh3

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.field import erlang_term
from exchanges.matcher import Depends, Destinations, Message

SUPER_STREAM = "x-super-stream"
#: RabbitMQ's seed for the 32-bit Murmur3.
SEED = 104_729
#: Messages without a key that go to one partition before the next one: runs are cheap for a stream.
KEYLESS_RUN = 256


def left_in_run(nonce: int) -> int:
    """Return how many messages without a key follow this one to the same partition."""
    return KEYLESS_RUN - 1 - nonce % KEYLESS_RUN


class SuperStreamMatcher:
    depends = Depends.KEYLESS
    wants_all_keys = False

    def __init__(self) -> None:
        self._partitions: dict[str, Destinations] = {}

    def bind(self, binding: Binding) -> None:
        key = binding.routing_key
        if not (key.isascii() and key.isdigit()) or str(int(key)) != key:
            raise InvalidArgument(f"The binding key must be an integer: {erlang_term(key)}")
        if key in self._partitions:
            raise InvalidArgument(f"The super stream has a partition {key} already")
        destinations = self._partitions[key] = Destinations()
        destinations.add(binding)

    def unbind(self, binding: Binding) -> None:
        del self._partitions[binding.routing_key]

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        count = len(self._partitions)
        if not count:
            return ()
        if routing_key:
            number = mmh3.hash(routing_key.encode(), SEED, signed=False) % count
        else:
            number = nonce // KEYLESS_RUN % count
        destinations = self._partitions.get(str(number))
        return () if destinations is None else (destinations,)
