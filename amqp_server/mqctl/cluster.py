"""The cluster: `mqctl cluster …`, and `mqctl check …` for operators who stop nodes."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from amqp_server.mqctl.client import UNAVAILABLE, Failure
from amqp_server.mqctl.command import Invocation, in_vhost, mqctl, pass_invocation
from amqp_server.mqctl.progress import Look, progress
from amqp_server.mqctl.table import show

#: Interval of a check that waits, s.
LOOK_INTERVAL_S = 0.5


@mqctl.group("cluster", help="Looks after the nodes of a cluster and the quorum queues on them.")
def cluster() -> None:
    pass


@cluster.command("status", help="Lists the nodes, and who leads how many queues.")
@pass_invocation
def status(invocation: Invocation) -> None:
    told = invocation.client.get("cluster")
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
            "leader of the topology" if _leads(told, node["name"]) else "leaves" if node["leaving"] else "",
        )
        for node in told["nodes"]
    ]
    show(("name", "state", "address", "zone", "leads", "note"), rows, invocation)
    if not told["majority"]:
        click.echo(f"NO MAJORITY: {told['obstacle']}; what needs one waits")
    for one, two in told["dead_links"]:
        click.echo(f"{one} and {two} are up and do not reach each other")
    if told["groups_without_leader"]:
        click.echo(f"{told['groups_without_leader']} queues have no leader now")
    for title, count in told.get("lost_entries", {}).items():
        click.echo(
            f"LOST: {title} has {count} entries that an operator has to give up (mqctl cluster accept-loss)"
        )
    if told["disk_stalled"]:
        click.echo(f"the disk of {told['node']} does not take what it is given: it leads nothing")


@mqctl.command("cluster_status", help="As `mqctl cluster status`.")
@click.pass_context
def cluster_status(ctx: click.Context) -> None:
    ctx.invoke(status)


def _leads(told: dict[str, Any], name: str) -> bool:
    return told["topology"] is not None and told["topology"]["leader"] == name


@cluster.command("queues", help="Lists the quorum queues, their leaders and their members.")
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
    "join", help="Lets node NAME join, which listens for the others on HOST:PORT. Then start it."
)
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@pass_invocation
def join(invocation: Invocation, name: str, address: str) -> None:
    invocation.client.post("cluster", "nodes", body={"name": name, "address": address})


@cluster.command("leave", help="Takes the asked node out of its cluster; stop it afterwards.")
@pass_invocation
def leave(invocation: Invocation) -> None:
    name = invocation.client.get("cluster")["node"]
    with progress(f"Queues without {name}", _queues_with(invocation, name, wanted=False)):
        invocation.client.delete("cluster", "nodes", name)


@cluster.command("forget", help="Takes node NAME, which does not come back, out of the cluster.")
@click.argument("name")
@pass_invocation
def forget(invocation: Invocation, name: str) -> None:
    told = invocation.client.get("cluster")
    running = [node["name"] for node in told["nodes"] if node["running"]]
    if name in running:
        raise Failure(f"node {name} is up: stop it first, or use `mqctl cluster leave` at it", UNAVAILABLE)
    with progress(f"Queues without {name}", _queues_with(invocation, name, wanted=False)):
        invocation.client.delete("cluster", "nodes", name)


def _queues_with(invocation: Invocation, node: str, *, wanted: bool) -> Look:
    """Return a function that counts the quorum queues of which the node is (or is not) a member."""

    def look() -> tuple[int, int]:
        rows = invocation.client.get("cluster", "queues", columns="members")
        return sum((node in row["members"]) is wanted for row in rows), len(rows)

    return look


@mqctl.command("forget_cluster_node", help="As `mqctl cluster forget`.")
@click.argument("name")
@click.pass_context
def forget_cluster_node(ctx: click.Context, name: str) -> None:
    ctx.invoke(forget, name=name)


@cluster.command("transfer-leader", help="Has QUEUE led by NODE from now on.")
@in_vhost
@click.argument("queue")
@click.argument("node")
@pass_invocation
def transfer_leader(invocation: Invocation, vhost: str, queue: str, node: str) -> None:
    invocation.client.put("cluster", "queues", vhost, queue, "leader", body={"node": node})


@cluster.command(
    "accept-loss",
    help="Has QUEUE, or the topology, go on without what none of its members can read any more. That is lost then, for good.",
)
@in_vhost
@click.argument("queue", required=False)
@click.option("--topology", is_flag=True, help="The log of users, exchanges, bindings and queues itself.")
@pass_invocation
def accept_loss(invocation: Invocation, vhost: str, queue: str | None, *, topology: bool) -> None:
    if topology == (queue is not None):
        raise click.UsageError("give either QUEUE or --topology")
    place = ("topology",) if queue is None else ("queues", vhost, queue)
    given_up = invocation.client.post("cluster", *place, "accept-loss", body={})
    invocation.say(f"{given_up['entries']} entries are given up")
    what = "topology" if topology else "queue"
    for name in given_up.get("members", ()):
        invocation.say(
            f"{name} has lost its memory: the {what} continues without its vote until it is filled"
        )


@cluster.command("rebalance", help="Spreads the leaders of the quorum queues over the nodes that are up.")
@pass_invocation
def rebalance(invocation: Invocation) -> None:
    with progress("Rebalancing"):
        moved = invocation.client.post("cluster", "rebalance", body={})["queues"]
    invocation.say(f"{moved} leaders are moving")


@cluster.command("grow", help="Has NODE keep all quorum queues, too.")
@click.argument("node")
@pass_invocation
def grow(invocation: Invocation, node: str) -> None:
    with progress(f"Queues on {node}", _queues_with(invocation, node, wanted=True)):
        grown = invocation.client.post("cluster", "nodes", node, "grow", body={})["queues"]
    invocation.say(f"{grown} queues are growing")


@cluster.command("shrink", help="Takes NODE out of all quorum queues that other nodes keep, too.")
@click.argument("node")
@pass_invocation
def shrink(invocation: Invocation, node: str) -> None:
    with progress(f"Queues without {node}", _queues_with(invocation, node, wanted=False)):
        shrunk = invocation.client.post("cluster", "nodes", node, "shrink", body={})["queues"]
    invocation.say(f"{shrunk} queues are shrinking")


@mqctl.group("check", help="Ends with code 0 if all is well, else says what is not.")
def check() -> None:
    pass


@check.command("failed-queues", help="Is there a queue that has failed on the asked node?")
@pass_invocation
def failed_queues(invocation: Invocation) -> None:
    told = invocation.client.check("health", "checks", "failed-queues")
    if told["status"] != "ok":
        raise Failure(f"{told['reason']}: {'; '.join(told['queues'])}", UNAVAILABLE)


@check.command("quorum-critical", help="May the asked node be stopped without any queue losing its majority?")
@click.option("--wait", default=0.0, metavar="S", help="Look again for so long until it may.")
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
