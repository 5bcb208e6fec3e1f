"""Closes channels that hold a delivery without an ack for longer than `consumer_timeout_ms`.

Deliveries have no own time, because that would cost something for every message. Instead the watch notes the
next delivery tag of each channel a few times within the timeout: an unacked delivery below a tag that was
noted a timeout ago is too old. So a channel is closed late, by up to a tenth of the timeout and at most a
minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.channel.channel import Channel
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


class AckTimeout:
    """See amqp_server.broker.timers.Wakeable."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timeout_ms = broker.config.consumer_timeout_ms
        self._interval_ms = min(max(self._timeout_ms // LOOKS, LOOK_MS_MIN), LOOK_MS_MAX)
        #: Connections that the current look has not reached yet, the next one last.
        self._left: list[Session] = []
        self._began_ms = 0
        #: For each channel with unacked deliveries: times of looks, and the tag of its next delivery then.
        self._noted: dict[Channel, list[tuple[int, int]]] = {}
        self._before: dict[Channel, list[tuple[int, int]]] = {}
        if self._timeout_ms:
            broker.timers.wake(self, broker.clock.monotonic_ms() + self._interval_ms)

    def wake(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if not self._left:
            self._began_ms = now_ms
            self._left = [each for each in self._broker.sessions if isinstance(each, Session)]
            # Drops channels that are gone, or have nothing unacked.
            self._before, self._noted = self._noted, {}
        sessions = self._left[-SESSIONS_AT_ONCE:]
        del self._left[-SESSIONS_AT_ONCE:]
        for session in sessions:
            if session.state is State.RUNNING:
                for channel in list(session.channels.values()):
                    if channel.unacked.count and not (channel.closed or channel.closing or channel.leaving):
                        self._look_at(session, channel, now_ms)
        if self._left:
            # Other tasks have their turns in between.
            self._broker.timers.wake(self, now_ms + 1)
        else:
            self._before = {}
            self._broker.timers.wake(self, max(self._began_ms + self._interval_ms, now_ms + 1))

    def _look_at(self, session: Session, channel: Channel, now_ms: int) -> None:
        notes = self._before.get(channel) or []
        limit_ms = now_ms - self._timeout_ms
        old = 0
        while old < len(notes) and notes[old][0] <= limit_ms:
            old += 1
        # A session that waits for an answer is looked at again later.
        if old and session.suspended is None and channel.unacked.has_below(notes[old - 1][1]):
            session.close_channel(
                channel,
                PreconditionFailed(
                    f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                    f"{self._timeout_ms} ms. This timeout value can be configured (consumer_timeout_ms)"
                ),
                (0, 0),
            )
            return
        # Keep the newest note that is old enough; earlier ones are obsolete.
        notes = notes[max(0, old - 1) :]
        if not notes or notes[-1][1] != channel.next_tag:
            notes.append((now_ms, channel.next_tag))
        self._noted[channel] = notes

    def failed(self, error: Exception) -> None:
        raise Fatal(f"unacked deliveries could not be looked at: {error!r}") from error


__all__ = ["AckTimeout"]
