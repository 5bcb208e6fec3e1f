"""The types of exchanges, and the exchanges that every vhost has from its start."""

from collections.abc import Callable, Mapping

from exchanges.consistent_hash import ConsistentHashMatcher
from exchanges.delayed import DELAYED, type_within
from exchanges.direct import DirectMatcher
from exchanges.errors import UnknownExchangeType
from exchanges.fanout import FanoutMatcher
from exchanges.headers import HeadersMatcher
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

_TYPES: dict[str, Callable[[Mapping[str, object], int], Matcher]] = {
    "direct": lambda arguments, any_words_max: DirectMatcher(),
    "fanout": lambda arguments, any_words_max: FanoutMatcher(),
    "topic": lambda arguments, any_words_max: TopicMatcher(any_words_max),
    "headers": lambda arguments, any_words_max: HeadersMatcher(),
    "x-consistent-hash": lambda arguments, any_words_max: ConsistentHashMatcher(arguments),
    "x-modulus-hash": lambda arguments, any_words_max: ModulusHashMatcher(),
    "x-random": lambda arguments, any_words_max: RandomMatcher(),
    "x-local-random": lambda arguments, any_words_max: RandomMatcher(),
    SUPER_STREAM: lambda arguments, any_words_max: SuperStreamMatcher(),
    DELAYED: lambda arguments, any_words_max: _TYPES[type_within(arguments, _ROUTING)](
        arguments, any_words_max
    ),
}
#: Types by which an exchange of type x-delayed-message may route.
_ROUTING: frozenset[str] = frozenset(_TYPES) - {DELAYED, SUPER_STREAM}

EXCHANGE_TYPES: tuple[str, ...] = tuple(_TYPES)


def create_matcher(exchange_type: str, arguments: Mapping[str, object], any_words_max: int) -> Matcher:
    create = _TYPES.get(exchange_type)
    if create is None:
        raise UnknownExchangeType(exchange_type)
    return create(arguments, any_words_max)
