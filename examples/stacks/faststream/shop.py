"""FastStream on a quorum queue, acked when the handler has ended; a handler that raises rejects its message.

faststream run shop:app
python -c "import asyncio, shop; asyncio.run(shop.order('order-7'))"
"""

import os

from faststream import FastStream
from faststream.rabbit import QueueType, RabbitBroker, RabbitQueue

broker = RabbitBroker(os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/"))
app = FastStream(broker)
orders = RabbitQueue("orders", queue_type=QueueType.QUORUM, durable=True)


@broker.subscriber(orders)
async def bill(order: str) -> None:
    print(f"billed {order}", flush=True)


async def order(name: str) -> None:
    """Publish, and return when the broker has the message on disk."""
    async with broker:
        # The worker declares it, too; without it the message would go nowhere.
        await broker.declare_queue(orders)
        await broker.publish(name, queue=orders, persist=True)
