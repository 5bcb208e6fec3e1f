# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-call, attr-defined"
"""The application that both the program and its real Celery worker load."""

import os
import time
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

PREFIX = os.environ.get("CELERY_PREFIX", "clients.celery")
LATER_QUEUE = f"{PREFIX}.later"

app = Celery("clients", broker=os.environ["AMQP_URL"], backend="rpc://")
app.conf.update(
    task_default_queue=f"{PREFIX}.tasks",
    task_default_exchange=f"{PREFIX}.tasks",
    task_queues=[Queue(f"{PREFIX}.tasks", Exchange(f"{PREFIX}.tasks"), routing_key="task")],
    task_default_routing_key="task",
    task_acks_late=True,
    # Without it a late task whose process died counts as done.
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_expires=60,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def fail(reason: str) -> None:
    raise ValueError(reason)


@app.task(bind=True)
def slow_first_time(self: Any, seconds: float) -> tuple[bool, int]:
    """Sleep only when delivered for the first time, so that a test may kill the worker meanwhile."""
    redelivered = bool(self.request.delivery_info["redelivered"])
    if not redelivered:
        time.sleep(seconds)
    return redelivered, os.getpid()


@app.task(bind=True, max_retries=2)
def succeed_at_third(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(ignore_result=True)
def answer_to(queue: str, body: str) -> None:
    """Answer with a plain message: an rpc:// reply queue ends with the connection that asked."""
    with app.producer_or_acquire() as producer:
        # The pooled connection may be older than the broker's last start.
        producer.publish(body, routing_key=queue, exchange="", serializer="json", retry=True)
