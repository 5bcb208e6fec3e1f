"""The checks of messages, whatever is done to the queues that they are in.

Each message carries the id of the queue that had the name when it was published. Another queue of this name
must not show the message, unless the message was on its way for long, in a transaction or held back by an
alarm, and the other queue was declared later. A confirmed message is there until it was handed out, or the
queue was purged or deleted; commit-ok confirms all messages of a transaction. A message that was rolled back
is in no queue. Of a transaction whose commit was sent all messages come to their queues and all acked ones
stay away, or none and all come again, whether its client ever heard of that. It is none if a later start of
its producer was in the log before the decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from amqp_server.broker.declared.records import QueueRecord
from tests.turns import Violation

#: Virtual host and name of a queue.
Address = tuple[str, str]


class Transaction:
    """What a commit was sent for: messages, and the deliveries that it acks."""

    __slots__ = ("acked", "came_again", "published", "shut_out")

    def __init__(self, published: list[bytes], acked: list[bytes]) -> None:
        #: Its producer and epoch if a later start of it was in the log before the decision, else empty.
        self.shut_out = ""
        self.published = published
        self.acked = acked
        #: Acked messages that were handed out to others.
        self.came_again: list[bytes] = []


class Message:
    __slots__ = (
        "acked_in",
        "address",
        "confirmed",
        "exempt",
        "forgotten",
        "holder",
        "late",
        "led",
        "moved",
        "queue_id",
        "seen",
        "unflagged",
    )

    def __init__(self, queue_id: int, address: Address, *, late: bool, led: bool) -> None:
        #: 0 if no queue had the name.
        self.queue_id = queue_id
        self.address = address
        #: True if a later queue of the same name may get the message.
        self.late = late
        #: True if the publisher needs the leader's disk only, so the message may be lost with that disk.
        self.led = led
        self.confirmed = self.seen = self.unflagged = False
        #: True if the message was rolled back, or its channel went before its commit.
        self.forgotten = False
        #: True if the message may be gone without having been seen.
        self.exempt = False
        #: True if it may have been taken out of its queue.
        self.moved = False
        #: The client that got it last; 0 if nobody has.
        self.holder = 0
        #: The transaction with which the client that got it last has acked it.
        self.acked_in: Transaction | None = None


class Messages:
    def __init__(self, queues: Mapping[int, QueueRecord]) -> None:
        """`queues` are all queues that have ever been there."""
        self._queues = queues
        self.by_body: dict[bytes, Message] = {}
        #: Purges under way, by queue; a purge whose answer never comes may happen at any time.
        self._purging: dict[int, int] = {}
        self.count = 0
        self.transactions: list[Transaction] = []
        #: Queues that were emptied at the end.
        self._emptied: dict[int, None] = {}

    def publish(self, queue_id: int, address: Address, *, late: bool = False, led: bool = False) -> bytes:
        self.count += 1
        body = b"%d.%d" % (queue_id, self.count)
        message = self.by_body[body] = Message(queue_id, address, late=late, led=led)
        message.exempt = self._purging.get(queue_id, 0) > 0
        return body

    def committing(self, body: bytes, queue_id: int) -> None:
        """A client asks for the commit of the message; this queue has the name now."""
        message = self.by_body[body]
        if queue_id and message.queue_id != queue_id:
            message.queue_id = queue_id
            message.exempt = self._purging.get(queue_id, 0) > 0

    def commit(self, client: int, published: list[bytes], acked: list[bytes]) -> Transaction:
        """A client sends the commit of these messages and acks."""
        transaction = Transaction(published, acked)
        self.transactions.append(transaction)
        for body in acked:
            message = self.by_body[body]
            if message.holder == client:
                message.acked_in = transaction
            else:
                # It has gone back to the queue, and another client has got it: the ack of that one counts.
                transaction.came_again.append(body)
        return transaction

    def confirmed(self, body: bytes, queue_id: int) -> None:
        """The message is confirmed; this queue has the name now."""
        message = self.by_body[body]
        message.confirmed = not message.led
        if message.late and queue_id != message.queue_id:
            # One of the two queues has the message, if it was not deleted with one of them.
            message.exempt = True

    def forget(self, body: bytes) -> None:
        """The transaction of the message was not committed."""
        self.by_body[body].forgotten = True

    def returned(self, body: bytes) -> None:
        """The message went to no queue."""
        self.by_body[body].exempt = True

    def is_of(self, body: bytes, queue_id: int) -> bool:
        """Return whether the message was published to this queue, or to its name before it was declared."""
        message = self.by_body.get(body)
        return message is not None and self._is_in(queue_id, message)

    def _is_in(self, queue_id: int, message: Message) -> bool:
        return message.queue_id == queue_id or (message.late and self._follows(queue_id, message))

    def seen(self, body: bytes, queue_id: int, client: int, *, redelivered: bool, away: bool) -> None:
        """A client got the message from this queue; `away` if that lives on another node, or on one that
        lags behind the others.

        Then the message may have been on its way when the link broke, and may come after another client got
        it with the flag.
        """
        message = self.by_body.get(body)
        if message is None:
            raise Violation(f"{body!r} was published by nobody")
        if message.forgotten:
            raise Violation(f"queue {queue_id} shows {body!r}, which was never committed")
        if not self._is_in(queue_id, message):
            raise Violation(
                f"queue {queue_id} shows {body!r}, which was published to queue {message.queue_id}"
            )
        if not redelivered:
            if message.unflagged or (message.seen and not away):
                raise Violation(f"{body!r} is handed out again, and is not flagged as redelivered")
            message.unflagged = True
        message.seen = True
        message.holder = client
        if message.acked_in is not None:
            message.acked_in.came_again.append(body)

    def moved(self, body: bytes) -> None:
        """A client that picked the message out of its queue acks it, and so it need not come again."""
        self.by_body[body].moved = True

    def _follows(self, queue_id: int, message: Message) -> bool:
        """Return whether this queue was declared under the name that the message was published to, after the
        queue that had the name then.
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
        self._emptied[queue_id] = None
        for body, message in self.by_body.items():
            if (
                message.queue_id == queue_id
                and message.confirmed
                and not (message.seen or message.moved or message.exempt)
            ):
                raise Violation(f"{body!r} was confirmed, and is not in its queue")

    def check_transactions(self) -> int:
        """All durable queues were emptied: each transaction has happened as a whole or not at all. Return how
        many of the judged ones had messages for, and acks of, several queues.
        """
        several = 0
        for transaction in self.transactions:
            published = [body for body in transaction.published if self._is_judged(body)]
            acked = [body for body in transaction.acked if self._is_judged(body)]
            there = [body for body in published if self._has_come(body)]
            away = [body for body in published if not self._has_come(body)]
            again = [body for body in acked if body in transaction.came_again]
            gone = [body for body in acked if body not in transaction.came_again]
            if transaction.shut_out and (there or gone):
                raise Violation(
                    f"a later start had shut out {transaction.shut_out}, whose transaction has happened: "
                    f"{there} came, and {gone} are acked"
                )
            if (there or gone) and (away or again):
                raise Violation(
                    f"a transaction has happened in part: {there} came and {away} did not; "
                    f"acked are {gone}, and {again} came again"
                )
            several += len({self.by_body[body].queue_id for body in published + acked}) > 1
        return several

    def _has_come(self, body: bytes) -> bool:
        """True if the message was in a queue: a client got it, or picked it out."""
        message = self.by_body[body]
        return message.seen or message.moved

    def _is_judged(self, body: bytes) -> bool:
        """True if the queue of the message has kept all that it had until the end."""
        message = self.by_body[body]
        return message.queue_id in self._emptied and not message.exempt and not message.led
