"""The types of exchanges, and the exchanges that every vhost has from its start."""

from collections.abc import Callable, Mapping

from exchanges.consistent_hash import ConsistentHashMatcher
from exchanges.delayed import DELAYED, type_within
from exchanges.direct import DirectMatcher
from exchanges.errors import UnknownExchangeType
from exchanges.fanout import FanoutMatcher
from exchanges.headers import HeadersMatcher
from exchanges.local_random import LOCAL_RANDOM, LocalRandomMatcher
from exchanges.matcher import Matcher
from exchanges.modulus_hash import ModulusHashMatcher
from exchanges.random import RandomMatcher
from exchanges.super_stream import SUPER_STREAM, SuperStreamMatcher
from exchanges.topic import TopicMatcher

# Name, type, internal: the exchanges that every vhost has from its start. AMQP 0-9-1 section 3.1.3.3 asks for
# all but amq.headers and amq.rabbitmq.trace.
PREDECLARED: tuple[tuple[str, str, bool], ...] = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)

_TYPES: dict[str, Callable[[Mapping[str, object], int, Callable[[str], bool]], Matcher]] = {
    "direct": lambda arguments, any_words_max, is_here: DirectMatcher(),
    "fanout": lambda arguments, any_words_max, is_here: FanoutMatcher(),
    "topic": lambda arguments, any_words_max, is_here: TopicMatcher(any_words_max),
    "headers": lambda arguments, any_words_max, is_here: HeadersMatcher(),
    "x-consistent-hash": lambda arguments, any_words_max, is_here: ConsistentHashMatcher(arguments),
    "x-modulus-hash": lambda arguments, any_words_max, is_here: ModulusHashMatcher(),
    "x-random": lambda arguments, any_words_max, is_here: RandomMatcher(),
    LOCAL_RANDOM: lambda arguments, any_words_max, is_here: LocalRandomMatcher(is_here),
    SUPER_STREAM: lambda arguments, any_words_max, is_here: SuperStreamMatcher(),
    DELAYED: lambda arguments, any_words_max, is_here: _TYPES[type_within(arguments, _ROUTING)](
        arguments, any_words_max, is_here
    ),
}
#: Types by which an exchange of type x-delayed-message may route.
_ROUTING: frozenset[str] = frozenset(_TYPES) - {DELAYED, SUPER_STREAM}

EXCHANGE_TYPES: tuple[str, ...] = tuple(_TYPES)


def routing_type(exchange_type: str, arguments: Mapping[str, object]) -> str:
    """Return the type by which an exchange of this type routes."""
    return type_within(arguments, _ROUTING) if exchange_type == DELAYED else exchange_type


def create_matcher(
    exchange_type: str,
    arguments: Mapping[str, object],
    any_words_max: int,
    is_here: Callable[[str], bool],
) -> Matcher:
    """`is_here` says whether the queue of a name is on this node."""
    create = _TYPES.get(exchange_type)
    if create is None:
        raise UnknownExchangeType(exchange_type)
    return create(arguments, any_words_max, is_here)
