"""Transactions over several queues, from the view of one node: it has those of its clients decided, and sees
to it that the parts in the queues that it leads come to an end.

The coordinator is group 0: a decision is an entry of its log, which all nodes read (see
amqp_server.cluster.coordinator.decisions). The node that commits tells the queues what was decided. If it
cannot, their leaders do: they look once a second for parts that are decided, and have the others aborted
after a time, at once if the node that commits is down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from amqp_server.broker.transactions import Producer
from amqp_server.cluster.coordinator.decisions import COMMITTER, Decision, Decisions
from amqp_server.cluster.topology_group import Answers, Decide, Proposal, RaiseEpoch
from amqp_server.errors import PreconditionFailed
from quorum_queue.clock import Clock
from quorum_queue.machine import versions
from quorum_queue.machine.parts import TransactionId
from quorum_queue.ports import KeptPart, KeptParts, Refused

logger = logging.getLogger("mqd.cluster")

#: Parts and decisions are looked at when they are this old, ms: usually the committing node has told all
#: queues by then.
LOOK_MS: Final = 1_000
#: What a queue has done is remembered for this long before the decision is known here, ms.
EARLY_MS: Final = 5_000
#: Answers in one entry.
ANSWERS_MAX: Final = 2_000

#: Answer to a client that commits: see docs/transactions.md.
IN_DOUBT = Refused(
    "the cluster's nodes did not take the decision in time: the transaction may still be committed, as a whole"
)

#: Is told a decision: committed or aborted; None if it may have come unseen.
Watcher = Callable[[bool | None], None]


class Hosts(Protocol):
    """The queues of this node; see amqp_server.cluster.hosts."""

    def leads(self, queue_id: int) -> Any | None:
        """Return the host of a queue if this node decides for it: it leads its group, or is its home."""

    def exists(self, queue_id: int) -> bool:
        """Return whether a queue with this id is declared."""


class Log(Protocol):
    """Group 0; see amqp_server.cluster.replication."""

    @property
    def version(self) -> int: ...

    @property
    def leads(self) -> bool:
        """True if this node leads group 0."""

    def submit(self, proposal: Proposal) -> int:
        """Return the number of the batch, 0 if it has none yet."""


class Turn(Protocol):
    def schedule(self, host: Any) -> None: ...


class Nodes(Protocol):
    """See amqp_server.cluster.membership.roster."""

    nodes: dict[str, str]

    def incarnation_of(self, node: str) -> int: ...


class Transactions:
    """See quorum_queue.ports.Undecided and amqp_server.broker.transactions."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        *,
        decisions: Decisions,
        log: Log,
        hosts: Hosts,
        nodes: Nodes,
        is_up: Callable[[str], bool],
        turn: Turn,
        clock: Clock,
        timeout_ms: int,
        decision_ms: int,
        producers_max: int,
    ) -> None:
        """`timeout_ms`: how long a client waits for a decision. `decision_ms`: age at which a part that
        nobody has decided about is aborted while its node is up; time without progress after which one is
        that is not complete.
        """
        self._own = node, incarnation
        self._decisions = decisions
        self._log = log
        self._hosts = hosts
        self._nodes = nodes
        self._is_up = is_up
        self._turn = turn
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._decision_ms = decision_ms
        self._producers_max = producers_max
        self._last_number = 0
        #: Commits that have begun here, and that nothing was decided about: only these may be proposed. One
        #: that others had aborted would find its decision forgotten, and be committed without its parts.
        self._begun: dict[TransactionId, None] = {}
        #: Clients that wait for a decision, with the time when they stop waiting.
        self._waiting: dict[TransactionId, tuple[int, Callable[[bool | Refused], None]]] = {}
        #: Commits that this node has proposed, and that its log may still bring, with the numbers of their
        #: batches: 0 before they are sent.
        self._proposed: dict[TransactionId, int] = {}
        self._to_decide: list[Decision] = []
        self._to_answer: dict[tuple[TransactionId, int], None] = {}
        #: Answers to decisions that this node has not read yet, with their times, ms.
        self._early: dict[tuple[TransactionId, int], int] = {}
        #: Queues on this node that have parts, and when this node first saw a part or a decision, ms.
        self._with_parts: dict[Any, None] = {}
        self._seen: dict[tuple[int, TransactionId], int] = {}
        #: Of parts that are not complete: how much had come at the last look, and since when, ms.
        self._came: dict[tuple[int, TransactionId], tuple[int, int]] = {}
        self._looked_ms = 0
        #: Operators that wait for a decision.
        self._watching: dict[TransactionId, list[Watcher]] = {}

    def recover(self) -> None:
        """Does nothing: the log has everything."""

    # -- committing ------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        return self._log.version >= versions.TRANSACTIONS

    def begin(self) -> TransactionId:
        self._last_number += 1
        transaction = (*self._own, self._last_number)
        self._begun[transaction] = None
        return transaction

    def end(self, transaction: TransactionId) -> None:
        self._begun.pop(transaction, None)

    def shut_out(self, producer: Producer) -> None:
        if not self.available:
            # Nodes of earlier versions can't read epochs in the log, and would commit whatever they say.
            raise PreconditionFailed(
                "not all nodes of the cluster run a version of mqd that knows x-producer-epoch: upgrade them, or "
                "publish without it"
            )
        if producer.epoch > self.epoch_of(producer.key):
            # It comes before all decisions about the producer's transactions.
            self._log.submit(RaiseEpoch(producer.key, producer.epoch, self._producers_max))

    def epoch_of(self, key: str) -> int:
        return self._decisions.epochs.get(key, -1)

    def decide(
        self,
        transaction: TransactionId,
        queues: list[int],
        producer: Producer | None,
        done: Callable[[bool | Refused], None],
    ) -> None:
        if transaction not in self._begun:
            done(False)
            return
        del self._begun[transaction]
        self._waiting[transaction] = self._clock.monotonic_ms() + self._timeout_ms, done
        self._proposed[transaction] = 0
        key, epoch = ("", 0) if producer is None else producer
        self._propose(Decision(transaction, True, tuple(queues), key, epoch))

    def _propose(self, decision: Decision) -> None:
        self._to_decide.append(decision)
        self._turn.schedule(self)

    def apply_pending(self) -> None:
        """Propose the decisions of this turn. Only the turn calls this."""
        decisions, self._to_decide = self._to_decide, []
        if decisions:
            number = self._log.submit(Decide(tuple(decisions)))
            for decision in decisions:
                if decision.committed:
                    self._proposed[decision.transaction] = number

    def failed(self, error: Exception) -> None:
        raise error

    def decided(self, decisions: Iterable[Decision], *, own: bool) -> None:
        """These proposals were applied, this node's if `own`: what stands is in the decisions now."""
        for decision in decisions:
            transaction = decision.transaction
            self._begun.pop(transaction, None)
            if own and decision.committed:
                self._proposed.pop(transaction, None)
            waiting = self._waiting.pop(transaction, None)
            if waiting is not None:
                waiting[1](self._decisions.by_id[transaction].committed)
            if self._watching:
                self._tell(transaction, committed=self._decisions.by_id[transaction].committed)
            if not decision.committed or not self._is_up(transaction[0]):
                # The committing node does not tell the queues.
                self._resolve_here(transaction, decision.queues)
            if self._early:
                for queue_id in decision.queues:
                    if self._early.pop((transaction, queue_id), None) is not None:
                        self._to_answer[transaction, queue_id] = None

    def _resolve_here(self, transaction: TransactionId, queues: Iterable[int]) -> None:
        """Have the queues that this node leads do what was decided."""
        committed = self._decisions.by_id[transaction].committed
        for queue_id in queues:
            host = self._hosts.leads(queue_id)
            if host is not None:
                host.submit(("resolve", transaction, committed))

    def came_by_snapshot(self, last_own: int) -> None:
        """The decisions came with a snapshot, which has what this node had proposed until that batch."""
        for transaction, number in list(self._proposed.items()):
            if 0 < number <= last_own:
                del self._proposed[transaction]
        for transaction in list(self._begun):
            if transaction in self._decisions.by_id:
                del self._begun[transaction]
        for transaction in list(self._watching):
            known = self._decisions.by_id.get(transaction)
            # The decision may have come and gone.
            self._tell(transaction, committed=None if known is None else known.committed)
        for transaction in list(self._waiting):
            decided = self._decisions.by_id.get(transaction)
            if decided is not None:
                self._waiting.pop(transaction)[1](decided.committed)

    # -- for operators ---------------------------------------------------------------------------------------

    def parts_here(self) -> Iterator[tuple[Any, Any, int]]:
        """Yield the parts of which this node leads the queue: the queue's host, the part, and for how long
        this node has seen it, ms.
        """
        now_ms = self._clock.monotonic_ms()
        for holder in list(self._with_parts):
            parts: KeptParts | None = holder.parts
            leading = self._hosts.leads(holder.queue_id)
            if holder.ended or parts is None or leading is None or leading is not holder:
                continue
            for part in list(parts.all()):
                since_ms = self._seen.get((leading.queue_id, part.transaction), now_ms)
                yield leading, part, now_ms - since_ms

    def decisions(self) -> Iterator[tuple[TransactionId, bool, list[int], int]]:
        """Yield the decisions that still wait for answers: committed or not; the queues, and 0 if it waits
        for the node that committed; and the age as this node has seen it, ms.
        """
        now_ms, seen = self._clock.monotonic_ms(), self._seen
        for key, decided in list(self._decisions.by_id.items()):
            since_ms = min([seen.get((queue_id, key), now_ms) for queue_id in decided.left], default=now_ms)
            yield key, decided.committed, list(decided.left), now_ms - since_ms

    def decision_of(self, transaction: TransactionId) -> bool | None:
        """Return whether a transaction was committed, as far as that is remembered; else None."""
        decided = self._decisions.by_id.get(transaction)
        return None if decided is None else decided.committed

    def watch(self, transaction: TransactionId, told: Watcher) -> None:
        """Call `told` with the next decision about a transaction, or with None if that came unseen."""
        self._watching.setdefault(transaction, []).append(told)

    def unwatch(self, transaction: TransactionId, told: Watcher) -> None:
        watchers = self._watching.get(transaction)
        if watchers is not None and told in watchers:
            watchers.remove(told)
            if not watchers:
                del self._watching[transaction]

    def _tell(self, transaction: TransactionId, *, committed: bool | None) -> None:
        for told in self._watching.pop(transaction, ()):
            told(committed)

    def abort(self, transaction: TransactionId, queues: list[int]) -> None:
        """Propose to abort a transaction over these queues, at least one of which keeps its part. The first
        decision stands: see `watch`.
        """
        self._propose(Decision(transaction, False, tuple(queues)))

    # -- quorum_queue.ports.Undecided ------------------------------------------------------------------------

    def has_parts(self, host: Any) -> None:
        self._with_parts[host] = None

    def resolved(self, queue_id: int, transactions: list[TransactionId]) -> None:
        for transaction in transactions:
            decided = self._decisions.by_id.get(transaction)
            if decided is None:
                self._early[transaction, queue_id] = self._clock.monotonic_ms()
            elif queue_id in decided.left:
                self._to_answer[transaction, queue_id] = None
            self._seen.pop((queue_id, transaction), None)

    # -- looking ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Send answers; end what waits too long; look from time to time at what nobody has ended."""
        if self._to_answer:
            answers = list(self._to_answer)[:ANSWERS_MAX]
            for answer in answers:
                del self._to_answer[answer]
            self._log.submit(Answers(tuple(answers)))
        for transaction, (deadline_ms, done) in list(self._waiting.items()):
            if deadline_ms > now_ms:
                break
            del self._waiting[transaction]
            done(IN_DOUBT)
        while self._early:
            oldest, at_ms = next(iter(self._early.items()))
            if at_ms + EARLY_MS > now_ms:
                break
            del self._early[oldest]
        if now_ms - self._looked_ms >= LOOK_MS and (self._with_parts or self._decisions.by_id):
            self._looked_ms = now_ms
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        seen, self._seen = self._seen, {}
        came, self._came = self._came, {}
        for holder in list(self._with_parts):
            parts: KeptParts | None = holder.parts
            if holder.ended or parts is None or not len(parts):
                del self._with_parts[holder]
                continue
            leading = self._hosts.leads(holder.queue_id)
            if leading is not None and leading is holder:
                for part in list(parts.all()):
                    key = leading.queue_id, part.transaction
                    since_ms = self._seen[key] = seen.get(key, now_ms)
                    if not part.prepared:
                        before, since_ms = came.get(key, (part.came, since_ms))
                        if part.came != before:
                            since_ms = now_ms
                        self._came[key] = part.came, since_ms
                    self._look_at_part(leading, part, now_ms - since_ms)
        for transaction, decided in list(self._decisions.by_id.items()):
            for queue_id in list(decided.left):
                key = queue_id, transaction
                since_ms = self._seen[key] = seen.get(key, self._seen.get(key, now_ms))
                if now_ms - since_ms >= LOOK_MS:
                    self._look_at_decision(transaction, decided.committed, queue_id)

    def _look_at_part(self, host: Any, part: KeptPart, age_ms: int) -> None:
        """End a part without a decision. One that is decided is seen with the decisions."""
        if part.transaction in self._decisions.by_id:
            return
        node, incarnation, _ = part.transaction
        is_gone = not self._is_up(node) or self._nodes.incarnation_of(node) > incarnation
        if age_ms < (LOOK_MS if is_gone else self._decision_ms):
            return
        if part.prepared:
            self._propose(Decision(part.transaction, False, tuple(part.participants)))
        else:
            # Nobody can have decided to commit it.
            host.submit(("resolve", part.transaction, False))

    def _look_at_decision(self, transaction: TransactionId, committed: bool, queue_id: int) -> None:
        """Have a queue do what was decided, or answer for who is not there any more."""
        node, incarnation, _ = transaction
        if queue_id == COMMITTER:
            if (node, incarnation) == self._own:
                answers = transaction not in self._proposed
            else:
                # No batch of an earlier start is applied any more.
                begun_again = self._nodes.incarnation_of(node) > incarnation or node not in self._nodes.nodes
                answers = self._log.leads and begun_again
            if answers:
                self._to_answer[transaction, queue_id] = None
            return
        if not self._hosts.exists(queue_id):
            if self._log.leads:
                self._to_answer[transaction, queue_id] = None
            return
        host = self._hosts.leads(queue_id)
        if host is not None:
            host.submit(("resolve", transaction, committed))


__all__ = ["Transactions"]
