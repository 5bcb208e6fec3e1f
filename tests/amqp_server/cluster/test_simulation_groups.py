"""A fixed set of seeds of a consumer group on whole nodes, checks that they exercise what they are made for,
and bugs that they find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, cast

import pytest

from amqp_server.streams.consumer_groups import member_host
from amqp_server.streams.consumer_groups.entry_steps import EntrySteps
from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost
from amqp_server.turn import Turn
from quorum_queue.consumer_groups import group as group_of_members
from quorum_queue.consumer_groups.group import Group
from quorum_queue.consumer_groups.partition import Partition
from quorum_queue.consumer_groups.replica import GroupReplica
from tests import seeds
from tests.amqp_server.cluster.simulation import groups
from tests.turns import Violation

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS = 6
#: Seeds within which a bug must be found.
MUTATION_SEEDS = 10


def test_seeds_and_what_they_reach() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        with seeds.told_how(f"python -m tests.amqp_server.cluster.simulation.groups --seed {seed}"):
            run = groups.run(seed)
        seen.update(run.stream.count)
        seen.update(run.ledger.count)
    least = {
        "delivered to members": 1000, "flagged": 20, "members come": 100, "copies change": 20, "groups checked": 24, "crashes": 20,
        "partitions": 4, "leaders hand over": 2,
    }  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, seen


@pytest.mark.pure
def test_entries_that_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots, leaders and restarts come in between."""
    chance, seen = Random(1), Counter[str]()
    applying, apply = GroupReplica.applying, EntrySteps.apply

    def slowly(self: GroupReplica, *entry: Any) -> Iterator[None]:
        for _ in range(chance.choice((0, 0, 1, 3))):
            yield
        yield from applying(self, *entry)

    def counting(self: EntrySteps, *entry: Any) -> Any:
        left = apply(self, *entry)
        seen["taken several turns"] += left is not None
        return left

    class Overdue:
        def __init__(self, turn: Turn) -> None:
            self.later = turn.later

        def overdue(self) -> bool:
            return True

    def made(host: Any, turn: Turn) -> EntrySteps:
        return EntrySteps(host, cast(Any, Overdue(turn)))

    monkeypatch.setattr(group_of_members, "PORTIONS_MAX", 1)
    monkeypatch.setattr(GroupReplica, "applying", slowly)
    monkeypatch.setattr(EntrySteps, "apply", counting)
    monkeypatch.setattr(member_host, "EntrySteps", made)
    for seed in range(301, 304):
        groups.run(seed)
    assert seen["taken several turns"] > 500, seen


class Mutation(NamedTuple):
    name: str
    target: Any
    attribute: str
    mutant: Callable[..., Any]


def whoever_owns_it(self: Partition) -> Any:
    """A new owner does not wait until the one before has let go of the partition."""
    return self.owner


_give_back: Any = Group._give_back


def as_new(self: Group, portions: list[Any], more: int = 1) -> None:
    """Messages that come back are not flagged as redelivered."""
    _give_back(self, portions, 0)


def stays_as_it_is(self: ConsumerGroupMemberHost) -> None:
    """Consumers of nodes that are gone keep their places."""


_detach: Any = ConsumerGroupMemberHost._detach


def says_nothing(self: ConsumerGroupMemberHost, key: Any, *, gone: bool) -> Any:
    """A consumer that leaves does not say how many of its messages were sent to it."""
    return [command for command in _detach(self, key, gone=gone) if command[0] != "sent"]


MUTATIONS = [
    Mutation("a new owner does not wait", Partition, "active", whoever_owns_it),
    Mutation("what comes back is not flagged", Group, "_give_back", as_new),
    Mutation("consumers of dead nodes stay", ConsumerGroupMemberHost, "gone_members", stays_as_it_is),
    Mutation(
        "who leaves does not tell how far it was sent", ConsumerGroupMemberHost, "_detach", says_nothing
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.long
def test_bugs_are_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation.target, mutation.attribute, mutation.mutant)
    for seed in range(MUTATION_SEEDS):
        try:
            groups.run(seed)
        except (Exception, Violation):  # noqa: BLE001
            return
    raise AssertionError(f"{mutation.name}: nothing is amiss in {MUTATION_SEEDS} seeds")
