"""A first message: published to a durable queue with a confirm, and received."""

import sys

import pika

port = int(sys.argv[1]) if len(sys.argv) > 1 else 5672
connection = pika.BlockingConnection(
    pika.ConnectionParameters("127.0.0.1", port)
)  # as guest, with password guest
channel = connection.channel()
channel.confirm_delivery()  # basic_publish returns when the broker has the message on disk
channel.queue_declare("hello", durable=True)
channel.basic_publish(
    exchange="",
    routing_key="hello",
    body=b"Hello, world!",
    properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
    mandatory=True,
)

method, properties, body = channel.basic_get("hello")
print("received:", body.decode())
channel.basic_ack(method.delivery_tag)
connection.close()
