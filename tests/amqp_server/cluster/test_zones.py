"""Members of a queue are put into different failure domains, where there are enough of these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.cluster.membership.zones import Zones, features
from amqp_server.cluster.wiring import FEATURES
from amqp_server.config import Config, InvalidOption
from tests.amqp_server.cluster.simulation.cluster import Cluster, by_hand


def zones(**told: str) -> Zones:
    """The zones as node a knows them."""
    made = Zones("a", told.pop("a", ""))
    for node, zone in told.items():
        made.heard(node, ("reach", *features(zone)))
    return made


def chosen(made: Zones, first: str, names: str, count: int, worse: str = "") -> str:
    ranked: list[tuple[object, str]] = [*((0, name) for name in names), *((1, name) for name in worse)]
    return "".join(made.choose(first, ranked, count))


@pytest.mark.parametrize(
    ("told", "first", "expected"),
    [
        pytest.param({}, "a", "abc", id="no zones: in order"),
        pytest.param({"a": "1", "b": "1", "c": "2", "d": "3"}, "a", "acd", id="one in each"),
        pytest.param(
            {"a": "1", "b": "1", "c": "1", "d": "2"}, "b", "bda", id="more than zones: as even as can be"
        ),
        pytest.param({"a": "1", "b": "1", "c": "1", "d": "1"}, "d", "dab", id="one zone for all"),
        pytest.param({"a": "1", "b": "1"}, "a", "acd", id="a node without a zone is one of its own"),
    ],
)
def test_which_nodes_are_chosen(told: dict[str, str], first: str, expected: str) -> None:
    assert chosen(zones(**told), first, "abcd", 3) == expected


def test_a_node_that_is_up_comes_before_one_of_another_zone_that_is_down() -> None:
    made = zones(a="1", b="1", c="2", d="3")
    assert chosen(made, "a", "ab", 2, worse="cd") == "ab"
    assert chosen(made, "a", "ab", 3, worse="cd") == "abc"


def test_what_a_node_tells_again() -> None:
    made = zones(a="1", b="1", c="2")
    assert (made.of("a"), made.of("b"), made.of("nobody")) == ("1", "1", "")
    assert (made.shared("abc"), made.shared("ac")) == (1, 0)
    made.heard("b", features("2"))
    assert made.of("b") == "2"
    made.heard("b", ())
    assert made.of("b") == ""


@pytest.mark.parametrize("zone", ["x" * 65, "line\nfeed"])
def test_names_that_cannot_be_told(zone: str) -> None:
    with pytest.raises(InvalidOption):
        Config(zone=zone)


@pytest.fixture(autouse=True)
def hand() -> Iterator[None]:
    with by_hand():
        yield


def test_queues_of_a_cluster_with_zones() -> None:
    cluster = Cluster("abcde", "abcde")
    placed = {"a": "1", "b": "1", "c": "1", "d": "2", "e": "3"}
    for name, node in cluster.nodes.items():
        node.zone, node.features = placed[name], (*FEATURES, *features(placed[name]))
    cluster.mend()
    cluster.settle()
    client = cluster.new_client(cluster.nodes["a"])
    for name in ("quorum/1", "quorum/2", "quorum/3", "quorum/4", "wide"):
        client.declare(name)
        cluster.wait_for(client)
        members = cluster.nodes["b"].broker.vhost("/").queues[name].members
        assert sorted(placed[member] for member in members) == ["1", "2", "3"]
    status = cluster.nodes["b"].cluster.administration.status()
    assert {node["name"]: node["zone"] for node in status["nodes"]} == placed


def test_a_queue_grows_into_a_zone_that_it_is_not_in() -> None:
    cluster = Cluster("abcd", "abcd")
    placed = {"a": "1", "b": "1", "c": "1", "d": "2"}
    for name, node in cluster.nodes.items():
        node.zone, node.features = placed[name], (*FEATURES, *features(placed[name]))
    cluster.mend()
    cluster.settle()
    node = cluster.nodes["a"]
    client = cluster.new_client(node)
    # The queue is on two nodes, and is to be on three.
    node.cluster.roster.zones = Zones()
    client.declare("two")
    cluster.wait_for(client)
    assert sorted(client.node.broker.vhost("/").queues["two"].members) == ["a", "b"]
    node.cluster.roster.zones = cluster.nodes["b"].cluster.roster.zones
    cluster.settle()
    assert sorted(client.node.broker.vhost("/").queues["two"].members) == ["a", "b", "d"]


def test_the_arguments_of_a_placement() -> None:
    """There are as many members as asked for, whatever the zones."""
    with by_hand():
        cluster = Cluster("abc", "abc")
        for node in cluster.nodes.values():
            node.zone, node.features = "1", (*FEATURES, *features("1"))
        cluster.mend()
        cluster.settle()
        hosts = cluster.nodes["a"].broker.hosts
        for size in (1, 2, 3):
            parsed = QueueArguments(queue_type="quorum", initial_group_size=size)
            assert len(hosts.place(parsed)) == size
