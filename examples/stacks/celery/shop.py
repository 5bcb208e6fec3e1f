"""Celery on quorum queues: tasks survive the loss of a node, and tasks for later block no worker.

celery --app shop worker --concurrency 4
python -c "import shop; shop.bill.apply_async(('order-7',), countdown=60)"
"""

import os

from celery import Celery
from kombu import Exchange, Queue

app = Celery(
    "shop", broker=os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672//"), backend="rpc://"
)
app.conf.update(
    # Celery binds its delayed messages by pattern, which only a topic exchange knows. With a direct one, a
    # task with a countdown stays with a worker, and takes up its prefetch, until it is due.
    task_default_exchange_type="topic",
    task_default_queue_type="quorum",
    task_queues=[
        Queue(
            "shop", Exchange("shop", "topic"), routing_key="shop", queue_arguments={"x-queue-type": "quorum"}
        )
    ],
    task_default_queue="shop",
    task_default_exchange="shop",
    task_default_routing_key="shop",
    # Quorum queues have no global QoS; Celery sees that, and delays tasks in the broker.
    worker_detect_quorum_queues=True,
    # A task counts as done when it has ended, and comes again if its worker dies.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # `delay` returns when a majority of the nodes has the task.
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
)


@app.task
def bill(order: str) -> str:
    return f"billed {order}"
