"""Ends what holds a delivery without an ack for too long: a consumer that has a timeout of its own, by an
argument, its queue or a policy, is cancelled, as is every consumer of a quorum queue after
`consumer_timeout_ms`; any other channel is closed after that time.

Deliveries have no own time, because that would cost something for every message. Instead the watch notes the
next delivery tag of each channel a few times within the timeout: an unacked delivery below a tag that was
noted a timeout ago is too old. So the end comes late, by up to a tenth of the timeout and at most a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.channel.channel import Channel
from amqp_server.channel.subscription import Subscription
from amqp_server.connection.session import Session
from amqp_server.connection.state import State
from amqp_server.errors import PreconditionFailed
from quorum_queue.boundary import Fatal

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

#: Number of looks within one timeout, unless the interval would be longer than RabbitMQ's, or very short.
LOOKS = 10
LOOK_MS_MIN, LOOK_MS_MAX = 100, 60_000
#: Connections looked at within one turn.
SESSIONS_AT_ONCE = 256

#: Times of looks, and the tag of the channel's next delivery then.
_Notes = list[tuple[int, int]]


class AckTimeout:
    """See amqp_server.broker.timers.Wakeable."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timeout_ms = broker.config.consumer_timeout_ms
        #: The shortest timeout that anybody has, and that the current look has found so far.
        self._shortest_ms = self._found_ms = self._longest_ms
        #: Connections that the current look has not reached yet, the next one last.
        self._left: list[Session] = []
        self._began_ms = broker.clock.monotonic_ms()
        #: For each channel with unacked deliveries, and each consumer with a timeout of its own.
        self._noted: dict[Channel | Subscription, _Notes] = {}
        self._before: dict[Channel | Subscription, _Notes] = {}
        broker.timeout_noted = self.note
        broker.timers.wake(self, self._began_ms + self._interval_ms)

    @property
    def _longest_ms(self) -> int:
        return min(self._timeout_ms or LOOK_MS_MAX * LOOKS, LOOK_MS_MAX * LOOKS)

    @property
    def _interval_ms(self) -> int:
        return min(max(self._shortest_ms // LOOKS, LOOK_MS_MIN), LOOK_MS_MAX)

    def note(self, timeout_ms: int) -> None:
        """A consumer has this timeout: look often enough from now on."""
        self._found_ms = min(self._found_ms, timeout_ms)
        if timeout_ms < self._shortest_ms:
            self._shortest_ms = timeout_ms
            if not self._left:
                self._broker.timers.wake(self, self._broker.clock.monotonic_ms() + self._interval_ms)

    def wake(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if not self._left:
            self._began_ms, self._found_ms = now_ms, self._longest_ms
            self._left = [each for each in self._broker.sessions if isinstance(each, Session)]
            # Drops channels that are gone, or have nothing unacked.
            self._before, self._noted = self._noted, {}
        sessions = self._left[-SESSIONS_AT_ONCE:]
        del self._left[-SESSIONS_AT_ONCE:]
        for session in sessions:
            if session.state is State.RUNNING:
                for channel in list(session.channels.values()):
                    for subscription in channel.subscriptions.values():
                        self._found_ms = min(self._found_ms, subscription.timeout_ms or self._found_ms)
                    if channel.unacked.count and not (channel.closed or channel.closing or channel.leaving):
                        self._look_at(session, channel, now_ms)
        if self._left:
            # Other tasks have their turns in between.
            self._broker.timers.wake(self, now_ms + 1)
        else:
            self._before, self._shortest_ms = {}, self._found_ms
            self._broker.timers.wake(self, max(self._began_ms + self._interval_ms, now_ms + 1))

    def _look_at(self, session: Session, channel: Channel, now_ms: int) -> None:
        oldest = 0
        for holder, tag in channel.unacked.first_tags().items():
            own_ms: int | None = holder.timeout_ms
            # A consumer that its client has cancelled may still hold deliveries.
            self._found_ms = min(self._found_ms, own_ms or self._found_ms)
            if own_ms is None:
                oldest = min(oldest, tag) if oldest else tag
            elif (
                own_ms
                and self._is_old(holder, channel, tag, own_ms, now_ms)
                and session.suspended is None
                and not channel.time_out(holder)
            ):
                self._close(session, channel, own_ms)
                return
        timeout_ms = self._timeout_ms
        old = bool(oldest and timeout_ms) and self._is_old(channel, channel, oldest, timeout_ms, now_ms)
        # A session that waits for an answer is looked at again later.
        if old and session.suspended is None:
            self._close(session, channel, timeout_ms)

    def _close(self, session: Session, channel: Channel, timeout_ms: int) -> None:
        self._noted.pop(channel, None)
        session.close_channel(
            channel,
            PreconditionFailed(
                f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                f"{timeout_ms} ms. This timeout value can be configured (consumer_timeout_ms)"
            ),
            (0, 0),
        )

    def _is_old(
        self, of: Channel | Subscription, channel: Channel, oldest: int, timeout_ms: int, now_ms: int
    ) -> bool:
        """Return whether the delivery with the tag `oldest` was made at least a timeout ago."""
        notes = self._before.get(of) or []
        limit_ms = now_ms - timeout_ms
        old = 0
        while old < len(notes) and notes[old][0] <= limit_ms:
            old += 1
        # Keep the newest note that is old enough; earlier ones are obsolete.
        kept = notes[max(0, old - 1) :]
        if not kept or kept[-1][1] != channel.next_tag:
            kept.append((now_ms, channel.next_tag))
        self._noted[of] = kept
        return old > 0 and oldest < notes[old - 1][1]

    def failed(self, error: Exception) -> None:
        raise Fatal(f"unacked deliveries could not be looked at: {error!r}") from error


__all__ = ["AckTimeout"]
