"""Bugs that would lose, duplicate, bring back or strand what was declared, planted one at a time: for each
the simulation of whole nodes must fail, or the named scene.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.records import BindingRecord, key
from amqp_server.broker.hosts import LocalHosts
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.topology import Topology
from amqp_server.broker.topology.vhost import VHost
from amqp_server.channel import publish
from amqp_server.cluster.administration import Administration
from amqp_server.cluster.groups import Groups
from amqp_server.cluster.maintenance import Maintenance
from amqp_server.cluster.membership.membership import Directory
from amqp_server.cluster.membership.roster import Roster
from amqp_server.cluster.node import ClusterNode
from amqp_server.cluster.topology_group import Catalog, RaiseVersion
from amqp_server.cluster.topology_progress import TopologyProgress
from persistence.journal import Journal
from quorum_queue.boundary import Fatal
from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.dispatch import Dispatch
from quorum_queue.cluster.handover import HandOver
from quorum_queue.cluster.queues.deferred_host import DeferredHost
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.host import NOBODY
from quorum_queue.machine import versions
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Refused
from tests.amqp_server.cluster import test_clocks as clocks
from tests.amqp_server.cluster import test_data_directories
from tests.amqp_server.cluster import test_dead_links as dead_links
from tests.amqp_server.cluster import test_moving_queues as moving
from tests.amqp_server.cluster import test_simulation_scenes as scenes
from tests.amqp_server.cluster.simulation import simulation
from tests.amqp_server.cluster.simulation.cluster import by_hand
from tests.clocks import ManualClock
from tests.turns import Violation

#: Seeds within which a bug must be found.
SEEDS = 60


class Mutation(NamedTuple):
    name: str
    target: object
    attribute: str
    mutant: Any
    #: The scene that fails with the bug; if there is none, the simulation fails.
    test: Callable[[], None] | None = None


def in_its_order(self: BindingRecord) -> str:
    return key(self.vhost, self.source, self.destination, self.kind, self.routing_key, self.arguments.hex())


def anyone_lets_go(self: Dispatch, peer: str, group_id: int) -> None:
    group = self._replicas.groups.get(group_id)
    if group is not None and peer not in group.core.members.everyone():
        self._links.send(peer, frames.left(group_id))


def those_it_knows(self: ClusterNode, name: str) -> bool:
    return name in self.roster.nodes


def never(self: object, *arguments: Any) -> bool:
    return False


def as_it_came(self: Catalog, operation: Any) -> Any:
    return operation


def nothing(self: object, *arguments: Any) -> None: ...


def whoever_owns_it(self: Broker, queue: Any) -> None:
    session = self.sessions.get(queue.record.owner)
    if session is not None and queue.record.node == self.replication.node:
        session.exclusive_queues[queue] = None


def of_any_start() -> Callable[..., None]:
    node_down = VHost.node_down

    def mutant(self: VHost, node: str, incarnation: int) -> None:
        node_down(self, node, incarnation + 1_000_000_000)

    return mutant


def once_more(self: Catalog, index: int, encoded: bytes, user: str | None) -> Any:
    self._topology.applied = min(self._topology.applied, index - 1)
    return change(self, index, encoded, user)


change = Catalog._change


def looks_once() -> Callable[..., Any]:
    check = Administration._check_only_on
    looked: list[str] = []

    def mutant(self: Administration, name: str, *, own: bool) -> Any:
        if looked:
            return []
        looked.append(name)
        return check(self, name, own=own)

    return mutant


def to_everybody() -> Callable[..., None]:
    link_up = Reach.link_up

    def mutant(self: Reach, peer: str, features: Any) -> None:
        link_up(self, peer, (frames.REACH_FEATURE,))

    return mutant


def as_it_is(self: Directory, incarnation: int) -> None: ...


def by_wall_time(self: ManualClock) -> int:
    return self.wall_ms()


def by_the_clock(self: Directory, now_ms: int, salt: int) -> int:
    self._metadata.put("cluster", "incarnation", b"%d" % now_ms)
    return now_ms


def whatever_the_others_know(self: Maintenance, nodes: Any) -> None:
    if nodes and self._roster.version < versions.NEWEST:
        self._replication.submit(RaiseVersion(versions.NEWEST))


def with_the_newest_version() -> Callable[..., None]:
    begin = QueueReplica.__init__

    def mutant(self: QueueReplica, settings: Settings) -> None:
        begin(self, settings)
        self.machine.version = versions.NEWEST

    return mutant


def never_noted(self: Directory) -> None: ...


def looks_at_no_start(self: ClusterNode) -> None:
    self.replicas.unopened.topology_index = self._broker.topology.applied
    self._turn.gather(self)


def confirms_what_is_on_its_way(self: DeferredHost) -> None:
    publishes, self._publishes = self._publishes, {}
    for each in publishes.values():
        each.origin.confirmed(each.first, each.last)


def ends_as_if_deleted() -> Callable[..., None]:
    end = DeferredHost._end

    def mutant(self: DeferredHost, why: Refused) -> None:
        if self.ended == "moved":
            self.ended = "deleted"
            asking, self.asking = self.asking, NOBODY
            for _, passed in asking.barriers:
                passed()
        end(self, why)

    return mutant


class HostOfThen:
    """A target with the host that its queue had when a message was routed to it."""

    deleted = False

    def __init__(self, queue: Queue) -> None:
        self.name, self.host = queue.name, queue.host


def to_the_host_of_then() -> Callable[..., Any]:
    make_route = publish.make_route

    def mutant(*arguments: Any) -> Any:
        route: Any = make_route(*arguments)
        route.targets = tuple(map(HostOfThen, route.targets))
        return route

    return mutant


def only_those_heard_of_lately(self: Replicas) -> Iterator[None]:
    links: Any = self.links
    silent = links._simulated.silent
    connected = [peer for peer in links.connected() if silent.get(peer, 0) < 2]
    for group in list(self.active):
        self.contain(group, self._tick, group, connected)
        yield


def handed_over(how: str, move: str, *, during: bool = False) -> Callable[[], None]:
    test = (
        moving.test_handed_over_during_the_move
        if during
        else moving.test_handed_over_before_or_after_the_move
    )
    return lambda: test(how, move)


MUTATIONS = [
    Mutation("a binding is stored by its arguments as they came", BindingRecord, "key", property(in_its_order)),
    Mutation("a node that starts again while it leaves drops its queue", Groups, "is_kept", never,
             scenes.test_a_member_that_starts_again_while_it_leaves_is_still_one),
    Mutation("whoever is asked lets a member go", Dispatch, "_peer_leaves", anyone_lets_go,
             scenes.test_a_member_is_let_go_only_by_the_leader),
    Mutation("records that a snapshot leads to are not made up for", Topology, "is_behind", never,
             scenes.test_records_come_with_the_snapshot_that_was_on_disk_before_them),
    Mutation("queues are put on nodes that leave", Catalog, "_admissible", as_it_came),
    Mutation("a lost disk lets in nobody that has joined later", ClusterNode, "admits", those_it_knows,
             scenes.test_a_lost_disk_is_filled_by_a_leader_that_has_joined_later),
    Mutation("a new queue counts as forgotten", ClusterNode, "began", nothing,
             scenes.test_a_queue_that_is_declared_after_a_disk_was_lost_is_not_among_what_it_has_forgotten),
    Mutation("queues are put on nodes that were never there", Roster, "is_known", never,
             scenes.test_a_queue_is_put_on_nodes_that_have_been_there),
    Mutation("what only a node has that leaves is looked at once", Administration, "_check_only_on", looks_once(),
             scenes.test_a_node_does_not_leave_with_what_it_alone_has_come_to_have),
    Mutation("messages of deleted queues stay on the disk", Journal, "drop", nothing),
    Mutation("a deleted queue's group goes on", Replicas, "close", nothing),
    Mutation("marks of deleted queues stay", LocalHosts, "gone", nothing),
    Mutation("an exclusive queue that came too late stays", Broker, "exclusive_declared", whoever_owns_it,
             scenes.test_an_exclusive_queue_goes_though_it_comes_after_its_client_has_gone),
    Mutation("what goes with a node goes with its later starts", VHost, "node_down", of_any_start()),
    Mutation("operations that are in the records are applied again", Catalog, "_change", once_more),
    Mutation("a leader that does not reach a member keeps its group", HandOver, "hand_over", lambda self: iter(())),
    Mutation("a declare does not wait for a node that is out of reach", Reach, "apart", lambda self: [],
             lambda: dead_links.test_declares_are_answered_at_both_ends_and_seen_everywhere("a", True)),
    Mutation("no node passes on how far another one is", TopologyProgress, "_pass_on", nothing,
             lambda: dead_links.test_a_declare_does_not_wait_long_for_a_node_that_is_out_of_reach("a")),
    Mutation("new queues are led by the node that leads fewest", Reach, "missed", lambda self, placed: 0,
             dead_links.test_new_queues_are_led_where_all_members_are_reached),
    Mutation("a node that stops does not say so", Replicas, "takes_leaders", True,
             dead_links.test_a_node_that_stops_hands_over_once),
    Mutation("a node that some do not reach counts as lost", Reach, "is_alive", never,
             dead_links.test_exclusive_queues_of_a_node_at_an_end_stay),
    Mutation("a node is told words that it may not know", Reach, "link_up", to_everybody(),
             lambda: dead_links.test_a_node_of_the_version_before_is_told_nothing_that_it_does_not_know("b")),
    Mutation("the version is raised before all nodes know it", Maintenance, "_raise_version", whatever_the_others_know),
    Mutation("queues begin with the newest version", QueueReplica, "__init__", with_the_newest_version()),
    Mutation("policies are set before all nodes can read them", Topology, "takes_parameters", True),
    Mutation("a start that the cluster takes for an early one goes on", ClusterNode, "overtaken", nothing,
             clocks.test_a_wiped_node_whose_clock_is_behind_joins_and_serves),
    Mutation("a node that starts again does not know why", Directory, "note_later_start", as_it_is,
             clocks.test_a_wiped_node_whose_clock_is_behind_joins_and_serves),
    Mutation("starts are numbered by the clock", Directory, "begin", by_the_clock,
             clocks.test_a_wiped_node_whose_clock_is_behind_joins_and_serves),
    Mutation("only peers tell of later starts, and the log does not", ClusterNode, "applied", looks_at_no_start,
             lambda: clocks.test_a_node_learns_of_its_later_start_from_the_log(pytest.MonkeyPatch())),
    Mutation("a copy that is put back may have had no word yet", Directory, "note_began", never_noted,
             test_data_directories.test_a_new_disk_is_not_turned_back_before_it_has_had_a_word),
    Mutation("intervals go by the wall clock", ManualClock, "monotonic_ms", by_wall_time,
             lambda: clocks.test_a_clock_is_set_and_nobody_notices(clocks.HOUR_MS)),
    Mutation("a node that starts keeps its own time", ClusterNode, "_heard_time", nothing,
             clocks.test_a_node_takes_over_the_time_of_the_cluster_and_keeps_it),
    Mutation("a host that has moved confirms what is on its way", DeferredHost, "_refuse_publishes",
             confirms_what_is_on_its_way, handed_over("confirm", "leaves b", during=True)),
    Mutation("a host that has moved has committed what is on its way", DeferredHost, "_end",
             ends_as_if_deleted(), handed_over("tx", "leaves b", during=True)),
    *(
        Mutation(f"routes name hosts, {how}", publish, "make_route", to_the_host_of_then(), handed_over(how, move))
        for how, move in (("tx", "grows to b"), ("alarm", "grows to b"), ("tx", "leaves b"), ("alarm", "moves away from b"))
    ),
    Mutation("a member is taken for silent before its link ends", Replicas, "ticks", only_those_heard_of_lately),
    Mutation("bindings of an exchange that is deleted stay on the disk", VHost, "_forget_bindings", nothing),
]  # fmt: skip


@pytest.fixture(autouse=True)
def collected(quiet: None) -> Iterator[None]:
    yield
    # Collect the coroutines of failed runs here, where nobody is warned of them.
    gc.collect()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
@pytest.mark.long
def test_a_planted_bug_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation.target, mutation.attribute, mutation.mutant)
    for seed in range(SEEDS if mutation.test is None else 1):
        try:
            with by_hand():
                simulation.run(seed) if mutation.test is None else mutation.test()
        except (Exception, Violation, Fatal):  # noqa: BLE001 - whatever it is, it was found
            return
    pytest.fail(f"nothing finds that {mutation.name}")
