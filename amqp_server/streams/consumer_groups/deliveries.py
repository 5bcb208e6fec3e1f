"""Messages that a group in a cluster gave to the consumers of one node, until they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.streams.consumer_groups.member_reading import Due, Readings, Taker
from quorum_queue.consumer_groups.replica import Handed
from quorum_queue.host import Key

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost


class Deliveries:
    """Reads the messages handed to consumers of this node, and delivers them."""

    #: For mypyc; see `let_go`.
    __deletable__ = ("_host",)

    def __init__(self, host: ConsumerGroupMemberHost) -> None:
        self._host = host
        #: Takers of messages, by their keys on this node.
        self.takers: dict[Key, Taker] = {}
        #: Messages that were handed to them and are not read yet.
        self.handed: list[Handed] = []
        self._readings = Readings(host, "group")

    def read_on(self) -> None:
        """Start reading the messages that this node's consumers were given."""
        if self.handed and not self._host.group.behind:
            # While the log is behind, it is unknown whether the consumers still hold these messages.
            handed, self.handed = self.handed, []
            for each in handed:
                self._take(each)
        self._readings.go_on()

    def _take(self, handed: Handed) -> None:
        stream_id = handed.stream_id
        taker = self.takers.get(handed.key[2:])
        if taker is None:
            # The consumer is being detached.
            return
        reading = self._readings.of(stream_id)
        if reading is None:
            # This node does not know the stream yet, or the stream is deleted.
            self.handed.append(handed)
            self._host.retry()
            return
        reading.dues.append(Due(taker, stream_id, handed.low, handed.stop, handed.first, handed.attempts))

    def unsent(self, key: Key) -> list[tuple[int, int]]:
        """Return the messages that a consumer was given and not sent yet: from an id up to another one."""
        handed = [
            (each.first, each.first + each.stop - each.low) for each in self.handed if each.key[2:] == key
        ]
        dues = self._readings.dues(key)
        return handed + [(each.first, each.first + each.stop - each.low) for each in dues]

    def pause(self, key: Key, *, paused: bool) -> None:
        taker = self.takers.get(key)
        if taker is not None:
            taker.paused = paused
            if not paused:
                self._host.schedule()

    def drop(self, key: Key) -> None:
        """Send no more messages to this consumer."""
        self._readings.drop(lambda due: due.taker.key == key)

    def not_sent(self, key: Key) -> None:
        """A consumer no longer holds the messages that it was given and not sent."""
        self.handed = [each for each in self.handed if each.key[2:] != key]
        self.drop(key)

    def forget(self, stream_id: int) -> None:
        """Messages of a stream that were handed out before count as held by no consumer."""
        self.handed = [each for each in self.handed if each.stream_id != stream_id]
        self._readings.forget(stream_id)

    def forget_all(self) -> None:
        """Called when the group jumps to a snapshot; see `restore`."""
        self.handed = []
        self._readings.drop(lambda due: True)

    def restore(self, own: tuple[str, int]) -> None:
        """Hand out the messages that consumers of this node hold according to the group, and that were not
        sent to them.
        """
        group = self._host.replica.group
        for key, taker in self.takers.items():
            member = group.find((*own, *key))
            for first, portion in member.portions() if member is not None else ():
                stream_id = portion.partition.stream_id
                known = max(taker.sent.get(stream_id, 0), first)
                low = portion.low + known - first
                if low < portion.stop:
                    self.handed.append(
                        Handed((*own, *key), stream_id, known, low, portion.stop, portion.attempts)
                    )

    def close(self) -> None:
        self._readings.close()
        self.takers.clear()
        self.handed = []

    def let_go(self) -> None:
        """Drop the reference to the closed host, to break the reference cycle."""
        del self._host
        self._readings.let_go()


__all__ = ["Deliveries"]
