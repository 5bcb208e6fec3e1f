"""AMQP's methods on a channel, without I/O."""
