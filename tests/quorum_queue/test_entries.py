"""Entries of the log: commands as bytes and back, bodies by ordinal, and bytes that are no entry."""

from __future__ import annotations

import contextlib
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from quorum_queue.machine import entries
from quorum_queue.machine.attributes import ALL, ATTRIBUTES, LEADER, MAJORITY, PROMISED
from quorum_queue.machine.bodies import bodies_of, contents_of
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import SEQUENCE_MAX, Sequence, id_of, sequence_of
from quorum_queue.machine.entries import MEMO_MAX, decode_entry, encode_batch, encode_entry
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.machine import ENQUEUES, LATEST_MS, Command
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from tests.quorum_queue.entry_log import random_log
from tests.quorum_queue.kinds import in_turns

KEY = (12, 3, "tag", 40)
U64 = st.integers(0, (1 << 64) - 1)
keys = st.tuples(st.integers(0, 1 << 50), st.integers(1, 65535), st.none() | st.text(max_size=5), U64)
attributes = st.builds(
    Attributes,
    persistent=st.booleans(),
    priority=st.integers(0, 255),
    ttl_ms=st.none() | st.integers(0, 1 << 60),
    channel=st.integers(1, 65535),
    frame_bytes=st.integers(8, (1 << 32) - 1),
    overhead=st.integers(0, (1 << 32) - 1),
)
names = st.none() | st.binary(max_size=200).map(id_of) | st.builds(
    sequence_of, st.binary(max_size=200), st.integers(-(1 << 63), (1 << 63) - 1)
)  # fmt: skip


@st.composite
def enqueues(draw: st.DrawFn) -> Command:
    contents = draw(st.lists(st.binary(max_size=30), min_size=1, max_size=6))
    run = Run(range(len(contents)), contents, draw(st.binary(max_size=20)), draw(attributes))
    if draw(st.booleans()):
        run.heads = [draw(st.binary(max_size=9)) for _ in contents]
    in_turns(run, draw(st.lists(attributes, max_size=2)))
    origin = draw(st.none() | st.integers(0, (1 << 64) - 2))
    if draw(st.booleans()):
        return "enqueue", run, origin, draw(U64)
    if draw(st.booleans()):
        ids = [draw(st.binary(max_size=255)) for _ in contents]
        if draw(st.booleans()):
            return "enqueue_known", run, origin, draw(U64), ids
        if draw(st.booleans()):
            return "enqueue_known", run, origin, draw(U64), ids, [draw(names) for _ in contents]
        letter = Letter(draw(U64), draw(U64), draw(U64))
        return "enqueue_letter", run, origin, draw(U64), letter, ids
    if draw(st.booleans()):
        first = draw(st.integers(-SEQUENCE_MAX, SEQUENCE_MAX - len(contents)))
        named = Sequence.from_first(sequence_of(draw(st.binary(max_size=200)), first), len(contents))
        return "enqueue_once", run, origin, draw(U64), named
    return "enqueue_once", run, origin, draw(U64), [draw(names) for _ in contents]


@st.composite
def consumers(draw: st.DrawFn) -> Command:
    consumer = Consumer(
        draw(keys),
        no_ack=draw(st.booleans()),
        prefetch=draw(st.integers(0, 65535)),
        priority=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        exclusive=draw(st.booleans()),
        window_limit=draw(st.integers(0, 65535)),
    )
    consumer.paused = draw(st.booleans())
    consumer.next_id = draw(U64)
    verb = draw(st.sampled_from(["attach", "get"]))
    if verb == "get" and draw(st.booleans()):
        consumer.limit(0, 0)
        consumer.position = draw(st.integers(1, (1 << 63) - 1))
        consumer.due_ms = draw(st.just(0) | st.integers(1, LATEST_MS))
    return verb, consumer


commands = st.one_of(
    enqueues(),
    consumers(),
    st.tuples(st.sampled_from(["settle", "return", "fail", "discard"]), keys, U64, U64),
    st.tuples(st.just("retry"), keys, U64, U64, st.integers(0, LATEST_MS), st.booleans()),
    st.tuples(st.sampled_from(["detach", "pause"]), keys, st.booleans()),
    st.tuples(st.sampled_from(["prefetch", "window"]), keys, U64),
    st.tuples(st.just("purge"), st.none() | st.integers(0, 1 << 60)),
    st.tuples(st.just("dead_lettered"), U64, U64),
    st.tuples(st.just("node_down"), st.text(max_size=9), U64),
    st.tuples(
        st.just("configure"),
        st.builds(Settings, max_length=st.none() | st.integers(0, 9), keeps_all=st.booleans()),
    ),
    st.sampled_from([("tick",), ("touch",)]),
)
batches = st.lists(
    st.tuples(st.text(min_size=1, max_size=4), U64, U64, st.lists(commands, max_size=6)), max_size=4
)


def entry_of(made: list[tuple[str, int, int, list[Command]]], now_ms: int = 0) -> bytes:
    return encode_entry(now_ms, [part for batch in made for part in encode_batch(*batch)])


def plain(command: Command, owner: tuple[str, int] | None, ordinal: int) -> tuple[object, ...]:
    """A command as plain data; `owner` goes in front of keys, which are given as on their own node."""

    def keyed(key: tuple[object, ...]) -> tuple[object, ...]:
        return key if owner is None else owner + key

    verb = command[0]
    if verb in ("attach", "get"):
        consumer: Consumer = command[1]
        limits = consumer.own_prefetch, consumer.window_limit, consumer.prefetch, consumer.next_id
        flags = consumer.no_ack, consumer.exclusive, consumer.paused, consumer.priority
        return verb, keyed(consumer.key), consumer.position, consumer.due_ms, limits, flags
    if verb in ENQUEUES:
        run: Run = command[1]
        sizes = list(run.sizes) if run.sizes is not None else list(map(len, run.contents or ()))
        heads = [run.head_of(index) for index in range(len(run.seqs))]
        seqs = run.seqs if owner is None else range(ordinal, ordinal + len(run.seqs))
        own = [run.attributes_of(index) for index in range(len(run.seqs))]
        return verb, seqs, sizes, run.size, heads, own, run.expires_at, *command[2:]
    if verb in ("settle", "return", "fail", "retry", "discard", "detach", "pause", "prefetch", "window"):
        return verb, keyed(command[1]), *command[2:]
    return command


@given(batches, U64)
def test_what_is_written_is_read(made: list[tuple[str, int, int, list[Command]]], now_ms: int) -> None:
    data = entry_of(made, now_ms)
    expected = []
    contents: list[bytes] = []
    for node, incarnation, number, sent in made:
        told = []
        for command in sent:
            told.append(plain(command, (node, incarnation), len(contents)))
            if command[0].startswith("enqueue"):
                contents += command[1].contents
        expected.append((node, incarnation, number, told))
    for form in (data, memoryview(data)):
        entry = decode_entry(form)
        assert entry.now_ms == now_ms
        found = [
            (
                batch.node,
                batch.incarnation,
                batch.number,
                [plain(command, None, 0) for command in batch.commands],
            )
            for batch in entry.batches
        ]
        assert found == expected
        assert all(
            command[1].contents is None
            for batch in entry.batches
            for command in batch.commands
            if command[0].startswith("enqueue")
        )
        assert entry.bodies.count == len(contents)
        assert contents_of(form, range(len(contents))) == contents


@given(batches, st.data())
def test_bodies_by_ordinal(made: list[tuple[str, int, int, list[Command]]], data: st.DataObject) -> None:
    entry = entry_of(made)
    bodies = bodies_of(entry)
    contents = [
        c for *_, sent in made for command in sent if command[0][:2] == "en" for c in command[1].contents
    ]
    first, stop = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    ordinals = range(first, stop, data.draw(st.integers(1, 4)))
    if not ordinals or ordinals[-1] < len(contents):
        assert bodies.contents(ordinals) == [contents[ordinal] for ordinal in ordinals]
    else:
        with pytest.raises(CodecError):
            bodies.contents(ordinals)


@given(batches.filter(bool), st.data())
def test_a_truncated_entry_is_refused(
    made: list[tuple[str, int, int, list[Command]]], data: st.DataObject
) -> None:
    """Except where it ends between two batches: checksums cover whole entries."""
    ends = {len(entry_of(made[:count])) for count in range(len(made) + 1)}
    entry = entry_of(made)
    cut = data.draw(st.integers(0, len(entry) - 1).filter(lambda cut: cut not in ends))
    for read in (decode_entry, bodies_of):
        with pytest.raises(CodecError):
            read(entry[:cut])


@given(st.integers(0, 1 << 32).map(Random), st.data())
def test_a_damaged_entry_is_refused_or_applied(random: Random, data: st.DataObject) -> None:
    """CodecError is the only exception, and an entry that can be read can be applied: a bad entry must not
    stop every node.
    """
    log = random_log(random, 4)
    replica = QueueReplica(Settings(delivery_limit=2, max_length=9, deduplication_window_ms=9))
    for index, entry in enumerate(log, 1):
        damaged = bytearray(entry)
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(CodecError):
            contents_of(bytes(damaged), range(1))
        try:
            decoded = decode_entry(bytes(damaged))
        except CodecError:
            decoded = decode_entry(entry)
        replica.apply(index, decoded, ("n1", 1))
    assert QueueReplica.restore(replica.snapshot()).digest() == replica.digest()


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_an_error(data: bytes) -> None:
    for form in (data, encode_entry(0, [data])):
        with contextlib.suppress(CodecError):
            decode_entry(form)
        with contextlib.suppress(CodecError):
            contents_of(form, range(1))


@pytest.mark.parametrize("level", [MAJORITY, LEADER, ALL])
def test_the_level_of_confirmation_goes_to_a_home_and_not_into_the_log(level: int) -> None:
    run = Run(range(2), [b"x", b"y"], b"", ATTRIBUTES[level](persistent=True))
    for levels in (True, False):
        batch = encode_batch("n", 1, 1, [("enqueue", run, 5, 1)], levels=levels)
        (found,) = decode_entry(encode_entry(0, batch)).batches[0].commands
        assert found[1].attributes == run.attributes
        assert found[1].attributes.confirm_level == (level if levels else MAJORITY)


@pytest.mark.parametrize("level", [MAJORITY, LEADER, ALL])
def test_the_log_has_what_a_leader_may_confirm_early(level: int) -> None:
    run = Run(range(1), [b"x"], b"", ATTRIBUTES[level](persistent=True))
    batch = encode_batch("n", 1, 1, [("enqueue", run, 5, 1)], promises=True)
    (found,) = decode_entry(encode_entry(0, batch)).batches[0].commands
    assert found[1].attributes.confirm_level == (PROMISED if level == LEADER else MAJORITY)


def test_batches_with_the_same_names_are_told_apart_by_who_sent_them() -> None:
    """Names are remembered for one incarnation only."""
    for node in ("n1", "n2"):
        for incarnation in (1, 2):
            for key in (("c", 1), ("c", True), ("c", "1")):
                batch = encode_batch(node, incarnation, 1, [("settle", key, 0, 5)])
                (found,) = decode_entry(encode_entry(0, batch)).batches[0].commands
                assert found[1] == (node, incarnation, *key) and type(found[1][-1]) is type(key[-1])


def test_what_is_remembered_is_bounded() -> None:
    for number in range(MEMO_MAX + 10):
        run = Run(range(1), [b"x"], b"", ATTRIBUTES[MAJORITY](ttl_ms=number))
        batch = encode_batch("n1", number, 1, [("enqueue", run, None, 0), ("settle", ("c", number), 0, 5)])
        (enqueue, settle) = decode_entry(encode_entry(0, batch)).batches[0].commands
        assert enqueue[1].attributes.ttl_ms == number and settle[1] == ("n1", number, "c", number)
    many = [("settle", ("c" * 200, number), 0, 5) for number in range(10)]
    found = decode_entry(encode_entry(0, encode_batch("n1", 1, 1, many))).batches[0].commands
    assert [command[1] for command in found] == [("n1", 1, *command[1]) for command in many]
    assert 0 < len(entries._named) <= MEMO_MAX and 0 < len(entries._attributes) <= MEMO_MAX
    assert max(len(names) for *_, names in entries._named) <= entries.MEMO_BYTES_MAX


def test_another_version_is_refused() -> None:
    with pytest.raises(CodecError, match="version 99, this mqd reads version"):
        decode_entry(b"\x63" + bytes(8))


def test_a_key_is_written_once_a_batch() -> None:
    settles: list[Command] = [("settle", KEY, number, number) for number in range(100)]
    one, many = (len(b"".join(encode_batch("n1", 1, 1, settles[:count]))) for count in (1, 100))
    assert many - one == 99 * 21


def test_no_such_command() -> None:
    with pytest.raises(ValueError, match="no command 'dance'"):
        encode_batch("n1", 1, 1, [("dance",)])
