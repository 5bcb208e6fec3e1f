"""The exchange type x-delayed-message: routes as the type in x-delayed-type does, and its messages wait in
their queues (x-delay).

As of RabbitMQ's delayed message exchange plugin; there they wait in the exchange, and are routed when their
time has come.
"""

from collections.abc import Collection, Mapping
from typing import Final

from exchanges.errors import InvalidArgument

DELAYED: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"


def type_within(arguments: Mapping[str, object], types: Collection[str]) -> str:
    """Return the type by which the exchange routes, one of these types. Raises InvalidArgument."""
    within = arguments.get(DELAYED_TYPE)
    if not isinstance(within, str) or within not in types:
        raise InvalidArgument(f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type")
    return within
