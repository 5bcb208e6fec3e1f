"""What must hold of messages, whatever is done to the queues that they are in.

Each message carries the id of the queue that had the name when it was published: another one of this name is not to
show it. What was confirmed is there until it was handed out, or the queue was purged or deleted.
"""

from __future__ import annotations

from tests.turns import Violation


class Message:
    __slots__ = ("confirmed", "exempt", "queue_id", "seen", "unflagged")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.confirmed = self.seen = self.unflagged = False
        #: It may be gone without having been seen.
        self.exempt = False


class Messages:
    def __init__(self) -> None:
        self.by_body: dict[bytes, Message] = {}
        #: Purges under way, by queue; one whose answer never comes may happen at any time.
        self._purging: dict[int, int] = {}
        self.count = 0

    def publish(self, queue_id: int) -> bytes:
        self.count += 1
        body = b"%d.%d" % (queue_id, self.count)
        message = self.by_body[body] = Message(queue_id)
        message.exempt = self._purging.get(queue_id, 0) > 0
        return body

    def confirmed(self, body: bytes) -> None:
        self.by_body[body].confirmed = True

    def returned(self, body: bytes) -> None:
        """It went to no queue."""
        self.by_body[body].exempt = True

    def seen(self, body: bytes, queue_id: int, *, redelivered: bool, away: bool) -> None:
        """A client got it from this queue, which may live on another node, or on one that lags behind the others.

        Then it may have been on its way when the link broke, and come after somebody else got it with the flag.
        """
        message = self.by_body.get(body)
        if message is None:
            raise Violation(f"{body!r} was published by nobody")
        if message.queue_id != queue_id:
            raise Violation(
                f"queue {queue_id} shows {body!r}, which was published to queue {message.queue_id}"
            )
        if not redelivered:
            if message.unflagged or (message.seen and not away):
                raise Violation(f"{body!r} is handed out again, and is not flagged as redelivered")
            message.unflagged = True
        message.seen = True

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
