"""Which of many groups' messages goes to which consumer: the loop that each of them costs.

A walk decides about the messages at the beginning of a run one after the other, as if each were alone, and
then cuts that beginning off once. What a consumer got of it is one run, whose positions lie apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from quorum_queue.machine.consumers import Consumer, Consumers
from quorum_queue.machine.order.message_groups import GroupedReady, Holder, group_of, routing_of
from quorum_queue.machine.run import Run


class Walk:
    """Hands out the first messages of the run that nobody has looked at."""

    __slots__ = ("_consumers", "_ready", "_run", "_shares")

    def __init__(self, ready: GroupedReady, consumers: Consumers) -> None:
        self._ready = ready
        self._consumers = consumers
        #: The messages that it went past, and the indexes of those that each consumer gets.
        self._run: Run | None = None
        self._shares: dict[Consumer, list[int]] = {}

    def go(self, below: int, now_ms: int, most: int, most_bytes: int, *, in_memory: bool) -> bool:
        """Hand out messages with positions below this one, at most so many, and as many as begin within so
        many bytes; put those aside on the way whose consumers have no room. Return False if it decided
        nothing: then the next message is looked at by itself.
        """
        ready, consumers = self._ready, self._consumers
        head = ready.main.head()
        if (
            head is None
            or head.heads is None
            or (head.expires_at is not None and head.expires_at <= now_ms)
            or (head.contents is None and in_memory)
            or (consumers.only is not None and not ready.parked and not ready.blocked)
        ):
            return False
        start = head.seqs.start
        ripe = ready.ripe_at
        count = min(len(head.heads), (below if ripe is None or below < ripe else ripe) - start)
        at = self._decide(head, start, count, most, most_bytes) if count > 0 else 0
        if not at:
            return False
        self._run = ready.main.pop(at)
        return True

    def runs(self) -> Iterator[tuple[Consumer, Run]]:
        """Yield what each consumer gets."""
        run, ready = self._run, self._ready
        assert run is not None
        for consumer, indexes in self._shares.items():
            share = run.picked(indexes)
            ready.count -= len(indexes)
            ready.bytes -= share.counted_bytes
            yield consumer, share

    def _decide(self, head: Run, start: int, count: int, most: int, most_bytes: int) -> int:
        """Return how many messages were handed out or put aside."""
        ready, consumers, shares = self._ready, self._consumers, self._shares
        heads, contents, sizes = head.heads, head.contents, head.sizes
        holders, parked, blocked = ready.holders, ready.parked, ready.blocked
        assert heads is not None
        routing = routing_of(heads[0])
        routing_bytes = len(routing)
        at = 0
        while at < count:
            message = heads[at]
            group = message[routing_bytes:] if message.startswith(routing) else group_of(message)
            consumer: Consumer | None = None
            holder: Holder | None = None
            if not group:
                consumer = consumers.near(start + at)
            elif group not in blocked and (group not in parked or parked[group][0][0] > start + at):
                holder = holders.get(group)
                if holder is None:
                    consumer = consumers.near(crc32(group))
                elif holder.consumer.attached and holder.consumer.room() > 0:
                    consumer = holder.consumer
            if consumer is None:
                passed = ready.put_aside_of(head, at, group, consumers)
                if not passed:
                    break
                at += passed
                continue
            if most <= 0 or most_bytes <= 0:
                # The next batch goes on with this message.
                break
            most -= 1
            most_bytes -= len(contents[at]) if contents is not None else sizes[at] if sizes is not None else 0
            share = shares.get(consumer)
            if share is None:
                share = shares[consumer] = []
            share.append(at)
            if not consumer.no_ack:
                # From here on it has less room, and the group.
                consumer.checkout.count += 1
                if consumer.window is not None:
                    consumer.window.use(1)
                if group:
                    if holder is None:
                        holder = holders[group] = Holder(consumer)
                    holder.count += 1
            at += 1
        return at


__all__ = ["Walk"]
