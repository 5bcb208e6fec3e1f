"""A fixed set of seeds of transactions on whole nodes, checks that they exercise what they are made for, and
bugs that they find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from amqp_server.broker.open_transactions import OpenTransactions
from amqp_server.channel.transactions.prepared_commit import PreparedCommit
from amqp_server.cluster.coordinator.decisions import Decision, Decisions
from amqp_server.cluster.coordinator.transactions import Transactions
from amqp_server.streams.members.entries import COMMIT, PEND
from amqp_server.streams.members.parts import StreamParts
from quorum_queue.machine.machine import _APPLY, ENQUEUES, Machine
from quorum_queue.machine.parts import READY, Part
from quorum_queue.machine.snapshots import records, snapshot
from tests import seeds
from tests.amqp_server.cluster.simulation import transactions
from tests.turns import Violation

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS = (*range(33, 56), 190, 352, 1308)
#: Seeds within which a bug must be found.
MUTATION_SEEDS = 40


def test_seeds_and_what_they_reach() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        with seeds.told_how(f"make sim KIND=transactions SEED={seed}"):
            run = transactions.run(seed)
        seen.update(run.ledger.count)
    least = {
        "committed": 600, "transactions over several queues": 150, "rollback answered": 24, "Decide": 132, "Answers": 240,
        "refused 406": 90, "refused 506": 108, "crashes": 90, "partitions": 18, "nodes are upgraded": 12,
        "a node that commits crashes": 12, "a node that commits is cut off": 9, "the nodes are cut in two": 12,
        "another node crashes": 9, "links break while parts are handed out": 15,
        "RaiseEpoch": 60, "commits of producers that are shut out": 12,
    }  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, seen


class Mutation(NamedTuple):
    name: str
    target: Any
    attribute: str
    mutant: Callable[..., Any]
    #: The first of the seeds.
    first: int = 0


_decide: Any = Transactions.decide
_pend: Any = Machine._pend
_take: Any = Decisions.take
_resolve: Any = Machine._resolve
_prepare: Any = Machine._prepare
_take_step: Any = StreamParts.take


def answers_at_once(
    self: Transactions, transaction: Any, queues: list[int], producer: Any, done: Any
) -> None:
    """The client is told before the decision is in the log."""
    _decide(self, transaction, queues, producer, lambda outcome: None)
    done(True)


def without_parts(part: Any) -> Any:
    """A snapshot has the transaction, and nothing of what it does."""
    return records.StoredPart(part.transaction, part.came, False, part.prepared, part.participants, 0, [], [])


def last_one_stands(self: Decisions, decision: Decision) -> bool:
    """A later decision replaces an earlier one."""
    self.by_id.pop(decision.transaction, None)
    return bool(_take(self, decision))


def seen_at_once(self: Machine, meta: Any, command: Any, effects: Any) -> None:
    """Messages are in the queue as soon as they come."""
    if command[2][0] in ENQUEUES:
        _, run, origin, first, *_ = command[2]
        self._enqueue(meta, ("enqueue", run, origin, first), effects)
        self.parts.of(command[1], meta.now_ms).came += 1
    else:
        _pend(self, meta, command, effects)


def twice(self: Machine, meta: Any, command: Any, effects: Any) -> None:
    """Acks of a transaction that is rolled back take effect all the same."""
    part = self.parts.by_id.get(command[1])
    if part is not None and not command[2]:
        part.settled = []
    _resolve(self, meta, command, effects)


def forgets_at_once(self: Decisions, transaction: Any, queue_id: int) -> None:
    """A decision is forgotten with the first answer."""
    self.by_id.pop(transaction, None)


def takes_half(self: Machine, meta: Any, command: Any, effects: Any) -> None:
    """A part counts as complete, whatever has come of it."""
    part = self.parts.by_id.get(command[2])
    count = command[3] if part is None else part.came
    _prepare(self, meta, (*command[:3], count, *command[4:]), effects)


def asks_nobody(self: Transactions, host: Any, part: Any, age_ms: int) -> None:
    """The leader of a queue rolls a part back by itself if it hears nothing."""
    if part.transaction not in self._decisions.by_id and age_ms >= 1_000:
        host.submit(("resolve", part.transaction, False))


def commits_when_in_doubt(self: PreparedCommit, committed: Any) -> None:
    """Without news of the decision the client's node takes it for made."""
    self._resolve(committed=True)
    self._committed()


def takes_all(self: Machine, part: Any) -> bool:
    """A full queue takes its part, and drops it later."""
    if part.count and self.settings.overflow != "drop-head" and self.settings.max_length is not None:
        part.enqueued = part.enqueued[:1]
    return True


def shuts_out_nobody(self: Decisions, decision: Decision) -> bool:
    """The commit of an earlier start of a producer is decided like any other."""
    return bool(_take(self, msgspec.structs.replace(decision, producer="")))


def ends_nothing(self: OpenTransactions, key: str, epoch: int) -> None:
    """A producer has begun again, and what its earlier starts left open stays open."""


def applied_again(self: Machine, meta: Any, command: Any, effects: Any) -> None:
    """A queue keeps a part that has taken effect: when it is told the decision again, its messages come
    again.
    """
    part, again = self.parts.by_id.get(command[1]), Part(command[1], meta.now_ms)
    if part is not None and command[2]:
        again.prepared, again.participants = True, part.participants
        for run, names in part.enqueued:
            for index, single in enumerate(run.singles()):
                again.add_messages(single, None if names is None else [names[index]])
    _resolve(self, meta, command, effects)
    if again.count:
        self.parts.put(again)


def appended_again(self: StreamParts, step: Any) -> Any:
    """A stream keeps a part that has taken effect."""
    part = self.by_id.get(step.transaction)
    taken = _take_step(self, step)
    if part is not None and step.kind == COMMIT:
        self.by_id[step.transaction] = part
    return taken


def appended_at_once(self: StreamParts, step: Any) -> Any:
    """Messages are in the stream as soon as they come."""
    if step.kind != PEND:
        return _take_step(self, step)
    _take_step(self, msgspec.structs.replace(step, appends=[]))
    return READY, step.appends


MUTATIONS = [
    Mutation("answered before it is decided", Transactions, "decide", answers_at_once),
    Mutation("a snapshot drops a part", snapshot, "_stored_part", without_parts),
    Mutation("a later decision stands", Decisions, "take", last_one_stands, 80),
    Mutation("a decision is forgotten with the first answer", Decisions, "answered", forgets_at_once),
    Mutation("a part is seen early", _APPLY, "pend", seen_at_once),
    Mutation("acks of an abort count", _APPLY, "resolve", twice),
    Mutation("half a part is complete", _APPLY, "prepare", takes_half),
    Mutation("a leader rolls back by itself", Transactions, "_look_at_part", asks_nobody),
    Mutation("in doubt it is committed", PreparedCommit, "_decided", commits_when_in_doubt),
    Mutation("a full queue takes a part of its part", Machine, "_has_room_for_parts", takes_all),
    Mutation("a producer that is shut out commits late", Decisions, "take", shuts_out_nobody),
    Mutation("what a producer that is shut out left open stays", OpenTransactions, "shut_out", ends_nothing),
    Mutation("a commit takes effect twice", _APPLY, "resolve", applied_again),
    Mutation("a stream appends a part twice", StreamParts, "take", appended_again),
    Mutation("a part of a stream is seen early", StreamParts, "take", appended_at_once),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.long
@pytest.mark.pure
def test_bugs_are_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(mutation.target, dict):
        monkeypatch.setitem(mutation.target, mutation.attribute, mutation.mutant)
    else:
        monkeypatch.setattr(mutation.target, mutation.attribute, mutation.mutant)
    for seed in range(mutation.first, mutation.first + MUTATION_SEEDS):
        try:
            transactions.run(seed)
        except (Exception, Violation):  # noqa: BLE001
            return
    raise AssertionError(f"{mutation.name}: nothing is amiss in {MUTATION_SEEDS} seeds")
