# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-call, attr-defined"
"""An application with the settings of docs/clients.md: quorum queues; tasks for later wait in the broker."""

import os
from typing import Any

from celery import Celery

PREFIX = os.environ.get("CELERY_PREFIX", "clients.celery") + ".quorum"

app = Celery("clients", broker=os.environ["AMQP_URL"], backend="rpc://")
app.conf.update(
    task_default_queue=f"{PREFIX}.tasks",
    task_default_exchange=f"{PREFIX}.tasks",
    task_default_exchange_type="topic",
    task_default_routing_key=f"{PREFIX}.tasks",
    task_default_queue_type="quorum",
    worker_detect_quorum_queues=True,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_expires=60,
)


@app.task(bind=True, max_retries=2)
def succeed_at_third(self: Any) -> int:
    """Each retry goes through the queues of tasks for later, with the headers of the one before."""
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return int(self.request.retries)
