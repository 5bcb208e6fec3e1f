"""How a node reads streams for the members of a group in a cluster, where messages are gone."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.streams.consumer_groups.member_reading import Due, Reading
from amqp_server.streams.consumer_groups.takers import ClientTaker
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.encode import Encoder
from amqp_server.streams.layout.layouts import Layouts
from persistence.streams.batch import Batch
from quorum_queue.consumer_groups.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.consumer_groups.replica import GroupReplica
from quorum_queue.machine.consumers import Consumer
from tests.amqp_server.streams.test_messages import framed, head_of, run_of

STREAM = 7
KEY = ("n1", 1, 1, 1, "c", 1)


class Sink:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    def deliver_batch(
        self, taker: Any, reader: BatchReader, count: int, first_id: int, again: bool = False
    ) -> None:
        for _ in range(count):
            self.offsets.append(reader.offset)
            reader.skip(1)


class Host:
    """The host of the group on this node, with only the parts that a reading needs."""

    queue_id = 1
    stream: Any = None

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def submit(self, *commands: tuple[Any, ...]) -> None:
        self.said += commands

    def contain(self, sink: Any, call: Any, *arguments: Any) -> None:
        call(*arguments)

    def sent(self, taker: Any, due: Due, count: int) -> None: ...

    def schedule(self) -> None: ...

    def overdue(self) -> bool:
        return False


class Stream:
    name = "s"
    queue_id = STREAM


class Place:
    """The place of the reading in the stream."""

    credit = 0


def batch_at(offsets: list[int]) -> Batch:
    """A batch for all offsets from the first to the last one, of which it has these."""
    encoder = Encoder(Layouts(), offsets[0], 0)
    encoder.add(run_of([framed({}, b"x", 1, 4096)] * len(offsets), [head_of("k")] * len(offsets), 1))
    (encoded,) = encoder.finish()
    batch = encoded.batch
    batch.offsets = [each - offsets[0] for each in offsets]
    batch.stop = offsets[-1] + 1
    return batch


@pytest.mark.pure
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_gap_is_passed_over_at_once_however_few_a_member_may_hold(prefetch: int) -> None:
    """Compaction has left two messages of a million."""
    replica, sink, host = GroupReplica(None, dead_letters=False), Sink(), Host()
    reading = Reading(host, Stream(), "group")  # type: ignore[arg-type]
    client = ClientTaker(host, Consumer(KEY[2:], sink=sink))  # type: ignore[arg-type]
    batch = batch_at([0, 999_999])
    entries = 0

    def apply(*commands: tuple[Any, ...]) -> Any:
        nonlocal entries
        entries += 1
        data = encode_entry(1, [encode_batch("n1", 1, entries, list(commands))])
        return replica.apply(entries, *decode_entry(data), ("n1", 1))

    apply(("streams", [[STREAM, "s"]], []), ("begin", STREAM, 0), ("attach", KEY[2:], prefetch, 0))
    while replica.group.partitions[STREAM].committed < 1_000_000:
        assert entries < 20
        low = replica.group.partitions[STREAM].upcoming().low
        for each in apply(("hand", STREAM, KEY, low, 1_000_000)).handed:
            reading.dues.append(Due(client, STREAM, each.low, each.stop, each.first, each.attempts))
        if reading.dues:
            reader = BatchReader(batch)
            reader.skip_to(reading.dues[0].low)
            reading.position = reading.dues[0].low
            reading.deliver_batch(Place(), reader, reader.left, 0)  # type: ignore[arg-type]
        said, host.said = host.said, []
        # A message is acked when it has come.
        member = replica.group.members[KEY]
        settled = [("settle", KEY[2:], 0, member.next_id)]
        apply(*said, *settled)
    assert sink.offsets == [0, 999_999]
