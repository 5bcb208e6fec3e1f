"""The leader of a group in a cluster checks for members that hold messages for too long.

A member may have acked messages while its acks are not in the log yet: its node has them, and waits, as the
leader does, for a majority or for a slow disk. So the leader first waits until a batch of its own is applied,
and gives the nodes a short time to send waiting acks. A member that is still stuck then has caused it itself.
Only one such batch is in progress at a time: while nothing gets through the log, a timer that asks again
would fill it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.streams.consumer_groups.options import RETRY_MS
from quorum_queue.consumer_groups.entries import encode_batch

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost


class MemberWatch:
    #: For mypyc; see `let_go`.
    __deletable__ = ("_host",)

    def __init__(self, host: ConsumerGroupMemberHost) -> None:
        self._host = host
        #: When to check members, by this node's clock; below zero: never.
        self.at_ms = -1
        #: The own batch that must be applied before the next step, 0 if there is none; and whether it is only
        #: a probe.
        self._number = 0
        self._asks = False
        #: True if the acks in progress have arrived: members that are stuck now are really stuck.
        self._sure = False

    def begin_anew(self) -> None:
        """Another node leads, or this node leads again."""
        self.at_ms, self._number = -1, 0
        self._asks = self._sure = False

    def look_out(self) -> None:
        """Set a timer for the time when the first member may be stuck."""
        host = self._host
        if self.at_ms >= 0 or self._number:
            return
        due = host.replica.group.due_ms()
        if due is not None:
            self._wake_at(due + host.options.consumer_timeout_ms - host.time_ahead_ms + 1)

    def _wake_at(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self._host.wake_at(at_ms)

    def wake(self, now_ms: int) -> None:
        """Check for stuck members if it is time."""
        if not 0 <= self.at_ms <= now_ms:
            return
        self.at_ms = -1
        host = self._host
        if not host.group.is_leader:
            return
        before = now_ms + host.time_ahead_ms - host.options.consumer_timeout_ms
        sure, self._sure = self._sure, False
        if host.replica.group.stuck(before):
            self._asks = not sure
            self._say(*([("stuck", before)] if sure else []))
        host.schedule()

    def _say(self, *commands: tuple[str, int]) -> None:
        group = self._host.group
        self._number = group.next_number
        group.submit(encode_batch(*self._host.own, self._number, commands))

    def applied(self, number: int, now_ms: int) -> None:
        """Called when own batches up to this one were applied."""
        if 0 < self._number <= number:
            self._number = 0
            if self._asks:
                self._sure = True
                self._wake_at(now_ms + RETRY_MS)
            else:
                self._host.schedule()

    def let_go(self) -> None:
        """Drop the reference to the closed host, to break the reference cycle."""
        del self._host


__all__ = ["MemberWatch"]
