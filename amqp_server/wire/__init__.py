"""AMQP's frames: from bytes to messages and back, in runs."""
