"""Streams of whole nodes whose old segments go to an object store, under seeded chance; bugs that these runs
find; and scenes of their own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from amqp_server.broker.declared.operations import SetMembers
from amqp_server.streams.members.segments import MemberSegments
from amqp_server.streams.remote_host import StreamRemoteHost
from persistence.streams.remote import manifest
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.reading import TieredReader
from persistence.streams.remote.table import Find, is_table_file
from persistence.streams.segment import Read
from stream_tables.work import Tables
from tests import seeds
from tests.amqp_server.cluster.simulation import streams
from tests.amqp_server.cluster.simulation.node import RemoteJobs
from tests.amqp_server.cluster.test_simulation_streams import ABANDONED, Mutation, collected
from tests.amqp_server.cluster.test_stream_beginnings import StreamScene
from tests.stores.objects import SimulatedObjects
from tests.turns import Violation

#: For each test here.
__all__ = ["collected"]

SEEDS = range(6)
MUTATION_SEEDS = 12


def test_seeds_and_what_they_reach() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        with seeds.told_how(f"streams.run({seed}, remote=True)"):
            run = streams.run(seed, remote=True)
        seen.update(run.stream.count)
        seen["retention"] += bool(run.stream.first)
    least = {
        "ranges in the store": 100,
        "files of tables": 100,
        "away from the disk": 1000,
        "retention": 1,
        "delivered": 20_000,
    }
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, seen


trimmed_before = manifest.trimmed_before
read = TieredReader.read
retain = MemberSegments._retain


def before_the_manifest(segments: Any, stop: int, limits: Any, now_ms: int) -> int:
    return trimmed_before(segments, 1 << 60, limits, now_ms)


def with_the_proposal(self: Any) -> None:
    trimming = self._trimming
    retain(self)
    if self._trimming > trimming and self.replica.manifest is not None:
        left, removed = self.replica.manifest.without_before(self._trimming)
        self.tier.delete(left, removed)


def behind_the_seam(self: Any, offset: int, *more: Any, **named: Any) -> Read:
    found = read(self, offset, *more, **named)
    if self.is_remote(offset) and not self.is_remote(found.place.offset):
        return found._replace(batches=[], place=found.place._replace(base=-1))
    return found


def at_any_end(self: Manifest, after: int, range: Range, first_offset: int) -> Manifest:
    return Manifest(self.identity, self.remote, (*self.ranges, range))


def guessed(self: Tables, job: Find) -> int:
    return job.ranges[-1][1]


MUTATIONS = (
    Mutation("a segment leaves before the manifest has it", manifest, "trimmed_before", before_the_manifest),
    Mutation("objects go with the proposal", MemberSegments, "_retain", with_the_proposal),
    Mutation("a reader skips at the seam", TieredReader, "read", behind_the_seam),
    Mutation("a late range joins the manifest", Manifest, "with_range", at_any_end),
    Mutation("a new writer guesses how far the table is", Tables, "_find", guessed),
)


@ABANDONED
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation.target, mutation.attribute, mutation.mutant)
    for seed in range(MUTATION_SEEDS):
        try:
            streams.run(seed, remote=True)
        except (Violation, AssertionError):
            return
    pytest.fail("nothing was found")


class TableScene(StreamScene):
    """A stream that goes to an object store, as a table too."""

    def __init__(self, names: str = "abc") -> None:
        self.objects = SimulatedObjects()
        super().__init__(names, arguments={"x-stream-remote": "archive", "x-stream-table": "parquet"})

    def settle(self) -> None:
        for node in self.nodes.values():
            node.stores["archive"] = self.objects
        super().settle()

    @property
    def files(self) -> list[str]:
        return [key for key in self.objects.objects if is_table_file(key)]


@pytest.mark.parametrize("held", ["table", "write"])
def test_a_new_leader_goes_on_though_nothing_is_published(
    held: str, monkeypatch: pytest.MonkeyPatch, hand: None
) -> None:
    """The last leader had not written the files, or not uploaded the segments."""
    with monkeypatch.context() as patches:
        patches.setattr(RemoteJobs, held, lambda self, job, done: None)
        scene = TableScene()
        for _ in range(20):
            scene.confirmed(20)
        scene.settle()
    assert not scene.files and bool(scene.objects.objects) == (held == "table")
    scene.crash(scene.nodes["a"])
    scene.settle()
    scene.ticks(100)
    leader = scene.leading(scene.host("b").queue_id)
    assert leader is not None
    tier = scene.host(leader.replicas.node).tier
    assert len(scene.files) == len(tier.ranges) > 2


def test_a_member_that_moves_away_takes_its_alarm_with_it(
    monkeypatch: pytest.MonkeyPatch, hand: None
) -> None:
    def refuse(self: Tables, job: Find) -> int:
        raise Unavailable("no catalog")

    with monkeypatch.context() as patches:
        patches.setattr(Tables, "_find", refuse)
        scene = TableScene("abcd")
        alarms: list[str] = []
        scene.host("a")._services.remotes._on_tables = alarms.append
        for _ in range(20):
            scene.confirmed(20)
        scene.settle()
        queue_id = scene.host("a").queue_id
        assert alarms and "no catalog" in alarms[-1]
        scene.propose("b", SetMembers("/", "s", queue_id, tuple("bcd"), "b"))
        scene.settle()
    scene.ticks(100)
    assert isinstance(scene.host("a"), StreamRemoteHost) and alarms[-1] == ""
    leader = scene.leading(queue_id)
    assert leader is not None
    assert len(scene.files) == len(scene.host(leader.replicas.node).tier.ranges) > 2
