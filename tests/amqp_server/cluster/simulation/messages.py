"""What must hold of messages, whatever is done to the queues that they are in.

Each message carries the id of the queue that had the name when it was published: another one of this name is
not to show it, unless the message was on its way for long, in a transaction or held back by an alarm, and the
other one was declared later. What was confirmed is there until it was handed out, or the queue was purged or
deleted; commit-ok confirms all of a transaction. What was rolled back is nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from amqp_server.broker.records import QueueRecord
from tests.turns import Violation

#: Virtual host and name of a queue.
Address = tuple[str, str]


class Message:
    __slots__ = (
        "address",
        "confirmed",
        "exempt",
        "forgotten",
        "late",
        "led",
        "queue_id",
        "seen",
        "unflagged",
    )

    def __init__(self, queue_id: int, address: Address, *, late: bool, led: bool) -> None:
        #: 0 if the name had no queue.
        self.queue_id = queue_id
        self.address = address
        #: A later queue of the same name may get it.
        self.late = late
        #: Its publisher is content with the leader's disk, so it may be lost with that.
        self.led = led
        self.confirmed = self.seen = self.unflagged = False
        #: It was rolled back, or its channel went before its commit.
        self.forgotten = False
        #: It may be gone without having been seen.
        self.exempt = False


class Messages:
    def __init__(self, queues: Mapping[int, QueueRecord]) -> None:
        """`queues` are all that there ever were."""
        self._queues = queues
        self.by_body: dict[bytes, Message] = {}
        #: Purges under way, by queue; one whose answer never comes may happen at any time.
        self._purging: dict[int, int] = {}
        self.count = 0

    def publish(self, queue_id: int, address: Address, *, late: bool = False, led: bool = False) -> bytes:
        self.count += 1
        body = b"%d.%d" % (queue_id, self.count)
        message = self.by_body[body] = Message(queue_id, address, late=late, led=led)
        message.exempt = self._purging.get(queue_id, 0) > 0
        return body

    def committing(self, body: bytes, queue_id: int) -> None:
        """Its commit is asked for, and this queue has the name now."""
        message = self.by_body[body]
        if queue_id and message.queue_id != queue_id:
            message.queue_id = queue_id
            message.exempt = self._purging.get(queue_id, 0) > 0

    def confirmed(self, body: bytes, queue_id: int) -> None:
        """And this queue has the name now."""
        message = self.by_body[body]
        message.confirmed = not message.led
        if message.late and queue_id != message.queue_id:
            # One of the two has it, if it was not deleted with one of them.
            message.exempt = True

    def forget(self, body: bytes) -> None:
        """Its transaction did not come to a commit."""
        self.by_body[body].forgotten = True

    def returned(self, body: bytes) -> None:
        """It went to no queue."""
        self.by_body[body].exempt = True

    def is_of(self, body: bytes, queue_id: int) -> bool:
        """Return whether it was published to this queue."""
        message = self.by_body.get(body)
        return message is not None and message.queue_id == queue_id

    def seen(self, body: bytes, queue_id: int, *, redelivered: bool, away: bool) -> None:
        """A client got it from this queue, which may live on another node, or on one that lags behind the
        others.

        Then it may have been on its way when the link broke, and come after somebody else got it with the
        flag.
        """
        message = self.by_body.get(body)
        if message is None:
            raise Violation(f"{body!r} was published by nobody")
        if message.forgotten:
            raise Violation(f"queue {queue_id} shows {body!r}, which was never committed")
        if message.queue_id != queue_id and not (message.late and self._follows(queue_id, message)):
            raise Violation(
                f"queue {queue_id} shows {body!r}, which was published to queue {message.queue_id}"
            )
        if not redelivered:
            if message.unflagged or (message.seen and not away):
                raise Violation(f"{body!r} is handed out again, and is not flagged as redelivered")
            message.unflagged = True
        message.seen = True

    def _follows(self, queue_id: int, message: Message) -> bool:
        """Was this queue declared under the name that the message was published to, after the queue that had
        it?
        """
        queue = self._queues.get(queue_id)
        return (
            queue is not None and queue_id > message.queue_id and (queue.vhost, queue.name) == message.address
        )

    def purge(self, queue_id: int) -> None:
        self._purging[queue_id] = self._purging.get(queue_id, 0) + 1
        self.exempt(queue_id)

    def purged(self, queue_id: int) -> None:
        self._purging[queue_id] -= 1
        self.exempt(queue_id)

    def exempt(self, queue_id: int) -> None:
        for message in self.by_body.values():
            if message.queue_id == queue_id:
                message.exempt = True

    def check(self, queue_id: int) -> None:
        """The queue was emptied."""
        for body, message in self.by_body.items():
            if message.queue_id == queue_id and message.confirmed and not message.seen and not message.exempt:
                raise Violation(f"{body!r} was confirmed, and is not in its queue")
