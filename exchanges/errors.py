class UnknownExchangeType(Exception):
    """The argument is the type that nobody knows."""


class InvalidArgument(Exception):
    """The argument is the text for the client, as RabbitMQ words it."""
