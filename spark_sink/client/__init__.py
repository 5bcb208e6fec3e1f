"""A small blocking AMQP 0-9-1 client: one connection, a thread for its socket, frames encoded in blocks.

pika's codec does the control frames; frames that come a hundred thousand times a second are encoded and
parsed here.
"""
