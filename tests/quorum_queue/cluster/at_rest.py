"""The checks of a cluster that has come to rest, and of one whose queues have all been emptied."""

from __future__ import annotations

from typing import Any

from amqp_server.cluster.store import ASIDE
from quorum_queue.machine import versions
from tests.quorum_queue.cluster.broker import Declared
from tests.quorum_queue.cluster.clients import Holder
from tests.quorum_queue.cluster.cluster import ROUNDS, Cluster
from tests.quorum_queue.cluster.node import SimulatedNode
from tests.turns import Violation


def check_at_rest(cluster: Cluster) -> None:
    for declared in cluster.declared:
        ledger = declared.ledger
        digests = {
            name: cluster.nodes[name].hosts.grouped[declared.queue_id].replica.digest()
            for name in declared.members[-1]
        }
        if len(set(digests.values())) != 1:
            raise ledger.fail(f"replicas differ: {digests}")
        if ledger.machine.version not in (versions.FIRST, cluster.network.version):
            raise ledger.fail(f"it has version {ledger.machine.version}")
        for name in declared.members[-1]:
            _check_bodies(cluster.nodes[name], declared)
        group = cluster.leading(declared)
        assert group is not None
        ledger.check_led(group.core.term)
        if ledger.settings.dead_letter_at_least_once and ledger.dead_lettering:
            raise ledger.fail(f"dead letters {list(ledger.dead_lettering)} are not sent on")
        _check_owners(cluster, declared)
    for node in cluster.running:
        if node.replicas.flight_bytes:
            raise Violation(
                f"{node.name} counts {node.replicas.flight_bytes} bytes on their way, there are none"
            )


def _check_bodies(node: SimulatedNode, declared: Declared) -> None:
    """A member has every body that its queue holds, on its disk."""
    host = node.hosts.grouped[declared.queue_id]
    ledger = declared.ledger
    stored = node.environment.groups.groups
    damaged = {**stored[declared.queue_id].damaged}
    if declared.queue_id | ASIDE in stored:
        damaged |= stored[declared.queue_id | ASIDE].damaged
    for index in host.replica.locations.pinned():
        if index in damaged:
            # No member has read it since it was damaged.
            continue
        if node.store.read_one(declared.queue_id, index).data != ledger.entries[index]:
            raise ledger.fail(f"{node.name} has another entry {index} on its disk")
    node.environment.groups.stood_still.clear()


def _check_owners(cluster: Cluster, declared: Declared) -> None:
    """Each consumer that holds messages is there, and has got them; each consumer that is there is
    attached.
    """
    ledger = declared.ledger
    holders: dict[tuple[Any, ...], Holder] = {}
    for node in cluster.running:
        for client in node.clients:
            for holder in client.holders():
                if holder.queue.declared is declared:
                    holders[holder.owner] = holder
    for key, held in ledger.held.items():
        owner = holders.get(key[-6:])
        if owner is None:
            raise ledger.fail(f"{key} holds {len(held)} messages, and is no more")
        missing = [number for number in held if number not in owner.unacked]
        if missing:
            raise ledger.fail(f"{key} never got deliveries {missing}")
    attached = [consumer.key[-6:] for consumer in ledger.machine.consumers.attached()]
    wanted = [owner for owner, holder in holders.items() if holder.attached]
    if sorted(attached, key=repr) != sorted(wanted, key=repr):
        raise ledger.fail(f"{attached} are attached, clients have {wanted}")


def drain(cluster: Cluster) -> None:
    """End all sessions; a new one takes all messages out of the queues."""
    cluster.log("sessions end")
    for node in cluster.running:
        for client in list(node.clients):
            client.close()
        node.end_turn()
    cluster.settle()
    node = cluster.random.choice(cluster.running)
    client = cluster.new_client(node)
    for queue in node.queues.values():
        client.consume(queue, prefetch=10)
    node.end_turn()
    for _ in range(ROUNDS):
        cluster.settle()
        holding = [holder for holder in client.holders() if holder.unacked]
        waiting = any(declared.ledger.machine.delayed.count for declared in cluster.declared)
        if not holding and not waiting:
            break
        for holder in holding:
            client.settle(holder, "settle", len(holder.unacked))
        node.end_turn()
    client.close()
    node.end_turn()
    cluster.settle()


def check_empty(cluster: Cluster) -> None:
    for declared in cluster.declared:
        if declared.ledger.live:
            raise declared.ledger.fail(f"{len(declared.ledger.live)} messages cannot be consumed")
    for _ in range(4):
        for node in cluster.running:
            node.maintenance.look()
            node.end_turn()
        cluster.settle()
    for node in cluster.running:
        stored = node.environment.groups.groups
        for number, group in stored.items():
            if number & ASIDE:
                if group.entries:
                    raise Violation(f"{node.name} keeps entries {list(group.entries)} of a snapshot aside")
                continue
            if number not in node.replicas.groups:
                raise Violation(f"{node.name} keeps group {number}, which it has left")
            below = [index for index in group.entries if index <= node.replicas.groups[number].snapshot_index]
            if below:
                raise Violation(f"{node.name} keeps entries {below} of group {number}, whose queue is empty")
            host = node.hosts.grouped[number]
            if len(host.replica.locations) or host.replica.locations.pinned():
                raise Violation(f"{node.name} has locations of group {number}, whose queue is empty")
        for host in node.hosts.grouped.values():
            rest = (
                host._publishes,
                host.asking.attaching,
                host.asking.getting,
                host.asking.purging,
                host.asking.barriers,
                host.deliveries_waiting,
                host.group.early,
                host.group.unsynced,
                host.group.unreached,
                host.group.askers,
            )
            if any(rest):
                raise Violation(f"{node.name} waits for answers that do not come: {rest}")
        if node.replicas.bodies.bytes != sum(size for _, size in node.replicas.bodies._entries.values()):
            raise Violation(f"{node.name} does not count its bodies right")
