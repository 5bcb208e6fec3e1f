"""The work of a shovel on messages, without I/O: deliveries become publishes, confirms become acks.

A message is acked at the source when it is confirmed (on-confirm) or when it was published (on-publish); with
no-ack the source needs no acks. Confirms of one read become one ack as far as they have no gap.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp_server.shovels.errors import PeerError, ShovelError
from amqp_server.shovels.session import (
    BlockedChanged,
    Cancelled,
    ClientSession,
    Delivery,
    Event,
    Returned,
    Settled,
)

ON_CONFIRM, ON_PUBLISH, NO_ACK = "on-confirm", "on-publish", "no-ack"

#: Returns the payload of basic.publish, and the header for the message.
Address = Callable[[Delivery], tuple[bytes, bytes]]


class Transfer:
    def __init__(
        self,
        source: ClientSession,
        destination: ClientSession,
        address: Address,
        *,
        ack_mode: str,
        prefetch: int,
        bytes_max: int,
        remaining: int | None = None,
    ) -> None:
        """The transfer is complete after `remaining` messages; None: never."""
        self._source = source
        self._destination = destination
        self._address = address
        self.ack_mode = ack_mode
        self._prefetch = prefetch
        self._bytes_max = bytes_max
        #: Messages that are still to be published, and still to be safe at the destination.
        self.remaining_unpublished = self.remaining = remaining
        self.forwarded = 0
        self._last_number = 0
        #: Delivery tag and size of unconfirmed messages, by number; the oldest first.
        self._unconfirmed: dict[int, tuple[int, int]] = {}
        self._unconfirmed_bytes = 0
        #: Delivery tags that were confirmed, or refused, since `flush`.
        self._taken: list[int] = []
        self._refused: list[int] = []
        #: Number of consecutive refusals.
        self.refusals = 0

    @property
    def unconfirmed_count(self) -> int:
        return len(self._unconfirmed)

    @property
    def destination_blocked(self) -> bool:
        """True if the destination has an alarm and accepts no messages."""
        return self._destination.blocked

    @property
    def done(self) -> bool:
        return self.remaining == 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that the destination has not taken yet."""
        return max(self._unconfirmed_bytes, self._destination.outbox.bytes)

    @property
    def held_bytes(self) -> int:
        """The same, and the part of a message that has arrived of it."""
        return self.waiting_bytes + self._source.unfinished_bytes

    @property
    def taken_bytes(self) -> int:
        """Number that grows with everything that the destination takes."""
        return self._destination.outbox.sent_bytes + self.forwarded

    @property
    def held(self) -> bool:
        """True if the source must not be read, because the destination is too slow."""
        if self.remaining_unpublished == 0 or self._destination.blocked:
            return True
        return self.waiting_bytes >= self._bytes_max

    # -- from the source -------------------------------------------------------------------------------------

    def from_source(self, event: Event) -> None:
        """Handle an event of the source. Raises ShovelError."""
        if isinstance(event, Delivery):
            self._deliver(event)
        elif isinstance(event, Cancelled):
            raise ShovelError("the source has cancelled the consumer: its queue is gone or has moved")
        elif not isinstance(event, BlockedChanged):
            raise PeerError("the source has sent something that was not asked for")

    def _deliver(self, delivery: Delivery) -> None:
        if self.remaining_unpublished == 0:
            # Enough messages were published. This one stays unsettled, and is requeued when the connection
            # ends.
            return
        method, header = self._address(delivery)
        self._destination.publish(method, header, delivery.body)
        if self.remaining_unpublished is not None:
            self.remaining_unpublished -= 1
        if self.ack_mode == ON_CONFIRM:
            self._last_number += 1
            size = sum(map(len, delivery.body)) + len(header)
            self._unconfirmed[self._last_number] = delivery.tag, size
            self._unconfirmed_bytes += size
            if len(self._unconfirmed) > self._prefetch:
                raise PeerError("the source has sent more messages than the prefetch count allows")
            return
        if self.ack_mode == ON_PUBLISH:
            self._taken.append(delivery.tag)
        self._moved()

    def _moved(self) -> None:
        self.forwarded += 1
        if self.remaining is not None:
            self.remaining -= 1

    # -- from the destination --------------------------------------------------------------------------------

    def from_destination(self, event: Event) -> None:
        """Handle an event of the destination. Raises ShovelError."""
        if isinstance(event, Settled) and self.ack_mode == ON_CONFIRM:
            self._settle(event)
        elif isinstance(event, Returned):
            # Its confirm arrives next, and the ack for it would lose the message.
            raise ShovelError(f"a message has not reached the queue at the destination: {event.text}")
        elif not isinstance(event, BlockedChanged):
            raise PeerError("the destination has sent something that was not asked for")

    def _settle(self, settled: Settled) -> None:
        unconfirmed = self._unconfirmed
        if not 0 < settled.tag <= self._last_number:
            raise PeerError("the destination has confirmed a message that it was not sent")
        numbers = [settled.tag]
        if settled.multiple:
            numbers = []
            for number in unconfirmed:
                if number > settled.tag:
                    break
                numbers.append(number)
        for number in numbers:
            tag, size = unconfirmed.pop(number, (0, 0))
            if not tag:
                continue
            self._unconfirmed_bytes -= size
            if settled.taken:
                self._taken.append(tag)
                self.refusals = 0
                self._moved()
            else:
                self._refused.append(tag)
                self.refusals += 1
                if self.remaining_unpublished is not None:
                    self.remaining_unpublished += 1

    def flush(self) -> None:
        """Settle at the source the messages that have become safe since the last call."""
        source = self._source
        for tag in self._refused:
            source.requeue(tag)
        self._refused.clear()
        if not self._taken:
            return
        taken, self._taken = sorted(self._taken), []
        # Tags rise with the numbers, so that the oldest unconfirmed message has the lowest tag.
        lowest = next(iter(self._unconfirmed.values()), (taken[-1] + 1, 0))[0]
        at = len(taken)
        while at and taken[at - 1] > lowest:
            at -= 1
        if at:
            source.settle(taken[at - 1], multiple=at > 1)
        for tag in taken[at:]:
            source.settle(tag)
