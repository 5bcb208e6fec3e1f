"""taskiq: tasks in a durable queue of the broker.

taskiq worker shop:broker --workers 1
python -c "import asyncio, shop; asyncio.run(shop.order('order-7'))"
"""

import os

from taskiq_aio_pika import AioPikaBroker

broker = AioPikaBroker(os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/"))


@broker.task
async def bill(order: str) -> None:
    print(f"billed {order}", flush=True)


async def order(name: str) -> None:
    await broker.startup()
    await bill.kiq(name)
    await broker.shutdown()
