"""The replica of a stream: offsets follow from the order of the log, and nothing is taken twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from amqp_server.streams.layout.encode import Encoded, Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.members.entries import (
    Append,
    CodecError,
    NamedMessages,
    NodeBatch,
    RemoteStep,
    decode_entry,
    encode_batch,
    encode_entry,
)
from amqp_server.streams.members.replica import Applied, StreamReplica, StreamState
from persistence.streams import batch as batches
from persistence.streams.remote.manifest import Range
from quorum_queue.machine.dedup import Sequence, id_of, sequence_of
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import EMPTY, NOT_EMPTY, Sealed
from quorum_queue.machine.settings import Settings
from tests.amqp_server.streams.test_messages import MESSAGES, framed, head_of, run_of, with_own

OWN = ("a", 7)


def runs_of(messages: Any) -> list[Run]:
    runs = []
    for key, properties, name, size, count, *more in messages:
        own, keyed = more or ("", False)
        named = dict(properties)
        if name is not None:
            named["headers"] = {**named.get("headers", {}), "x-stream-filter-value": name}
        contents = [
            framed(with_own(named, own, number), bytes([number + 32]) * size, 1, 4096)
            for number in range(count)
        ]
        heads = [head_of(f"{key}{number:02}" if keyed else key) for number in range(count)]
        runs.append(run_of(contents, heads, 1))
    return runs


def encoded(messages: Any, base: int = 0, *, time_ms: int = 0, stamped: bool = True) -> list[Encoded]:
    encoder = Encoder(Layouts(), base, time_ms, stamped=stamped)
    for run in runs_of(messages):
        encoder.add(run)
    return encoder.finish()


def entry(now_ms: int, *found: bytes) -> tuple[int, Any]:
    return decode_entry(encode_entry(now_ms, list(found)))


@settings(max_examples=60)
@given(MESSAGES)
def test_a_member_makes_the_bytes_that_one_node_would(messages: Any) -> None:
    for base in (0, 3, 250, (1 << 32) - 5, 1 << 40):
        replica = StreamReplica()
        replica.next_offset = base
        applied = replica.apply(1, *entry(5, encode_batch(*OWN, 1, encoded(messages))), OWN)
        alone = encoded(messages, base, time_ms=5, stamped=False)
        assert [each.parts for each in applied.batches] == [each.parts for each in alone]
        for each, other in zip(applied.batches, alone, strict=True):
            data = b"".join(each.parts)
            found = batches.decode(batches.decode_head(data), data)
            assert (found.base, found.count, found.values) == (
                other.batch.base,
                other.batch.count,
                other.batch.values,
            )
            assert (each.batch.shapes, bytes(each.batch.items)) == (other.batch.shapes, other.batch.items)
            assert (list(each.batch.filters), each.batch.size) == (
                list(other.batch.filters),
                other.batch.size,
            )
        assert replica.next_offset == base + sum(each.batch.count for each in alone)
        assert applied.numbers == [1]


def one(node: str, incarnation: int, number: int, count: int = 1) -> bytes:
    messages: Any = [("k", {}, None, 5, count)]
    return encode_batch(node, incarnation, number, encoded(messages))


def test_a_batch_is_taken_once_and_in_order() -> None:
    replica = StreamReplica()
    replica.apply(1, *entry(1, one("a", 7, 1), one("b", 3, 1, 2)), OWN)
    assert replica.next_offset == 3
    # A batch that comes again, one that is too early, one of an earlier start, and one of a later start that
    # is not its first.
    for batch in (one("a", 7, 1), one("a", 7, 3), one("b", 2, 1), one("b", 4, 2)):
        replica.apply(replica.applied + 1, *entry(1, batch), OWN)
        assert replica.next_offset == 3
    applied = replica.apply(9, *entry(1, one("a", 7, 2), one("a", 7, 2), one("b", 4, 1)), OWN)
    assert (replica.next_offset, applied.numbers) == (5, [2])


def test_what_was_in_an_entry_that_is_given_up_is_missed() -> None:
    replica = StreamReplica()
    replica.apply(1, *entry(1, one("a", 7, 1)), OWN)
    replica.passed_over(2)
    applied = replica.apply(3, *entry(1, one("a", 7, 4)), OWN)
    assert (applied.missed, applied.numbers, replica.next_offset) == (range(2, 4), [4], 2)
    assert not replica.apply(4, *entry(1, one("a", 7, 6)), OWN).numbers


def test_retention_never_goes_back_nor_beyond_the_end() -> None:
    replica = StreamReplica()
    replica.apply(1, *entry(1, one("a", 7, 1, 10)), OWN)
    for number, first, expected in ((2, 4, 4), (3, 2, 4), (4, 99, 10)):
        applied = replica.apply(number, *entry(1, encode_batch("a", 7, number, [], first)), OWN)
        assert (replica.first_offset, applied.trimmed) == (expected, first != 2)


def test_times_only_rise_and_a_state_comes_back() -> None:
    replica = StreamReplica()
    for index, now_ms in enumerate((10, 5, 20), 1):
        applied = replica.apply(index, *entry(now_ms, one("a", 7, index)), OWN)
        assert applied.batches[0].batch.time_ms == (10, 10, 20)[index - 1]
    again = StreamReplica.restore(replica.snapshot())
    assert (again.digest(), again.snapshot()) == (replica.digest(), replica.snapshot())
    assert (again.next_offset, again.order.rows(), again.last_ms) == (3, [("a", 7, 3)], 20)


def test_what_is_not_known_is_refused() -> None:
    data = encode_entry(1, [one("a", 7, 1)])
    for wrong in (b"\x02" + data[1:], data[:-1], data + b"\x00", b""):
        with pytest.raises(CodecError):
            decode_entry(wrong)
    with pytest.raises(CodecError):
        StreamReplica.restore(b"\x90")


# -- duplicates ----------------------------------------------------------------------------------------------

ONCE = Settings(deduplication_window_ms=1_000, deduplication_count=50, deduplication_producers=3)


def named(number: int, names: Any, *, mixed: bool = False, node: str = "a") -> bytes:
    """Messages with these ids, whose bodies are their numbers; with `mixed`, of different lengths and some
    with filter values.
    """
    encoder = Encoder(Layouts(), 0, 0, stamped=True)
    for index in range(0, len(names), 3):
        part = names[index : index + 3]
        properties: dict[str, Any] = {}
        if mixed and index % 2:
            properties["headers"] = {"x-stream-filter-value": f"f{index % 4}"}
        size = 7 + (index % 5 if mixed else 0)
        contents = [framed(properties, b"%0*d" % (size, index + each), 1, 4096) for each in range(len(part))]
        encoder.add(run_of(contents, [head_of("k")] * len(part), 1), part)
    return encode_batch(node, 7, number, encoder.finish())


def bodies(applied: Any) -> list[int]:
    """Return the numbers in the bodies, in the order of their offsets."""
    found = []
    for each in applied.batches:
        data = b"".join(each.parts)
        batch = batches.decode(batches.decode_head(data), data)
        at = 0
        for shape in batch.shapes:
            for _ in range(shape.count):
                at += shape.size
                item = bytes(batch.items[:at])
                found.append(int(item[item.rfind(b"\xce", 0, -1) + 8 : -1]))
    return found


def ids(*texts: str) -> list[bytes | None]:
    return [id_of(text.encode()) if text else None for text in texts]


@pytest.mark.parametrize("mixed", [False, True])
def test_duplicates_are_cut_out_wherever_they_stand(mixed: bool) -> None:
    replica = StreamReplica(ONCE)
    names = ids(*"abcdefghij")
    assert bodies(replica.apply(1, *entry(1, named(1, names, mixed=mixed)), OWN)) == list(range(10))
    some = ids("a", "x", "b", "", "c", "y", "x", "d", "z", "e")
    applied = replica.apply(2, *entry(2, named(2, some, mixed=mixed)), OWN)
    # Messages without an id are always new, and the second "x" is a duplicate like all that came before.
    assert bodies(applied) == [1, 3, 5, 8]
    assert (applied.numbers, replica.next_offset) == ([2], 14)
    assert [each.batch.base for each in applied.batches] == [10]
    applied = replica.apply(3, *entry(3, named(3, some[:3] + some[4:], mixed=mixed)), OWN)
    assert (bodies(applied), applied.numbers, replica.next_offset) == ([], [3], 14)


def test_a_producer_goes_on_where_it_was_not_heard() -> None:
    replica = StreamReplica(ONCE)
    first = Sequence.from_first(sequence_of(b"p", 5), 4)
    replica.apply(1, *entry(1, named(1, first)), OWN)
    assert replica.next_offset == 4
    more = Sequence.from_first(sequence_of(b"p", 7), 5)
    assert bodies(replica.apply(2, *entry(2, named(1, more, node="b")), OWN)) == [2, 3, 4]
    assert replica.next_offset == 7


def test_what_was_taken_is_in_the_state_and_bounded() -> None:
    replica = StreamReplica(ONCE)
    for number in range(1, 9):
        names = ids(*[f"{number} {each}" for each in range(20)])
        replica.apply(number, *entry(number, named(number, names)), OWN)
    assert replica.taken is not None and len(replica.taken) == 50
    again = StreamReplica.restore(replica.snapshot(), ONCE)
    assert again.digest() == replica.digest()
    for each in (replica, again):
        # The last 50 are remembered, and no earlier ones.
        old = ids("6 10", "8 19", "1 0")
        assert bodies(each.apply(9, *entry(9, named(9, old)), OWN)) == [2]
    late = replica.apply(10, *entry(5_000, named(10, ids("8 19"))), OWN)
    assert bodies(late) == [0] and len(replica.taken) == 1
    assert replica.digest() != again.digest()


def test_a_stream_without_deduplication_writes_what_it_always_did() -> None:
    replica = StreamReplica()
    replica.apply(1, *entry(1, one("a", 7, 1)), OWN)
    assert len(msgspec.msgpack.decode(replica.snapshot())) == 8
    assert replica.apply(2, *entry(1, named(2, ids("x", "x"))), OWN).numbers == [2]
    assert replica.next_offset == 3


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_is_compressed_on_its_way_comes_to_the_same(codec: str) -> None:
    messages: Any = [("k", {}, None, 90, 40), ("other", {}, "blue", 30, 8)]
    plain = encode_batch(*OWN, 1, encoded(messages))
    packed = encode_batch(*OWN, 1, encoded(messages), codec=codec)
    assert len(packed) < len(plain) / 2
    found = [StreamReplica().apply(1, *entry(5, each), OWN).batches for each in (plain, packed)]
    assert [each.parts for each in found[0]] == [each.parts for each in found[1]]
    # A small batch stays uncompressed.
    assert encode_batch(*OWN, 1, encoded(messages[1:])[:1], codec=codec) != b""
    (_, (batch,)) = entry(5, packed)
    (append,) = batch.appends
    for wrong in (
        msgspec.structs.replace(append, size=append.size + 1),
        msgspec.structs.replace(append, items=append.items[:-1]),
        msgspec.structs.replace(append, codec="gzip"),
    ):
        with pytest.raises(CodecError):
            StreamReplica().apply(1, 1, [NodeBatch("a", 7, 1, [wrong])], OWN)


def test_duplicates_are_cut_out_of_what_is_compressed() -> None:
    replica = StreamReplica(ONCE)
    names = ids(*[f"{number}" for number in range(40)])
    encoder = Encoder(Layouts(), 0, 0, stamped=True)
    contents = [framed({}, b"%07d" % number, 1, 4096) for number in range(40)]
    encoder.add(run_of(contents, [head_of("k")] * 40, 1), names)
    first = encode_batch("a", 7, 1, encoder.finish(), codec="zstd")
    assert bodies(replica.apply(1, *entry(1, first), OWN)) == [*range(40)]
    encoder = Encoder(Layouts(), 0, 0, stamped=True)
    names[5] = names[30] = None
    encoder.add(run_of(contents, [head_of("k")] * 40, 1), names)
    again = encode_batch("a", 7, 2, encoder.finish(), codec="zstd")
    assert bodies(replica.apply(2, *entry(1, again), OWN)) == [5, 30]


def test_wrong_names_are_refused() -> None:
    head, meta, items = encoded([("k", {}, None, 5, 2)])[0].parts
    append = Append(head, meta, memoryview(items), [], [NamedMessages(0, 2, b"", [])])
    with pytest.raises(CodecError):
        StreamReplica(ONCE).apply(1, 1, [NodeBatch("a", 7, 1, [append])], OWN)
    append = Append(head, meta, memoryview(items), [], [NamedMessages(0, 2, b"nothing")])
    with pytest.raises(CodecError):
        StreamReplica(ONCE).apply(1, 1, [NodeBatch("a", 7, 1, [append])], OWN)


def test_a_sealed_stream_takes_no_more_messages() -> None:
    messages: list[Any] = [("k", {}, None, 1, 3)]
    replica = StreamReplica()
    applied = replica.apply(1, *entry(5, encode_batch(*OWN, 1, encoded(messages))), OWN)
    assert applied.taken == 1
    applied = replica.apply(2, *entry(5, encode_batch(*OWN, 2, [], seals=[(4, EMPTY)])), OWN)
    assert (applied.seals, applied.sealed, applied.taken) == ([(4, Sealed(NOT_EMPTY, 3))], False, 2)
    # Only the leader trims; then a seal of another node holds, and a message in the same entry is too late.
    found = [
        encode_batch("b", 1, 1, [], 3),
        encode_batch("b", 1, 2, [], seals=[(9, EMPTY)]),
        encode_batch(*OWN, 3, encoded(messages)),
    ]
    unsealed = replica.snapshot()
    assert len(msgspec.msgpack.decode(unsealed)) == len(msgspec.structs.fields(StreamState)) - 5
    applied = replica.apply(3, *entry(6, *found), OWN)
    assert (applied.seals, applied.sealed, applied.numbers, applied.taken) == ([], True, [3], 0)
    assert (replica.sealed, replica.next_offset, applied.batches) == (True, 3, [])
    again = StreamReplica.restore(replica.snapshot())
    assert again.sealed
    assert again.digest() == replica.digest()
    assert not StreamReplica.restore(unsealed).sealed


def test_the_manifest_is_a_part_of_the_state() -> None:
    """Steps that come late, or name another manifest, have no effect; retention takes ranges out."""
    messages: list[Any] = [("k", {}, None, 1, 30)]
    replica = StreamReplica(
        Settings(deduplication_window_ms=1_000, deduplication_count=50, deduplication_producers=3)
    )
    number = index = 0

    def step(*steps: RemoteStep, first: int = 0) -> Applied:
        nonlocal number, index
        batches = []
        for each in steps or (None,):
            number += 1
            batches.append(encode_batch(*OWN, number, [], first, remote=each))
        index += 1
        return replica.apply(index, *entry(5, *batches), OWN)

    def added(low: int, stop: int, after: int, identity: str = "a") -> RemoteStep:
        return RemoteStep(identity, "archive", Range(low, stop, 10, 32, 1, 2, "sum"), after)

    number = index = 1
    replica.apply(1, *entry(5, encode_batch(*OWN, 1, encoded(messages))), OWN)
    assert step(added(0, 5, 0)).remote and replica.manifest is None
    step(RemoteStep("a", "archive"), RemoteStep("b", "archive"), added(0, 5, 0), added(5, 10, 0))
    step(added(5, 10, 5, "b"), added(4, 9, 5), added(5, 40, 5), added(5, 12, 5))
    assert replica.manifest is not None and replica.manifest.identity == "a"
    assert [(each.first, each.stop) for each in replica.manifest.ranges] == [(0, 5), (5, 12)]
    restored = StreamReplica.restore(
        replica.snapshot(),
        Settings(deduplication_window_ms=1_000, deduplication_count=50, deduplication_producers=3),
    )
    assert restored.digest() == replica.digest()
    assert restored.manifest is not None and restored.manifest.ranges == replica.manifest.ranges
    applied = step(first=5)
    assert [each.first for each in applied.removed] == [0] and replica.manifest.first == 5
    assert step(added(12, 20, 12), first=5).removed == ()
    step(first=20)
    assert replica.manifest.ranges == ()
    step(added(12, 25, 12), added(20, 25, 12))
    assert [(each.first, each.stop) for each in replica.manifest.ranges] == [(20, 25)]
