"""Bugs that would lose, duplicate or strand messages, planted one at a time: for each the simulation must
fail.

A simulation that finds no failures proves something only if it finds these bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from amqp_server.cluster.groups import Groups
from quorum_queue.batch_order import BatchOrder
from quorum_queue.clock import KNOWN, Clock, QueueTime, TimeNote
from quorum_queue.cluster import frames, read_index
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.handover import HandOver
from quorum_queue.cluster.queues import dead_letters
from quorum_queue.cluster.queues.deferred_host import DeferredHost
from quorum_queue.cluster.queues.guests import Guest
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.cluster.snapshots import transfer
from quorum_queue.cluster.snapshots.lost_entries import LostEntries
from quorum_queue.cluster.snapshots.transfer import Receiving
from quorum_queue.cluster.unopened_groups import UnopenedGroups
from quorum_queue.machine import machine
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.order.message_groups import GroupedReady
from quorum_queue.machine.record.record import MessageRecord
from quorum_queue.machine.record.states import ACKNOWLEDGED
from quorum_queue.machine.replicated import Applied, QueueReplica
from quorum_queue.machine.run import Run
from quorum_queue.machine.snapshots import records, snapshot
from quorum_queue.message_status import answers
from quorum_queue.raft.core import Raft
from quorum_queue.raft.leading import Leadership
from tests.clocks import ManualClock
from tests.quorum_queue import test_clock, test_message_groups, test_picks
from tests.quorum_queue.cluster import (
    simulation,
    test_cold_bodies,
    test_confirm_levels,
    test_dead_letters,
    test_dead_links,
    test_disks,
    test_groups,
    test_guests,
    test_holes,
    test_read_index,
    test_snapshots,
    test_time,
)
from tests.turns import Violation

pytestmark = pytest.mark.usefixtures("quiet")

#: Seeds within which a bug must be found.
SEEDS = 60


class Mutation(NamedTuple):
    name: str
    target: object
    attribute: str
    mutant: Any
    #: The test that fails with the bug; if there is none, the simulation fails.
    test: Callable[[], None] | None = None


def applies_out_of_turn(self: BatchOrder, node: str, incarnation: int, number: int) -> int:
    self.last[node] = incarnation, number
    return number - 1


def confirms_at_once() -> Callable[..., None]:
    send = GroupHost._send_pending

    def mutant(self: GroupHost) -> None:
        send(self)
        for token, publish in list(self._publishes.items()):
            self._confirmed(token, publish.first, publish.last)

    return mutant


def forgets_rows() -> Callable[..., Any]:
    view = MessageRecord.view

    def mutant(self: MessageRecord) -> Any:
        made = view(self)
        made._blocks = []
        return made

    return mutant


def puts_back_in_order_of_arrival(machine: Machine, run: Run) -> None:
    """Each message of a snapshot has the rank of a message without a priority."""
    run.attributes, run.kinds, run.table = run.attributes._replace(priority=0), None, None
    machine.ready.push(run)


def holds_no_groups() -> Callable[..., None]:
    hold = snapshot._hold

    def mutant(machine: Machine, consumer: Consumer, first: int, run: Run) -> None:
        grouped, machine.grouped = machine.grouped, None
        hold(machine, consumer, first, run)
        machine.grouped = grouped

    return mutant


def forgets_pauses() -> Callable[..., Any]:
    made = records.Head

    def mutant(*fields: Any) -> Any:
        return made(*fields[:-1])

    return mutant


def seed(number: int) -> None:
    """Run a story that is known to find it."""
    simulation.run(number)


def forgets_waits() -> Callable[..., Any]:
    restored = snapshot._run

    def mutant(stored: Any) -> Any:
        run = restored(stored)
        run.waits_until = 0
        return run

    return mutant


def puts_back_at_once() -> Callable[..., Any]:
    put_back = Machine._put_picked

    def mutant(self: Machine, meta: Meta, runs: list[Run], effects: Effects) -> None:
        for run in runs:
            run.waits_until = 0
        put_back(self, meta, runs, effects)

    return mutant


def answers_from_the_copy(self: GroupHost, message_id: bytes, done: Any) -> None:
    clock = self.services.clock
    now_ms = clock.monotonic_ms() + self._time_ahead_ms
    done(answers.answer(self.replica.machine, message_id, now_ms, clock.wall_ms()))


def records_no_acks() -> Callable[..., None]:
    changed = MessageRecord.changed

    def mutant(self: MessageRecord, seqs: range, state: int, reason: int = 0, key: Any = None) -> None:
        if state != ACKNOWLEDGED:
            changed(self, seqs, state, reason, key)

    return mutant


def takes_writes_for_done(self: Replicas) -> None:
    written, self._written = self._written, []
    for each in written:
        group = each.group
        if each.hard is not None:
            group.core.hard_written(each.hard)
        if each.index:
            group.core.written(each.index, each.term)
        self._post(group.id, each.messages)
        self.touch(group)
    self.commits.request()


def forgets_numbers() -> Callable[..., QueueReplica]:
    restore = QueueReplica.restore.__func__  # type: ignore[attr-defined]

    def mutant(cls: type[QueueReplica], data: bytes) -> QueueReplica:
        replica: QueueReplica = restore(cls, data)
        replica.order = BatchOrder()
        return replica

    return classmethod(mutant)  # type: ignore[return-value]


def asks_for_no_bodies(group: Group, receiving: Receiving) -> None:
    receiving.wanted.clear()
    receiving.asked = {}
    transfer._store(group, receiving)


def answers_across_sessions(self: Guest, *event: Any) -> None:
    self._guests.events_for(self.peer, self.queue_id).add(*event)


def says_that_it_has_nothing(self: LostEntries, group: Group, question: Any) -> tuple[int, None]:
    return frames.NOT_HERE, None


def forgets_no_turn(self: QueueReplica, index: int) -> None:
    self.applied = index


def refuses_nothing(self: GroupHost) -> bool:
    return False


def answers_nobody(self: DeferredHost, why: object) -> None: ...


def nothing(self: object, *arguments: Any) -> None: ...


def sends_as_leader() -> Callable[..., None]:
    send = dead_letters.send_applied

    def mutant(host: GroupHost, applied: Applied) -> None:
        if host.group.is_leader:
            send(host, applied)

    return mutant


def at_once(self: Reach) -> list[str]:
    return [*self._apart_since, *filter(self._flaps, self._links.connected())]


def by_the_wall_clock(self: QueueTime) -> int:
    return self._clock.wall_ms() - self._clock.monotonic_ms()


def by_wall_time(self: ManualClock) -> int:
    return self.wall_ms()


def by_its_own_time(self: GroupHost) -> int:
    return self.services.queue_time.ahead_ms


def takes_it_over(self: QueueTime, trust: int, queue_ms: int) -> int:
    self.ahead_ms = queue_ms - self._clock.monotonic_ms()
    return 1


def later_counts(self: QueueTime, clock: Clock, note: TimeNote | None = None) -> None:
    self._clock, self._slewed_ms = clock, clock.monotonic_ms()
    self.ahead_ms = clock.wall_ms() - clock.monotonic_ms()
    self.trust = KNOWN


def what_is_committed(self: Leadership) -> int:
    return self.raft.commit


def what_this_disk_has(self: Leadership) -> None:
    """An entry on the leader's disk counts as committed, and so is delivered."""
    index = self.own_match()
    if index > self.raft.commit and self.raft.log.term_at(index) == self.raft.term:
        self.raft.commit_to(index)


def says_so_at_once() -> Callable[..., None]:
    take = Group.take

    def mutant(self: Group, payload: bytes, early: str = "", ticket: int = 0) -> None:
        take(self, payload, early, ticket)
        if early == self.replicas.node:
            self.synced(ticket)
        elif early:
            self.replicas.send(early, frames.synced(self.id, self.core.term, ticket))

    return mutant


def decides_here(self: GroupHost, condition: int, done: Callable[..., None]) -> None:
    self.seal_here(condition, done)


MUTATIONS = [
    Mutation("all have what a majority has", Leadership, "reached", what_is_committed),
    Mutation("what only the leader has is delivered", Leadership, "advance_commit", what_this_disk_has),
    Mutation("a leader confirms before its disk has it", Group, "take", says_so_at_once()),
    Mutation("a batch is applied whenever it comes", BatchOrder, "take", applies_out_of_turn),
    Mutation("a publish is confirmed before it is committed", GroupHost, "_send_pending", confirms_at_once()),
    Mutation("writes count before the disk has them", Replicas, "write", takes_writes_for_done),
    Mutation("batches are not sent again to a new leader", Group, "resend", nothing),
    Mutation("entries are deleted while their messages are wanted", GroupHost, "kept", lambda self: []),
    Mutation("a snapshot forgets the numbers of batches", QueueReplica, "restore", forgets_numbers()),
    Mutation("a follower counts before it has the bodies", transfer, "_ask", asks_for_no_bodies),
    Mutation("consumers get nothing of what a snapshot gave them", GroupHost, "_catch_up_consumers", nothing,
             test_snapshots.test_a_consumer_gets_what_a_snapshot_says_that_it_holds),
    Mutation("what a snapshot stood in for was always taken", GroupHost, "_may_refuse", property(refuses_nothing),
             lambda: seed(75)),
    Mutation("a snapshot forgets that the queue was paused", snapshot, "Head", forgets_pauses(),
             test_snapshots.test_a_publisher_is_not_told_that_a_paused_queue_took_it),
    Mutation("a paused queue refuses what its leader has confirmed", machine, "_may_be_refused", lambda run, origin: True,
             test_confirm_levels.test_a_paused_queue_takes_what_its_leader_has_confirmed),
    Mutation("consumers of nodes that are down stay", GroupHost, "gone_members", nothing),
    Mutation("a node that comes again numbers its batches as before", Replicas, "own_in", lambda self, group: self.own,
             test_groups.test_batches_of_a_node_that_comes_again_are_taken),
    Mutation("answers reach a later session", Guest, "tell", answers_across_sessions,
             test_guests.test_answers_of_an_earlier_session_are_no_answers),
    Mutation("what the disk has lost is asked for once", LostEntries, "ask_again", nothing,
             test_disks.test_what_no_peer_has_answered_is_asked_for_again),
    Mutation("a member with a hole in its log stands for election", Raft, "has_holes", property(lambda self: False),
             test_holes.test_a_hole_outlasts_restarts_and_heals_when_the_entry_is_reached),
    Mutation("entries are lost though a member has them", LostEntries, "_look_for", says_that_it_has_nothing,
             test_holes.test_two_members_heal_each_other_while_the_third_is_away),
    Mutation("batches behind an entry that was passed over are out of turn", QueueReplica, "passed_over", forgets_no_turn,
             lambda: test_holes.test_a_passed_over_entry_takes_no_other_with_it()),
    Mutation("a log with a hole that nobody can fill is kept", LostEntries, "_forget", nothing,
             test_disks.test_a_follower_that_cannot_apply_what_all_others_have_cut_off_is_filled_again),
    Mutation("dead letters are not sent on by the next leader", GroupHost, "leader_changed", nothing,
             test_cold_bodies.test_a_new_leader_sends_held_dead_letters_that_the_last_one_waited_with),
    Mutation("any leader sends the dead letters of what it applies", Group, "proposed", lambda self, index: self.is_leader,
             test_dead_letters.test_a_new_leader_does_not_send_what_the_one_before_has_sent),
    Mutation("a leader that steps down sends no dead letters", dead_letters, "send_applied", sends_as_leader(),
             test_dead_letters.test_a_leader_that_steps_down_sends_what_it_proposed),
    Mutation("consumers stay behind when their queue moves", DeferredHost, "hand_over", lambda self, to, failed=False: self.close(),
             test_groups.test_a_queue_moves_from_node_to_node_with_its_clients),
    Mutation("the group of a deleted queue goes on", Replicas, "close", nothing,
             test_groups.test_a_queue_moves_from_node_to_node_with_its_clients),
    Mutation("who waits for a deleted queue is not answered", DeferredHost, "_end", answers_nobody,
             test_groups.test_a_queue_that_is_declared_anew_has_nothing_of_the_one_before),
    Mutation("first words for a group that is not open yet are forgotten", UnopenedGroups, "keep_message", nothing,
             test_groups.test_words_for_a_group_that_is_not_open_yet_are_kept),
    Mutation("groups of queues that were deleted meanwhile stay", Groups, "drop_unclaimed", nothing,
             test_groups.test_a_node_that_was_away_drops_the_queue_that_was_deleted_meanwhile),
    Mutation("a leader that does not reach a member keeps its group", HandOver, "hand_over", lambda self: iter(()),
             lambda: test_dead_links.test_clients_at_both_ends_go_on(test_dead_links.WAYS[0])),
    Mutation("a group is handed over without a look at what the receiver reaches", Reach, "gain",
             lambda self, peer, members: len(self.lacking()),
             test_dead_links.test_where_nobody_reaches_everybody_the_leader_stays),
    Mutation("the preferred node leads again whatever it reaches", Reach, "may_return", lambda self, peer, members: True,
             lambda: test_dead_links.test_clients_at_both_ends_go_on(test_dead_links.WAYS[0])),
    Mutation("a link that breaks again and again counts each time it stands", Reach, "_flaps", lambda self, node: False,
             test_dead_links.test_a_link_that_never_stands_for_long_moves_the_leader_though_it_is_soon_back),
    Mutation("leaders move before all nodes know which node is dead", Reach, "lacking", at_once,
             test_dead_links.test_a_node_that_is_dead_moves_no_leader),
    Mutation("a node that does not take over is asked again at once", HandOver, "_pause", nothing,
             test_dead_links.test_a_receiver_that_does_not_take_over_is_not_asked_all_the_time),
    Mutation("messages expire by the wall clock", QueueTime, "ahead_ms", property(by_the_wall_clock, nothing)),
    Mutation("intervals go by the wall clock", ManualClock, "monotonic_ms", by_wall_time),
    Mutation("a leader does not go on from where the last one was", GroupHost, "_time_ahead_ms", property(by_its_own_time),
             test_time.test_time_goes_on_from_a_leader_of_the_version_before_that_is_ahead),
    Mutation("a queue's time stands still while its leader changes all the time", GroupHost, "_keep_time", nothing,
             test_time.test_time_goes_on_from_a_leader_of_the_version_before_that_is_ahead),
    Mutation("a node believes any time that it is told", QueueTime, "heard", takes_it_over,
             test_clock.test_a_node_that_serves_catches_up_slowly_and_never_goes_back),
    Mutation("a node that starts believes its wall clock", QueueTime, "__init__", later_counts,
             lambda: test_time.test_a_node_starts_with_another_clock_and_leads(test_time.HOUR_MS)),
    Mutation("a queue is deleted if it is empty by what the asked node knows", GroupHost, "seal", decides_here,
             lambda: test_read_index.test_a_delete_if_empty_is_decided_by_the_log("c")),
    Mutation("counts are those of the asked node", Group, "catch_up", lambda self, done: done(True)),
    Mutation("a snapshot forgets which messages wait for their first delivery", snapshot, "_run", forgets_waits()),
    Mutation("what was picked while it waited comes at once when it comes back", Machine, "_put_picked", puts_back_at_once(),
             lambda: test_picks.test_what_was_picked_while_it_waited_goes_on_waiting("node_down", strict=True)),
    Mutation("messages of one run all have the rank of the first one", Run, "by_level", lambda self, level_of: [self]),
    Mutation("a snapshot forgets priorities", snapshot, "_put_ready", puts_back_in_order_of_arrival),
    Mutation("a snapshot forgets who has a message group", snapshot, "_hold", holds_no_groups(),
             lambda: seed(144)),
    Mutation("a message group goes on while one of its messages waits", GroupedReady, "block", nothing,
             test_message_groups.test_a_retry_holds_its_group_and_no_other),
    Mutation("a snapshot forgets what became of messages", MessageRecord, "view", forgets_rows()),
    Mutation("what became of a message is answered without a look at the leader", GroupHost, "message_status",
             answers_from_the_copy, test_read_index.test_what_became_of_a_message_is_told_with_all_that_was_confirmed),
    Mutation("acks are not recorded", MessageRecord, "changed", records_no_acks()),
    Mutation("a leader that was replaced still says how far the log is committed", read_index, "_is_supported",
             lambda current, voters: True,
             test_read_index.test_a_leader_that_was_replaced_does_not_answer),
    Mutation("who finds a sealed queue leaves it", GroupHost, "_delete_sealed", nothing,
             test_read_index.test_a_new_leader_finds_the_seal_and_deletes_the_queue),
    Mutation("leftovers of a snapshot are not swept at a start", Groups, "_sweep", nothing),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
@pytest.mark.long
def test_a_planted_bug_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation.target, mutation.attribute, mutation.mutant)
    for seed in range(SEEDS):
        try:
            simulation.run(seed) if mutation.test is None else mutation.test()
        except (Exception, Violation):  # noqa: BLE001 - whatever it is, it was found
            return
    pytest.fail(f"nothing finds that {mutation.name}")
