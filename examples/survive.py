"""A message that survives its node: `publish PORT` through one node, kill that node, `get PORT` through
another.
"""

import sys

import pika

action, port = sys.argv[1], int(sys.argv[2])
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.queue_declare("precious", durable=True, arguments={"x-queue-type": "quorum"})
if action == "publish":
    channel.confirm_delivery()  # basic_publish returns when a majority of the nodes has it on disk
    channel.basic_publish(
        exchange="",
        routing_key="precious",
        body=b"I survived",
        properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
        mandatory=True,
    )
    print("confirmed")
else:
    method, _, body = channel.basic_get("precious")
    print("received:", body.decode() if method else "nothing")
    if method:
        channel.basic_ack(method.delivery_tag)
connection.close()
