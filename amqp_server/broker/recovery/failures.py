"""Queues that failed on this node: an exception while they applied commands has left them in an untrusted
state.

Such a queue stops at once: it does not vote, lead, deliver or accept messages, and its stored data is kept.
All other queues continue. The node restarts it from its stored data, a few times with growing pauses. A queue
that fails each time is set aside: it stays stopped, shown by `mqctl list_failed` and by the health check,
until an operator retries it or the node restarts. So no single message can keep a node from starting.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from amqp_server.config import Config
from quorum_queue.clock import Clock
from quorum_queue.errors import Unreadable
from quorum_queue.ports import Timers

if TYPE_CHECKING:
    from amqp_server.broker.topology.parts import Hosts
    from amqp_server.broker.topology.queue import Queue

logger = logging.getLogger("mqd.queue")

#: The first pause before a queue is restarted, ms; each further pause is longer by this factor.
PAUSE_MS = 500
PAUSE_FACTOR = 4


class Failure:
    """One queue that failed, and its restarts. See quorum_queue.ports.Timers."""

    __slots__ = ("_failures", "attempts", "queue", "reason", "serving_since_ms", "set_aside", "since_ms")

    def __init__(self, failures: Failures, queue: Queue) -> None:
        self._failures = failures
        self.queue = queue
        self.reason = ""
        self.since_ms = 0
        #: Number of restarts.
        self.attempts = 0
        #: True if the queue is set aside: the node does not retry it itself.
        self.set_aside = False
        #: When its last restart succeeded; 0 while it is stopped.
        self.serving_since_ms = 0

    def wake(self) -> None:
        self._failures.revive(self)

    def failed(self, error: Exception) -> None:
        """The queue could not be restarted. See quorum_queue.boundary.Unit."""
        self._failures.add(self.queue, error)


class Failures:
    """All failed queues of the node."""

    def __init__(self, config: Config, clock: Clock, timers: Timers, hosts: Hosts) -> None:
        self._tries_max = config.queue_restart_tries_max
        self._forget_ms = config.queue_failure_memory_ms
        self._clock = clock
        self._timers = timers
        self._hosts = hosts
        #: Failures by queue id.
        self._known: dict[int, Failure] = {}

    def add(self, queue: Queue, error: Exception) -> None:
        """Note that a queue's host has raised. Raises nothing."""
        if queue.deleted:
            return
        failure = self._known.get(queue.queue_id)
        now = self._clock.monotonic_ms()
        if failure is None or (failure.serving_since_ms and now - failure.serving_since_ms > self._forget_ms):
            failure = self._known[queue.queue_id] = Failure(self, queue)
        failure.reason = str(error) or type(error).__name__
        failure.since_ms = now
        failure.serving_since_ms = 0
        failure.set_aside = isinstance(error, Unreadable) or failure.attempts >= self._tries_max
        what = (
            "set aside until `mqctl retry_failed` restarts it"
            if failure.set_aside
            else "to be restarted soon"
        )
        logger.critical(
            "queue '%s' in vhost '%s' failed and is stopped on this node, %s: %s",
            *(queue.name, queue.vhost.name, what, failure.reason),
            exc_info=None if isinstance(error, Unreadable) else error,
        )
        self._hosts.stop(queue, failure.reason)
        if not failure.set_aside:
            self._timers.wake(failure, now + PAUSE_MS * PAUSE_FACTOR**failure.attempts)

    def revive(self, failure: Failure) -> None:
        """Restart a queue from its stored data."""
        queue = failure.queue
        if queue.deleted or self.find(queue) is not failure:
            return
        failure.attempts += 1
        logger.warning(
            "queue '%s' in vhost '%s' is being restarted, restart %d",
            *(queue.name, queue.vhost.name, failure.attempts),
        )
        self._hosts.revive(queue, failure.attempts, lambda: self._revived(failure))

    def _revived(self, failure: Failure) -> None:
        failure.serving_since_ms = self._clock.monotonic_ms()
        failure.set_aside = False

    def retry(self, queue: Queue) -> bool:
        """Retry a queue for an operator; return whether it had failed."""
        failure = self.find(queue)
        if failure is None:
            return False
        failure.attempts = 0
        failure.set_aside = False
        self.revive(failure)
        return True

    def forget(self, queue: Queue) -> None:
        """The queue is deleted."""
        self._known.pop(queue.queue_id, None)

    def stopped(self) -> list[Failure]:
        """Return the queues that are stopped now."""
        return [failure for failure in self._known.values() if self._is_stopped(failure)]

    def last(self, queue: Queue) -> Failure | None:
        """Return the last failure of a queue that this node remembers, whether it is stopped or not."""
        return self._known.get(queue.queue_id)

    def find(self, queue: Queue) -> Failure | None:
        failure = self._known.get(queue.queue_id)
        return failure if failure is not None and self._is_stopped(failure) else None

    def _is_stopped(self, failure: Failure) -> bool:
        # A member of a group may have left it while it was stopped.
        return not failure.serving_since_ms and self._hosts.is_stopped(failure.queue)


def describe(failure: Failure) -> dict[str, Any]:
    """Return a failed queue's description for operators."""
    queue = failure.queue
    return {
        "vhost": queue.vhost.name,
        "name": queue.name,
        "type": queue.type.name,
        "reason": failure.reason,
        "attempts": failure.attempts,
        "set_aside": failure.set_aside,
    }
