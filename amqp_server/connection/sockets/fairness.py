"""Which ready connection is read when, so that none of them delays another one for long.

There are two classes. A *light* connection sends little at a time, and causes little work: all ready light
connections are read in one turn, a small buffer each. A *heavy* connection filled that buffer, or its last
read took long, or left work for later. The heavy connections share a separate turn, in which each is read
once in order until the turn is overdue; the light ones are served again before the next such turn. So many
heavy clients delay a light one no more than a single one does. Each read decides the class of the connection
again.

Queues whose clients have scheduled no other queue are applied first. What else the turn has brought, such as
the deliveries after a commit, waits behind them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqp_server.turn import Scheduled, Turn

if TYPE_CHECKING:
    from amqp_server.connection.sockets.transport import Transport

#: A read that takes more than this part of a turn makes a connection heavy.
LIGHT_SHARE: Final = 8


class ReadyConnections:
    """Connections ready to be read, in order; `Transport.queued` is True for those that are here."""

    __slots__ = ("_light_s", "_turn", "heavy", "light")

    def __init__(self, turn: Turn, turn_s: float) -> None:
        self._turn = turn
        self._light_s = turn_s / LIGHT_SHARE
        self.light: deque[Transport] = deque()
        self.heavy: deque[Transport] = deque()

    def add(self, transport: Transport) -> None:
        transport.queued = True
        if transport.heavy:
            self.heavy.append(transport)
        else:
            self.light.append(transport)

    def again(self, transport: Transport) -> None:
        """Bytes of its last read are left: it waits for its turn among the heavy ones."""
        transport.queued = True
        self.heavy.append(transport)

    def read_light(self, spent_s: float) -> None:
        """Read all light connections once, as far as the turn has time, and apply their queues before others.
        `spent_s`: the turn has used this time of that for others already. Within a turn.
        """
        turn, light = self._turn, self.light
        if not light:
            return
        #: Each connection, with the last queue that it or an earlier one has scheduled, and with the number
        #: of scheduled queues at that time.
        read: list[tuple[Transport, Scheduled, int]] = []
        # Queues scheduled before do not belong to these clients.
        behind = turn.take_scheduled()
        began = turn.now()
        turn.extend()
        while light:
            transport = light.popleft()
            transport.queued = False
            transport.read_little()
            last = turn.last_scheduled()
            if last is not None:
                read.append((transport, last, len(turn.scheduled)))
            now = turn.now()
            if transport.slow(now - began > self._light_s):
                transport.heavy = True
            began = now
            if now > turn.ends:
                break
        turn.extend()
        own = turn.scheduled if len(turn.scheduled) <= len(read) else _only(read)
        turn.apply_first(own, behind, spent_s)
        if turn.cut:
            for transport, host, _ in read:
                if turn.is_left(host):
                    transport.contain(transport.left)

    def read_heavy(self) -> None:
        """Read each heavy connection once, as far as the turn has time. Within a turn."""
        turn, heavy = self._turn, self.heavy
        # Those that come back meanwhile wait for the next turn.
        for _ in range(len(heavy)):
            transport = heavy.popleft()
            transport.queued = False
            began = turn.now()
            transport.heavy = False
            transport.contain(transport.read_much)
            now = turn.now()
            if transport.slow(now - began > self._light_s):
                transport.heavy = True
            if now > turn.ends:
                break


def _only(read: list[tuple[Transport, Scheduled, int]]) -> dict[Scheduled, None]:
    """Return the queues of clients that have scheduled only one queue each; they are applied first.

    Otherwise a client with many queues, or work of another task, would take the turn, and these queues would
    come behind all remaining ones. The last queues of other clients are left out: they show whether all
    queues of a client were applied.
    """
    only: dict[Scheduled, None] = {}
    last_of_many: list[Scheduled] = []
    before = 0
    for _, last, count in read:
        if count == before + 1:
            only[last] = None
        else:
            last_of_many.append(last)
        before = count
    for last in last_of_many:
        only.pop(last, None)
    return only


__all__ = ["LIGHT_SHARE", "ReadyConnections"]
