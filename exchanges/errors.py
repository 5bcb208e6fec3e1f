"""Errors of exchanges and of the way of a message through them."""


class UnknownExchangeType(Exception):
    """The argument is the unknown type."""


class InvalidArgument(Exception):
    """The argument is the text for the client, as RabbitMQ words it."""


class RoutingTooLong(Exception):
    """A message would pass too many exchanges with too many keys. The argument is the most steps."""
