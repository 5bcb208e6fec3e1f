"""The page of a cluster: which node leads which queue, how to change that, and a node that dies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from amqp_server.testing import Cluster, start_cluster
from conformance_tests.inbox import wait_for

from .visit import Visit, declare, expect


@pytest.fixture(scope="module")
def cluster(chromium: Any) -> Iterator[Cluster]:
    with start_cluster() as started:
        yield started


@pytest.fixture
def visit(chromium: Any, cluster: Cluster) -> Iterator[Visit]:
    visit = Visit(chromium, cluster["n1"].http_url)
    yield visit
    visit.context.close()
    assert visit.complaints == []


def test_another_node_is_made_the_leader(visit: Visit, cluster: Cluster) -> None:
    declare(cluster["n1"], "led", **{"x-queue-type": "quorum"})
    before = cluster.leader("led")
    other = next(node for node in cluster if node is not before)
    page = visit.log_in()
    visit.go("queue", "/", "led")
    leader = page.locator(".facts div").filter(has=page.get_by_text("Leader", exact=True))
    expect(leader).to_contain_text(before.name)
    visit.send("Leader", "Transfer", node=other.name)
    expect(page.get_by_text("The leader was asked to hand over.")).to_be_visible()
    expect(leader).to_contain_text(other.name)
    wait_for(lambda: cluster.leader("led") is other, "the leader that was chosen")


def test_leaders_are_spread(visit: Visit, cluster: Cluster) -> None:
    names = [f"spread.{number}" for number in range(6)]
    for name in names:
        declare(cluster["n1"], name, **{"x-queue-type": "quorum"})
    for name in names:
        if cluster.leader(name).name != "n1":
            cluster["n1"].api("PUT", f"/api/cluster/queues/%2F/{name}/leader", {"node": "n1"})
    wait_for(lambda: all(cluster.leader(name).name == "n1" for name in names), "n1 to lead all")
    page = visit.log_in()
    visit.go("nodes")
    shown = page.get_by_role("row").filter(has_text="spread.").locator("[data-label=Leader]")
    expect(shown).to_have_text(["n1"] * len(names))
    visit.send("Rebalance")
    expect(page.get_by_text("The leaders are being spread.")).to_be_visible()
    for node in cluster:
        expect(shown.filter(has_text=node.name)).not_to_have_count(0)
    assert {cluster.leader(name).name for name in names} == {"n1", "n2", "n3"}


def test_a_node_that_is_down(visit: Visit, cluster: Cluster) -> None:
    page = visit.log_in()
    visit.go("nodes")
    expect(page.get_by_role("table").first).to_contain_text("n3")
    cluster.kill("n3")
    expect(page.locator(".trouble.missing")).to_contain_text("n3")
    expect(page.get_by_role("row", name=re.compile("^n3"))).to_contain_text("does not answer")
    visit.go("queues")
    expect(page.locator(".counted")).to_contain_text("page 1 of 1")
