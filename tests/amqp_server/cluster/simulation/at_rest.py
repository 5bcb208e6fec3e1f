"""The checks of a cluster that has come to rest."""

from __future__ import annotations

from amqp_server.broker.declared.records import BINDINGS, EXCHANGES, MARKS, QUEUES
from amqp_server.cluster.store import ASIDE
from amqp_server.cluster.topology_group import GROUP
from tests.amqp_server.cluster.simulation.cluster import Cluster
from tests.amqp_server.cluster.simulation.ledger import digest
from tests.amqp_server.cluster.simulation.model import difference, state_of
from tests.amqp_server.cluster.simulation.node import SimulatedNode
from tests.turns import Violation


def check_at_rest(cluster: Cluster) -> None:
    members = [cluster.nodes[name] for name in cluster.belonging]
    digests = {node.name: digest(node.cluster.catalog.snapshot()).hex() for node in members}
    if len(set(digests.values())) != 1:
        raise Violation(f"the topologies differ: {digests}")
    for node in members:
        other = difference(cluster.ledger.model.state(), state_of(node.broker))
        if other:
            raise Violation(f"{node.name} has not what the log says: {other}")
        _check_records(node)
        _check_counts(node)
        _check_open_transactions(node)
    check_groups(cluster)
    _check_owners(cluster, members[0])


def _check_open_transactions(node: SimulatedNode) -> None:
    """A client whose transaction is shut out may be idle: what it acked is held until it hears of it."""
    for transaction in node.broker.open_transactions.all():
        why = transaction.why_shut_out()
        if why is not None:
            raise Violation(f"{node.name} has an open transaction of a producer that has begun again: {why}")


def check_groups(cluster: Cluster) -> None:
    for name in cluster.belonging:
        node = cluster.nodes[name]
        _check_groups(node, cluster.stays_in(node))


def _check_groups(node: SimulatedNode, stays_in: set[int]) -> None:
    """A node keeps the groups of the queues that it is a member of, and no others but those that it cannot
    leave now, in memory and on its disk.
    """
    wanted = {queue.queue_id for queue in node.broker.all_queues() if node.name in queue.members}
    wanted |= {GROUP} | stays_in
    running = set(node.cluster.replicas.groups)
    if running != wanted:
        raise Violation(f"{node.name} runs groups {sorted(running)}, its queues are {sorted(wanted)}")
    stored = {number & ~ASIDE for number, group in node.disk.groups.groups.items()}
    if stored != wanted:
        raise Violation(
            f"{node.name} keeps groups {sorted(stored)} on its disk, its queues are {sorted(wanted)}"
        )
    for queue in node.broker.all_queues():
        host = node.cluster.hosts.grouped.get(queue.queue_id)
        if host is not None and host.settings != queue.settings:
            raise Violation(f"{node.name}: queue {queue.name} does {host.settings}, not {queue.settings}")
    local = {queue.queue_id for queue in node.broker.all_queues() if queue.node == node.name}
    orphans = set(node.disk.queues) - local
    if orphans:
        raise Violation(f"{node.name} keeps messages of queues {sorted(orphans)}, which are not its own")
    hosts = node.cluster.hosts
    known = {queue.queue_id for queue in node.broker.all_queues()}
    for name, found in (("queues", hosts.queues), ("remote", hosts.remote), ("grouped", hosts.grouped)):
        if not set(found) <= known:
            raise Violation(
                f"{node.name} has hosts of queues that are gone ({name}): {sorted(set(found) - known)}"
            )


def _check_records(node: SimulatedNode) -> None:
    """There is one record on the disk for each thing."""
    broker = node.broker
    vhosts = list(broker.vhosts.values())
    marked = sum(bool(queue.marks) for queue in broker.all_queues())
    wanted = {
        QUEUES: sum(len(list(vhost.queue_records())) for vhost in vhosts),
        EXCHANGES: sum(len(list(vhost.exchange_records())) for vhost in vhosts),
        MARKS: marked,
    }
    for table, count in wanted.items():
        found = len(list(node.disk.items(table)))
        if found != count:
            raise Violation(f"{node.name} has {found} records of {table} for {count}")
    bindings = {record.key for vhost in vhosts for record in vhost.binding_records()}
    stored = {key for key, _ in node.disk.items(BINDINGS)}
    if stored != bindings:
        raise Violation(f"{node.name} has records of {len(stored)} bindings, there are {len(bindings)}")


def _check_counts(node: SimulatedNode) -> None:
    broker = node.broker
    vhosts = list(broker.vhosts.values())
    counts = broker.counts
    counted = counts.queues, counts.exchanges, counts.bindings
    found = (
        len(list(broker.all_queues())),
        sum(len(list(vhost.exchange_records())) for vhost in vhosts),
        sum(len(list(vhost.binding_records())) for vhost in vhosts),
    )
    if counted != found:
        raise Violation(f"{node.name} counts {counted} queues, exchanges and bindings, there are {found}")


def _check_owners(cluster: Cluster, node: SimulatedNode) -> None:
    for queue in node.broker.all_queues():
        record = queue.record
        if record.exclusive and not cluster.ledger.has_owner(record):
            raise Violation(
                f"queue {queue.name} is there, and its owner {record.owner} on {record.node} is not"
            )
        lives_on = record.durable or queue.members or record.exclusive
        if not lives_on and cluster.nodes[record.node].incarnation != record.incarnation:
            raise Violation(f"transient queue {queue.name} has outlived its node {record.node}")


def drain(cluster: Cluster, vhosts: tuple[str, ...]) -> None:
    """End all sessions; new clients then take all messages out of the queues."""
    cluster.log("sessions end")
    for node in cluster.running:
        for client in list(node.clients):
            node.turn.run(client.session.lost)
            client.collect()
        node.end_turn()
    cluster.settle()
    check_at_rest(cluster)
    node = cluster.random.choice(cluster.serving)
    for vhost in vhosts:
        if vhost not in node.broker.vhost_records:
            continue
        client = cluster.new_client(node, vhost)
        for name, queue in list(node.broker.vhost(vhost).queues.items()):
            if queue.type.is_stream:
                cluster.read_stream(client, name, queue.queue_id)
                cluster.messages.check(queue.queue_id)
                continue
            while True:
                client.get(name)
                cluster.wait_for(client)
                if not client.unacked:
                    break
                client.ack_all()
            if client.queue_id(name) != queue.queue_id:
                # The lease of the queue was over.
                continue
            if queue.durable and queue.node not in cluster.wiped:
                cluster.messages.check(queue.queue_id)
        node.turn.run(client.session.lost)
        client.collect()
    node.end_turn()
    cluster.settle()
    judged = cluster.messages.check_transactions()
    cluster.ledger.count["transactions over several queues"] = judged
