"""`mqctl explain queue`, asked at each of three real nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.amqp_server.cluster.ring import NAMES, Ring
from tests.reliability.node import wait_until


def explained(ring: Ring, at: str, queue: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ring.mqctl(at, "--formatter", "json", "explain", "queue", queue))
    assert told["asked_node"] == at
    return told


def settings(told: dict[str, Any]) -> dict[str, tuple[Any, str, str | None]]:
    return {each["name"]: (each["value"], each["origin"], each["policy"]) for each in told["settings"]}


def leader_known(ring: Ring, queue: str) -> str:
    """Return the leader of a queue when all nodes say the same."""
    found: list[str] = []

    def told() -> bool:
        found[:] = [explained(ring, at, queue)["leader"] for at in NAMES]
        return len(set(found)) == 1 and found[0] in NAMES

    wait_until("all nodes know the leader", told)
    return found[0]


def has_caught_up(copy: dict[str, Any]) -> bool:
    assert copy["member"] is True
    return bool(copy["applied"] >= copy["committed"] > 1)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_replicated_queue(ring: Ring, kind: str) -> None:
    name = f"why {kind}"
    with ring.channel("n2") as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-queue-type": kind, "x-max-length-bytes": 1 << 20}
        )
        for number in range(5):
            channel.basic_publish("", name, b"%d" % number)
        policed = {"quorum": ("expires", 600_000), "stream": ("max-age", "1D")}[kind]
        ring.mqctl("n3", "set_policy", "why", "^why", json.dumps(dict([policed])))
        leader_known(ring, name)
        for at in NAMES:
            # The policy is an entry of its own, and so is each new leader's first one.
            wait_until("it has caught up", lambda: has_caught_up(explained(ring, at, name)["copy"]))  # noqa: B023
            told = explained(ring, at, name)
            assert (told["name"], told["vhost"], told["type"]) == (name, "/", kind)
            assert sorted(told["members"]) == sorted(told["online"]) == list(NAMES)
            assert settings(told)["max-length-bytes"] == (1 << 20, "argument", None)
            assert settings(told)[policed[0]][1:] == ("policy", "why")
            wait_until(
                "the policy is in force",
                lambda: explained(ring, at, name)["settings_in_force"],  # noqa: B023
            )
            assert told["decisions"]
            # Nodes that have started for an earlier test may get their leaders back meanwhile.
            before = explained(ring, at, name)["leader"]
            text = ring.mqctl(at, "explain", "queue", name)
            leaders = {before, explained(ring, at, name)["leader"]}
            assert any(f"leader {each}, members " in text for each in leaders) and "(down)" not in text
            assert f"node {at} has applied entry " in text
    ring.mqctl("n1", "clear_policy", "why")
    ring.mqctl("n1", "delete_queue", name)


def test_a_queue_with_members_on_two_nodes_asked_at_the_third(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare("why two", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "why two", b"x")
        ring.mqctl("n1", "cluster", "shrink", "n3")
        wait_until(
            "n3 is no member", lambda: sorted(explained(ring, "n1", "why two")["members"]) == ["n1", "n2"]
        )
        for at in NAMES:
            wait_until(
                "each node knows whether it is a member",
                lambda: explained(ring, at, "why two")["copy"]["member"] is (at != "n3"),  # noqa: B023
            )
            assert sorted(explained(ring, at, "why two")["members"]) == ["n1", "n2"]
        assert "node n3 has no copy; it asks a member" in ring.mqctl("n3", "explain", "queue", "why two")
        assert explained(ring, "n3", "why two")["copy"]["committed"] is None
    ring.mqctl("n1", "delete_queue", "why two")
    ring.mqctl("n1", "cluster", "grow", "n3")


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_of_one_node(ring: Ring, durable: bool) -> None:
    with ring.channel("n2") as channel:
        channel.queue_declare("why local", durable=durable, exclusive=False, auto_delete=False)
        for at in NAMES:
            told = explained(ring, at, "why local")
            assert (told["type"], told["node"], told["leader"]) == ("classic", "n2", "")
            assert (told["members"], told["online"], told["copy"]) == ([], [], None)
            text = ring.mqctl(at, "explain", "queue", "why local")
            assert "on node n2" in text
            assert "has no copy" not in text and "has applied" not in text
        for length in range(7, 27):
            # Whichever node is asked, it knows what any client was told.
            setter, asked = NAMES[length % 3], NAMES[(length + 1) % 3]
            ring.mqctl(
                *(setter, "set_policy", "why", "^why", f'{{"max-length": {length}}}'),
                *("--apply-to", "queues"),
            )
            assert settings(explained(ring, asked, "why local"))["max-length"] == (length, "policy", "why")
    ring.mqctl("n1", "clear_policy", "why")
    ring.mqctl("n1", "delete_queue", "why local")


def test_the_last_leaders_of_a_queue(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        arguments = {"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": "reject-publish"}
        channel.queue_declare("events", durable=True, arguments=arguments)
        for _ in range(2):
            channel.basic_publish("", "events", b"x")
    first = leader_known(ring, "events")
    asked = next(name for name in NAMES if name != first)
    told = explained(ring, asked, "events")
    assert told["obstacles"] == ["it refuses messages: it has 2 of 2 (max-length)"]
    assert told["events"][-1]["what"].startswith(f"{first} leads, term ")
    ring.nodes[first].kill()
    try:
        wait_until(
            "another node leads", lambda: explained(ring, asked, "events")["leader"] not in (first, "")
        )
        told = explained(ring, asked, "events")
        what = [event["what"].partition(",")[0] for event in told["events"]]
        assert f"{first} leads" in what[:-1] and what[-1] == f"{told['leader']} leads"
        times = [event["at"] for event in told["events"]]
        assert times == sorted(times)
        text = ring.mqctl(asked, "explain", "queue", "events")
        assert "now: it refuses messages" in text and f"as node {asked} knows it" in text
    finally:
        ring.nodes[first].start()
        ring.formed()
    with ring.channel("n1") as channel:
        channel.queue_delete("events")
