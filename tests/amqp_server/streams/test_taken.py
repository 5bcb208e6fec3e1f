"""A stream takes no message twice: by id, by sequence, after restarts and crashes, and with the log as the
only source.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from amqp_server.streams.layout.deduplication import Taken
from amqp_server.streams.layout.encode import Encoder
from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.local_host import StreamOptions
from amqp_server.streams.members.log_trimming import Stable, encode_in_parts, read_names
from amqp_server.streams.members.replica import StreamReplica, decode_state, encode_state
from amqp_server.wire import content, frames
from persistence.streams import batch as batches
from persistence.streams import deduplication_file as names_file
from persistence.streams.batch import HEAD_BYTES
from persistence.streams.retention import RetentionLimits
from quorum_queue.machine.dedup import Dedup, Names, Sequence, id_of, sequence_of
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, consume, declare, got
from tests.persistence.streams.crashing import Crashed


def opened(node: StreamNode) -> Peer:
    peer = node.peer()
    peer.call(1, commands.Channel.Open(), commands.Confirm.Select())
    return peer


def publish(peer: Peer, *messages: tuple[bytes, dict[str, Any]]) -> None:
    """Publish bodies with headers as one read."""
    parts: list[bytes] = []
    for body, headers in messages:
        properties = commands.Basic.Properties(headers=headers)
        payload = header.ContentHeader(0, len(body), properties).marshal()
        parts.append(frames.method_frame(1, commands.Basic.Publish(exchange="", routing_key="s")))
        parts.append(content.build(payload, body, 1, 131_072))
    peer.send(*parts)


def by_id(*ids: str) -> list[tuple[bytes, dict[str, Any]]]:
    return [(each.encode(), {"x-deduplication-id": each}) for each in ids]


def by_sequence(producer: str, *numbers: int) -> list[tuple[bytes, dict[str, Any]]]:
    return [
        (f"{producer}{number}".encode(), {"x-producer": producer, "x-sequence": number}) for number in numbers
    ]


def confirmed(peer: Peer) -> int:
    """Return the number up to which all publishes are confirmed."""
    acks = [each for _, each in peer.answers() if isinstance(each, commands.Basic.Ack)]
    return max([each.delivery_tag or 0 for each in acks], default=0)


def stored(node: StreamNode) -> list[str]:
    node.work()
    reader = opened(node)
    answers = consume(reader)
    node.work()
    found = got(reader, answers)
    assert [offset for offset, _ in found] == list(
        range(found[0][0], found[0][0] + len(found)) if found else []
    )
    return [body.decode() for _, body in found]


@pytest.fixture
def node() -> StreamNode:
    return StreamNode()


@pytest.fixture
def peer(node: StreamNode) -> Peer:
    peer = opened(node)
    declare(peer, x_deduplication=True)
    return peer


def test_duplicates_are_confirmed_and_not_stored(node: StreamNode, peer: Peer) -> None:
    publish(
        peer, *by_id("a", "b", "a"), *by_sequence("p", 1, 2, 3), *by_sequence("p", 2, 3, 4), (b"plain", {})
    )
    assert confirmed(peer) == 0
    node.sync()
    assert confirmed(peer) == 10
    publish(peer, *by_id("b"), *by_sequence("p", 1, 4), (b"plain", {}))
    node.sync()
    assert confirmed(peer) == 14
    assert stored(node) == ["a", "b", "p1", "p2", "p3", "p4", "plain", "plain"]


def test_a_duplicate_is_confirmed_when_the_first_one_is_synced(node: StreamNode, peer: Peer) -> None:
    publish(peer, *by_id("a"))
    publish(peer, *by_id("a"))
    assert confirmed(peer) == 0
    node.sync()
    assert confirmed(peer) == 2


def test_the_window_is_bounded(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer, x_deduplication_window_ms=1_000, x_deduplication_count=2)
    publish(peer, *by_id("a", "b", "c", "a"))
    assert stored(node) == ["a", "b", "c", "a"]
    publish(peer, *by_id("a", "c"))
    node.clock.now_ms += 1_001
    publish(peer, *by_id("a"))
    assert stored(node) == ["a", "b", "c", "a", "a"]


def test_without_the_argument_all_are_stored(node: StreamNode) -> None:
    peer = opened(node)
    declare(peer)
    publish(peer, *by_id("a", "a"))
    assert stored(node) == ["a", "a"]


@pytest.mark.parametrize("batches_between", [1, 3, 1_000])
@pytest.mark.parametrize("moved", [False, True], ids=["in the journal", "in segments"])
def test_a_restart_remembers(monkeypatch: pytest.MonkeyPatch, moved: bool, batches_between: int) -> None:
    monkeypatch.setattr(names_file, "BATCHES", batches_between)
    node = StreamNode()
    peer = opened(node)
    declare(peer, x_deduplication=True)
    for number in range(10):
        publish(peer, *by_id(f"i{number}"), *by_sequence("p", number), *by_sequence(f"q{number}", 7))
        if moved:
            node.work()
    node.sync()
    before = stored(node) if moved else None
    for _ in range(2):
        node.restart()
        peer = opened(node)
        for number in range(10):
            publish(peer, *by_id(f"i{number}"), *by_sequence("p", number), *by_sequence(f"q{number}", 7))
        publish(peer, *by_sequence("q3", 7))
    found = stored(node)
    assert len(found) == 30 and found == (before or found)
    publish(peer, *by_sequence("q3", 8), *by_sequence("p", 10))
    assert stored(node) == [*found, "q38", "p10"]


def test_what_retention_deletes_stays_known() -> None:
    node = StreamNode(StreamOptions(segment_bytes=100, flush_bytes=1, limits=RetentionLimits(max_bytes=300)))
    peer = opened(node)
    declare(peer, x_deduplication=True)
    for number in range(50):
        publish(peer, *by_id(f"i{number}"))
        node.work()
    assert node.host().first_offset > 40
    node.restart()
    peer = opened(node)
    publish(peer, *by_id(*(f"i{number}" for number in range(50))))
    node.work()
    assert node.host().next_offset == 50


def test_a_damaged_file_is_made_from_the_log(caplog: pytest.LogCaptureFixture) -> None:
    node = StreamNode()
    peer = opened(node)
    declare(peer, x_deduplication=True)
    publish(peer, *by_id("a", "b"))
    node.work()
    log = node.host()._log
    assert log._names is not None
    log._names.cover(2)
    path = log.directory / "names"
    for at in (3, 30, len(node.files.now[path]) - 1):
        node.files.now[path][at] ^= 1
        node.restart()
        assert "the names are read from the log" in caplog.text
        caplog.clear()
        publish(opened(node), *by_id("a", "b"))
        assert stored(node) == ["a", "b"]
        node.files.now[path][at] ^= 1


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_step_takes_each_message_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(names_file, "BATCHES", 2)
    chance = random.Random(seed)
    node = StreamNode(StreamOptions(segment_bytes=300, flush_bytes=1))
    node.files.random = chance
    declare(opened(node), x_deduplication=True)
    node.sync()
    for _ in range(25):
        node.files.left = chance.randint(1, 40)
        peer = opened(node)
        try:
            # A publisher that does not know the last number begins from the first one.
            for number in range(12):
                publish(peer, *by_id(f"i{number}"), *by_sequence("p", number))
                node.work()
        except Crashed:
            pass
        node.files.left = None
        node.restart(lost_power=True)
    peer = opened(node)
    for number in range(12):
        publish(peer, *by_id(f"i{number}"), *by_sequence("p", number))
    assert stored(node) == [name for number in range(12) for name in (f"i{number}", f"p{number}")]


NAME = st.one_of(
    st.none(),
    st.builds(lambda text: id_of(text.encode()), st.sampled_from("abcdef")),
    st.builds(lambda p, n: sequence_of(p.encode(), n), st.sampled_from("pqr"), st.integers(0, 8)),
)
NAMES = st.one_of(
    st.lists(NAME, min_size=1, max_size=8),
    st.builds(
        lambda p, n, count: Sequence.from_first(sequence_of(p.encode(), n), count),
        st.sampled_from("pqr"),
        st.integers(0, 8),
        st.integers(1, 5),
    ),
)


@settings(max_examples=200, deadline=None)
@given(published=st.lists(st.tuples(NAMES, st.integers(0, 40)), max_size=20), data=st.data())
def test_the_log_alone_leads_to_the_same_state(
    published: list[tuple[Names, int]], data: st.DataObject
) -> None:
    limits = Settings(deduplication_window_ms=100, deduplication_count=3, deduplication_producers=2)
    live, offset, now_ms = Taken(limits), 0, 0
    written: list[list[bytes]] = []
    expected = Dedup(limits)
    for names, passed in published:
        now_ms += passed
        each = names.each() if isinstance(names, Sequence) else names
        # The result is as for one message after the other.
        expected.expire(now_ms, [])
        new = 0
        for name in each:
            if expected.is_new(name, now_ms):
                expected.take(name, now_ms)
                new += 1
        run = Run(range(len(each)), [_message() for _ in each], b"\0\1s", Attributes(True, 0, None, 1))
        encoder = Encoder(Layouts(), offset, now_ms)
        for fresh in live.fresh(run, names, now_ms):
            encoder.add(fresh.run, fresh.names)
        done = encoder.finish()
        assert sum([each.batch.count for each in done]) == new
        written += [each.parts for each in done]
        offset = encoder.next_offset
    rebuilt, cut = Taken(limits), data.draw(st.integers(0, len(written)))
    for number, parts in enumerate(written):
        if number == cut:
            pieces = list(rebuilt.pieces())
            rebuilt = Taken(limits)
            rebuilt.restore(pieces)
        whole = b"".join(parts)
        head = batches.decode_head(whole)
        rebuilt.apply(
            head.time_ms, batches.decode_names(head, whole[HEAD_BYTES : HEAD_BYTES + head.meta_bytes])
        )
    for each_of in (live, rebuilt, expected):
        dedup = each_of if isinstance(each_of, Dedup) else each_of._dedup
        dedup.expire(now_ms, [])
    assert live._dedup.state() == expected.state() == rebuilt._dedup.state()


def _message() -> bytes:
    payload = header.ContentHeader(0, 1, commands.Basic.Properties()).marshal()
    return content.build(payload, b"x", 1, 131_072)


def encoded_with(time_ms: int, names: list[bytes]) -> Any:
    """Return what Stable wants to know of a batch."""
    return SimpleNamespace(batch=SimpleNamespace(time_ms=time_ms), names=names)


class Ended:
    """A host, for `encode_in_parts` and `read_names`."""

    ended = ""

    def failed(self, error: Exception) -> None:
        raise error


class ShortTurn:
    """Each turn has time for one step."""

    def __init__(self) -> None:
        self.left: list[Callable[[], object]] = []

    def overdue(self) -> bool:
        return True

    def later(self, unit: object, call: Callable[[], object]) -> None:
        self.left.append(call)


@pytest.mark.pure
def test_a_snapshot_has_the_names_of_its_moment_and_takes_several_turns() -> None:
    settings = Settings(deduplication_window_ms=1 << 40, deduplication_count=10_000)
    replica = StreamReplica(settings)
    stable = Stable(replica, settings)
    names = [id_of(b"%d" % number) for number in range(5_000)]
    for at in range(0, 5_000, 100):
        stable.add(encoded_with(at, names[at : at + 100]))
        assert replica.taken is not None
        replica.taken.apply(at, names[at : at + 100])
    stable.reach(7, replica.state(), 50)
    expected = encode_state(stable.state, replica.taken)
    turn, host, found = cast(Any, ShortTurn()), cast(Any, Ended()), list[bytes]()
    encode_in_parts(host, stable, turn, found.append)
    # More is taken meanwhile, and less is known of the oldest.
    more = [id_of(b"more %d" % number) for number in range(8_000)]
    stable.add(encoded_with(6_000, more))
    stable.reach(8, replica.state(), 51)
    turns = 1
    while turn.left:
        turn.left.pop()()
        turns += 1
    assert found == [expected]
    assert turns == 6
    restored = StreamReplica.restore(found[0], settings)
    assert restored.taken is not None and replica.taken is not None
    assert list(restored.taken.pieces()) == list(replica.taken.pieces())
    # Another member reads them in as many turns, as long as it wants them.
    for wanted in (True, False):
        pieces, read, told = decode_state(found[0]).taken, Taken(settings), list[str]()
        assert pieces is not None and len(pieces) == 5
        read_names(host, read, pieces, turn, partial(bool, wanted), partial(told.append, "read"))
        turns = 1
        while turn.left:
            turn.left.pop()()
            turns += 1
        assert (turns, told) == ((6, ["read"]) if wanted else (2, []))
        assert not wanted or list(read.pieces()) == pieces
    # A host that ends meanwhile needs none.
    encode_in_parts(host, stable, turn, found.append)
    host.ended = "deleted"
    turn.left.pop()()
    assert not turn.left and len(found) == 1


def test_a_copy_goes_its_own_way() -> None:
    settings = Settings(deduplication_window_ms=1_000, deduplication_count=4)
    taken, copy = Taken(settings), Taken(settings)
    for number in range(6):
        taken.apply(number, [id_of(b"%d" % number), sequence_of(b"p", number)])
    taken.apply(5, [id_of(b"2")])
    copy.copy_from(taken)
    before = list(taken.pieces())
    assert list(copy.pieces()) == before
    copy.apply(6, [id_of(b"x"), id_of(b"y"), sequence_of(b"q", 1)])
    assert list(taken.pieces()) == before
    taken.apply(6, [id_of(b"x"), id_of(b"y"), sequence_of(b"q", 1)])
    assert list(taken.pieces()) == list(copy.pieces()) != before
