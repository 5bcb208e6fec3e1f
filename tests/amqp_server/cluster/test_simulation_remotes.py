"""Streams of whole nodes whose old segments go to an object store, under seeded chance; and bugs that these
runs find.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from amqp_server.streams.members.segments import MemberSegments
from persistence.streams.remote import manifest
from persistence.streams.remote.manifest import Manifest, Range
from persistence.streams.remote.reading import TieredReader
from persistence.streams.remote.table import Find
from persistence.streams.segment import Read
from stream_tables.work import Tables
from tests import seeds
from tests.amqp_server.cluster.simulation import streams
from tests.amqp_server.cluster.test_simulation_streams import ABANDONED, Mutation, collected
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
