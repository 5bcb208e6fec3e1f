"""The cluster: `mqctl cluster …`, and `mqctl check …` for operators who stop nodes."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from amqp_server.cluster.membership.machines import machine_of
from amqp_server.mqctl.client import UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.progress import Look, progress
from amqp_server.mqctl.table import show

#: Interval of a check that waits, s.
LOOK_INTERVAL_S = 0.5


@mqctl.group("cluster", help="Manages the nodes of a cluster and the members of its queues.")
def cluster() -> None:
    pass


@cluster.command(
    "status", help="Lists the nodes, the number of queues that each one leads, and problems of the cluster."
)
@pass_invocation
def status(invocation: Invocation) -> None:
    try:
        told = invocation.client.get("cluster")
    except Failure as failure:
        if failure.status != 404:
            raise
        told = _alone(invocation)
    if invocation.json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    rows = [
        (
            node["name"],
            "up" if node["running"] else "down",
            node["address"],
            node.get("zone", ""),
            str(told["groups"].get(node["name"], 0)),
            _note(told, node),
        )
        for node in told["nodes"]
    ]
    show(("name", "state", "address", "zone", "leads", "note"), rows, invocation)
    if not told["majority"]:
        click.echo(f"NO MAJORITY: {told['obstacle']}; changes wait until there is one")
    for one, two in told["dead_links"]:
        click.echo(f"{one} and {two} are both up but do not reach each other")
    if told["groups_without_leader"]:
        click.echo(f"{told['groups_without_leader']} queues have no leader at the moment")
    for title, count in told.get("lost_entries", {}).items():
        click.echo(
            f"LOST: no member can read {count} log entries of {title}; `mqctl cluster accept-loss` continues without them"
        )
    if told["disk_stalled"]:
        click.echo(
            f"writes to the disk of {told['node']} do not finish: the node leads no queue until they do"
        )


@mqctl.command(
    "cluster_status", help="Does the same as `mqctl cluster status`; the name is that of rabbitmqctl."
)
@click.pass_context
def cluster_status(ctx: click.Context) -> None:
    ctx.invoke(status)


def _alone(invocation: Invocation) -> dict[str, Any]:
    """Return the state of a node without a cluster in the form of a cluster of one."""
    name = invocation.client.get("overview")["node"]
    node = {"name": name, "running": True, "address": "", "zone": "", "leaving": False}
    return {
        "node": name,
        "stands_alone": True,
        "majority": True,
        "obstacle": "",
        "nodes": [node],
        "groups": {},
        "groups_without_leader": 0,
        "dead_links": [],
        "disk_stalled": False,
        "topology": None,
    }


def _note(told: dict[str, Any], node: dict[str, Any]) -> str:
    if told.get("stands_alone"):
        return "stands alone, without a cluster"
    if told["topology"] is not None and told["topology"]["leader"] == node["name"]:
        return "leader of the topology"
    return "leaving" if node["leaving"] else ""


@cluster.command("queues", help="Lists the replicated queues with their leaders and members.")
@pass_invocation
def queues(invocation: Invocation) -> None:
    rows = [
        (
            queue["vhost"],
            queue["name"],
            queue["leader"],
            queue["members"] if invocation.json else " ".join(queue["members"]),
            queue["online"] if invocation.json else " ".join(queue["online"]),
            f"{queue['lost_entries']} entries lost" if queue.get("lost_entries") else "",
        )
        for queue in invocation.client.get("cluster", "queues")
    ]
    show(("vhost", "name", "leader", "members", "online", "note"), rows, invocation)


@cluster.command(
    "join",
    help="Adds node NAME, which listens for other nodes on HOST:PORT, to the cluster. Start the node after this command.",
)
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@pass_invocation
def join(invocation: Invocation, name: str, address: str) -> None:
    invocation.client.post("cluster", "nodes", body={"name": name, "address": address})


@cluster.command(
    "leave", help="Removes the node at --url from its cluster. Stop the node after this command."
)
@pass_invocation
def leave(invocation: Invocation) -> None:
    name = invocation.client.get("cluster")["node"]
    with progress(f"Queues without {name}", _queues_with(invocation, name, wanted=False)):
        invocation.client.delete("cluster", "nodes", name)


@cluster.command("forget", help="Removes node NAME, which is down and will not return, from the cluster.")
@click.argument("name")
@pass_invocation
def forget(invocation: Invocation, name: str) -> None:
    told = invocation.client.get("cluster")
    running = [node["name"] for node in told["nodes"] if node["running"]]
    if name in map(machine_of, running):
        raise Failure(
            f"node {name} is up: stop it first, or run `mqctl cluster leave` with its --url", UNAVAILABLE
        )
    with progress(f"Queues without {name}", _queues_with(invocation, name, wanted=False)):
        invocation.client.delete("cluster", "nodes", name)


def _queues_with(invocation: Invocation, node: str, *, wanted: bool) -> Look:
    """Return a function that counts the quorum queues of which the node is (or is not) a member."""

    def look() -> tuple[int, int]:
        rows = invocation.client.get("cluster", "queues", columns="members")
        return sum((node in map(machine_of, row["members"])) is wanted for row in rows), len(rows)

    return look


@mqctl.command(
    "forget_cluster_node", help="Does the same as `mqctl cluster forget`; the name is that of rabbitmqctl."
)
@click.argument("name")
@click.pass_context
def forget_cluster_node(ctx: click.Context, name: str) -> None:
    ctx.invoke(forget, name=name)


@cluster.command("transfer-leader", help="Makes NODE, a member of QUEUE, its leader.")
@in_vhost
@click.argument("queue")
@click.argument("node")
@pass_invocation
def transfer_leader(invocation: Invocation, vhost: str, queue: str, node: str) -> None:
    invocation.client.put("cluster", "queues", vhost, queue, "leader", body={"node": node})


@cluster.command(
    "accept-loss",
    help="Gives up the log entries of QUEUE, or of the topology, that no member can read. Their data is lost for good; the queue, or the cluster, continues without it.",
)
@in_vhost
@click.argument("queue", required=False)
@click.option(
    "--topology",
    is_flag=True,
    help="Give up entries of the topology's log (users, exchanges, bindings, queues), not of a queue.",
)
@pass_invocation
def accept_loss(invocation: Invocation, vhost: str, queue: str | None, *, topology: bool) -> None:
    if topology == (queue is not None):
        raise click.UsageError("give either QUEUE or --topology")
    place = ("topology",) if queue is None else ("queues", vhost, queue)
    given_up = invocation.client.post("cluster", *place, "accept-loss", body={})
    invocation.say(f"{given_up['entries']} entries were given up")
    what = "topology" if topology else "queue"
    for name in given_up.get("members", ()):
        invocation.say(
            f"{name} has lost its log: the {what} continues without its vote until the log is copied again"
        )


@cluster.command(
    "rebalance", help="Distributes the leaders of the replicated queues evenly over the nodes that are up."
)
@pass_invocation
def rebalance(invocation: Invocation) -> None:
    with progress("Rebalancing"):
        moved = invocation.client.post("cluster", "rebalance", body={})["queues"]
    invocation.say(f"{moved} leaders are moving")


@cluster.command("grow", help="Makes NODE a member of all replicated queues.")
@click.argument("node")
@pass_invocation
def grow(invocation: Invocation, node: str) -> None:
    with progress(f"Queues on {node}", _queues_with(invocation, node, wanted=True)):
        grown = invocation.client.post("cluster", "nodes", node, "grow", body={})["queues"]
    invocation.say(f"{grown} queues are growing")


@cluster.command("shrink", help="Removes NODE from all replicated queues that have other members.")
@click.argument("node")
@pass_invocation
def shrink(invocation: Invocation, node: str) -> None:
    with progress(f"Queues without {node}", _queues_with(invocation, node, wanted=False)):
        shrunk = invocation.client.post("cluster", "nodes", node, "shrink", body={})["queues"]
    invocation.say(f"{shrunk} queues are shrinking")


@mqctl.group(
    "check", help="Runs a health check. Exit code 0 if it passes; otherwise it prints what is wrong."
)
def check() -> None:
    pass


@check.command("failed-queues", help="Checks that no queue has failed on the node at --url.")
@pass_invocation
def failed_queues(invocation: Invocation) -> None:
    told = invocation.client.check("health", "checks", "failed-queues")
    if told["status"] != "ok":
        raise Failure(f"{told['reason']}: {'; '.join(told['queues'])}", UNAVAILABLE)


@check.command("quorum-critical", help="Checks that no queue loses its majority if the node at --url stops.")
@click.option(
    "--wait", default=0.0, metavar="S", help="Repeat the check for up to S seconds until it passes."
)
@pass_invocation
def quorum_critical(invocation: Invocation, wait: float) -> None:
    deadline = time.monotonic() + wait
    with progress("Waiting for majorities"):
        while True:
            critical = invocation.client.check("health", "checks", "node-is-quorum-critical")
            if critical["status"] == "ok":
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOK_INTERVAL_S)
    listed = ", ".join(critical["queues"][:10])
    more = len(critical["queues"]) - 10
    raise Failure(f"{critical['reason']}: {listed}{f' and {more} more' if more > 0 else ''}", UNAVAILABLE)
