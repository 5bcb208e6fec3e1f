"""The memory that all shovels of a node share.

Each shovel has a limit of its own (`shovel_bytes_max`), but many shovels whose destinations take nothing
would hold many times as much. So what they hold is counted together: while that is too much, a source is not
read unless its shovel holds nothing. One shovel is always read, so that messages that are only half here
become whole; and a shovel that holds much and whose destination takes nothing ends (`Flow`), which gives its
messages back to their queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp_server.shovels.errors import ShovelError
from amqp_server.shovels.transfer import NO_ACK, Transfer

#: What a shovel may hold and not be ended for, bytes.
LITTLE_BYTES: Final = 64 * 1024


class Budget:
    """What the shovels of the node hold together."""

    def __init__(self, bytes_max: int, timeout_s: float) -> None:
        """A shovel that gives way has taken nothing for `timeout_s`; 0: none has to."""
        self.bytes_max = bytes_max
        self.timeout_s = timeout_s
        self.bytes = 0
        self._flows: dict[Flow, None] = {}
        #: The shovel that is read even if there are too many bytes; None until it is needed.
        self._first: Flow | None = None

    @property
    def full(self) -> bool:
        return self.bytes > self.bytes_max

    def enter(self, flow: Flow) -> None:
        self._flows[flow] = None

    def leave(self, flow: Flow) -> None:
        self._flows.pop(flow, None)
        self.pass_on(flow)

    def count(self, change: int) -> None:
        was_full = self.full
        self.bytes += change
        if was_full and not self.full:
            for flow in list(self._flows):
                flow.look()

    def may_read(self, flow: Flow) -> bool:
        """True if the source of this shovel may be read."""
        if not self.full or not flow.counted:
            return True
        if self._first is None:
            self._first = flow
        return self._first is flow

    def pass_on(self, flow: Flow) -> None:
        """Another shovel may be the one that is read."""
        if self._first is not flow:
            return
        self._first = None
        # The one that has waited longest is next.
        if flow in self._flows:
            del self._flows[flow]
            self._flows[flow] = None
        for other in list(self._flows):
            other.look()


class Flow:
    """One shovel's part of the budget while it moves messages."""

    def __init__(self, budget: Budget, transfer: Transfer, now_s: float) -> None:
        self._budget = budget
        self._transfer = transfer
        #: Bytes of this shovel in the budget.
        self.counted = 0
        #: Called when the source may be read again.
        self.look: Callable[[], None] = _nothing
        self._taken = transfer.taken_bytes
        self._taken_s = now_s
        budget.enter(self)

    def update(self) -> None:
        """Count what the shovel holds now."""
        held = self._transfer.held_bytes
        change, self.counted = held - self.counted, held
        if change:
            self._budget.count(change)
        if not held:
            self._budget.pass_on(self)

    def may_read(self) -> bool:
        self.update()
        return self._budget.may_read(self)

    def check(self, now_s: float) -> None:
        """Raise ShovelError if this shovel has to give way."""
        budget, transfer = self._budget, self._transfer
        self.update()
        taken = transfer.taken_bytes
        if taken != self._taken or not budget.full or not transfer.waiting_bytes:
            self._taken, self._taken_s = taken, now_s
            return
        if not budget.timeout_s or now_s - self._taken_s < budget.timeout_s:
            return
        self._taken_s = now_s
        budget.pass_on(self)
        # Without acks its messages would be lost.
        if transfer.ack_mode != NO_ACK and self.counted > LITTLE_BYTES:
            raise ShovelError(
                f"the destination has taken nothing of {self.counted} bytes for {budget.timeout_s:g} s "
                f"(unfinished_timeout_s), while all shovels together hold more than {budget.bytes_max} (shovels_bytes_max)"
            )

    def end(self) -> None:
        # A cycle would keep the bytes of the shovel until the collector looks at old objects.
        self.look = _nothing
        self._budget.count(-self.counted)
        self.counted = 0
        self._budget.leave(self)


def _nothing() -> None: ...
