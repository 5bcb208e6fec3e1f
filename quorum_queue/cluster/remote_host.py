"""A queue that lives on another node: its commands go there over the link, and what they lead to comes back.

As long as the link stands, this is as good as being there. When it breaks, nobody knows what became of the publishes
on their way: they are refused, which tells their publisher to try again; consumers are cancelled, as RabbitMQ cancels
those of a queue whose node went down, and the queue's home gives what they held to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum_queue.cluster import events, frames
from quorum_queue.cluster.away import Away, cut
from quorum_queue.cluster.ports import Links
from quorum_queue.machine.entries import encode_batch
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import ConsumerState, Refused

#: Commands of one turn are cut into frames of about this size.
FRAME_BYTES = 1 << 20


class RemoteHost(Away):
    """The host, here, of a queue whose home is `home()`."""

    __slots__ = (
        "_incarnation",
        "_links",
        "_node",
        "_sent",
        "_session",
        "_session_since",
        "_settings",
        "_stats",
        "home",
        "name",
        "queue_id",
    )

    def __init__(
        self,
        queue: Any,
        queue_id: int,
        name: str,
        settings: Settings,
        links: Links,
        *,
        node: str,
        incarnation: int,
        home: Callable[[], str],
    ) -> None:
        super().__init__(queue)
        self.queue_id = queue_id
        self.name = name
        self._settings = settings
        self._links = links
        self._node = node
        self._incarnation = incarnation
        self.home = home
        self._sent = 0
        self._stats = events.Stats(0, 0, 0, 0)
        #: The node that the present answers come from, as long as the link to it stands, and the first batch it got.
        self._session = ""
        self._session_since = 1

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def ready_count(self) -> int:
        return self._stats.ready

    @property
    def ready_bytes(self) -> int:
        return self._stats.ready_bytes

    @property
    def unacked_count(self) -> int:
        return self._stats.unacked

    @property
    def consumer_count(self) -> int:
        return self._stats.consumers

    def consumers(self) -> list[ConsumerState]:
        """Those of this node; only the queue's home knows the others."""
        return [
            ConsumerState(
                (self._node, self._incarnation, *key),
                consumer.no_ack,
                consumer.exclusive,
                consumer.own_prefetch,
                consumer.priority,
                True,
            )
            for key, consumer in self._consumers.items()
        ]

    # -- out -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        if self.closed:
            self._end(confirm=True, why=Refused("the queue was deleted"))
            return
        if not self.pending:
            return
        home = self._session or self.home()
        if not self._session:
            self._session_since = self._sent + 1
        for commands in cut(self._outgoing(), FRAME_BYTES):
            self._sent += 1
            batch = encode_batch(self._node, self._incarnation, self._sent, commands)
            if not home or not self._links.send(home, frames.queue(self.queue_id, batch)):
                self._end(confirm=False, why=self._down())
                if self._consumers and not self._session:
                    # They came from another host and were to be attached here.
                    self._lose_consumers()
                return
            self._session = home

    def _down(self) -> Refused:
        home = self.home()
        return Refused(f"home node '{home}' of queue '{self.name}' is down or inaccessible")

    def barrier(self, done: Callable[..., None]) -> None:
        self.pending.append(("touch",))
        self.turn()
        if self.closed:
            done()
        elif not self._session:
            done(self._down())
        else:
            self._barriers.append((self._sent, done))

    def touch(self) -> None:
        self.submit(("touch",))

    def wake(self) -> None:
        """It asks for no times: its home does."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._end(confirm=True, why=Refused("the queue was deleted"))

    def hand_over(self, to: Away) -> None:
        if self._session and self._sinks:
            commands = [("detach", key, True) for key in self._sinks]
            self._sent += 1
            batch = encode_batch(self._node, self._incarnation, self._sent, commands)
            self._links.send(self._session, frames.queue(self.queue_id, batch))
        super().hand_over(to)

    def link_down(self, node: str) -> None:
        """The way to the queue's home is gone."""
        if self._session != node:
            return
        self._session = ""
        self._end(confirm=False, why=self._down())
        self._lose_consumers()

    def _lose_consumers(self) -> None:
        self._consumers.clear()
        self._sinks.clear()
        self._next_ids.clear()
        self.queue.consumers_lost()

    # -- in --------------------------------------------------------------------------------------------------------

    def received(self, found: list[Any], bodies: memoryview) -> None:
        """Take what the queue's home tells. Raises frames.FrameError."""
        reader = events.Reader(bodies)
        for event in found:
            kind = event[0]
            if kind == events.DELIVERED:
                key, first_id, run = reader.delivery(event)
                self._deliver(key, None, run, first_id)
            elif kind == events.CONFIRMED:
                self._confirmed(event[1], event[2], event[3])
            elif kind == events.REFUSED:
                self._confirmed(event[1], event[2], event[3], refused=True)
            elif kind == events.ATTACHED:
                self._attached(tuple(event[1]), event[2])
            elif kind == events.GOT_NOTHING:
                self._got_nothing(tuple(event[1]))
            elif kind == events.PURGED:
                self._purged(event[1], event[2])
            elif kind == events.MOVED:
                if event[1] >= self._session_since:
                    self.link_down(self._session)
            elif kind == events.DONE:
                self._stats = events.Stats(*event[2:])
                self._passed(event[1])
            else:
                raise frames.FrameError(f"an event of kind {kind}")
