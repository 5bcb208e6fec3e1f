"""Dramatiq: its queues are classic ones, durable; each has one for delays and one for dead letters.

dramatiq shop --processes 1 --threads 4
python -c "import shop; shop.bill.send('order-7')"
"""

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(
    url=os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F"),
    # `send` returns when the broker has the message on disk.
    confirm_delivery=True,
)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="shop", max_retries=3)
def bill(order: str) -> None:
    print(f"billed {order}", flush=True)
