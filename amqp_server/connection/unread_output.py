"""Ends connections that fill the memory because they do not read the data that is sent to them.

While all connections together have more than `unsent_bytes_max` unsent bytes, large messages that are not in
memory wait. So every `unfinished_timeout_s`, connections that hold much and have taken almost nothing
meanwhile are closed, the largest first, until half of that limit is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.connection.session import Session
from amqp_server.errors import ResourceError
from quorum_queue.boundary import Fatal

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

#: A connection stays open if it has taken this share (1/n) of its unsent bytes, and at least this many bytes.
PROGRESS_SHARE, PROGRESS_BYTES = 100, 64 * 1024


class UntakenWatch:
    """Checks the connections while too much is unsent. See amqp_server.broker.timers.Wakeable."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        self._unsent = broker.services.memory.unsent
        self._timeout_ms = round(1000 * config.unfinished_timeout_s)
        self._kept_bytes = config.unfinished_bytes_kept
        #: Unsent bytes and sent bytes of each connection at the last check, by its number.
        self._seen: dict[int, tuple[int, int]] = {}
        if self._timeout_ms:
            self._unsent.filled = self._filled

    def _filled(self) -> None:
        self._look()
        self._again()

    def _again(self) -> None:
        self._broker.timers.wake(self, self._broker.clock.monotonic_ms() + self._timeout_ms)

    def _look(self) -> None:
        self._seen = {each.number: (each.outbox.size, each.outbox.sent_bytes) for each in self._holders()}

    def _holders(self) -> list[Session]:
        return [
            session
            for session in self._broker.sessions
            if isinstance(session, Session) and session.outbox.size > self._kept_bytes
        ]

    def wake(self) -> None:
        if not self._unsent.full:
            return
        left_bytes = self._unsent.bytes
        for session in sorted(
            filter(self._stands_still, self._holders()), key=lambda each: -each.outbox.size
        ):
            if left_bytes <= self._unsent.bytes_max / 2:
                break
            left_bytes -= session.outbox.size
            self._end(session)
        self._look()
        self._again()

    def _stands_still(self, session: Session) -> bool:
        held_bytes, sent_bytes = self._seen.get(session.number, (0, -1))
        if sent_bytes < 0:
            return False
        return session.outbox.sent_bytes - sent_bytes < max(PROGRESS_BYTES, held_bytes // PROGRESS_SHARE)

    def _end(self, session: Session) -> None:
        session.fail(
            ResourceError(
                f"this connection has not read {session.outbox.size} bytes that were sent to it, and almost "
                f"nothing for {self._timeout_ms / 1000:g} s (unfinished_timeout_s), while all connections "
                f"together have more than {self._unsent.bytes_max} unsent bytes (unsent_bytes_max)"
            ),
            (0, 0),
        )

    def failed(self, error: Exception) -> None:
        raise Fatal(f"what clients do not take could not be looked at: {error!r}") from error


__all__ = ["UntakenWatch"]
