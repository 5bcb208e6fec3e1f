class UnknownExchangeType(Exception):
    """The argument is the unknown type."""


class InvalidArgument(Exception):
    """The argument is the text for the client, as RabbitMQ words it."""
