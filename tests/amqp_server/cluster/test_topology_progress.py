"""How long clients wait until all nodes have applied a change of the topology."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_server.cluster.topology_progress import SPREAD_MS, TopologyProgress
from tests.clocks import ManualClock


class Mesh:
    def __init__(self, peers: list[str]) -> None:
        self.peers = peers

    def connected(self) -> list[str]:
        return self.peers

    def send(self, peer: str, parts: list[bytes]) -> bool:
        return True


class Reach:
    def apart(self) -> list[str]:
        return []

    def understands(self, peer: str) -> bool:
        return False


class Waits:
    """Node a of three, and a client of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        mesh: Any = Mesh(["b", "c"])
        reach: Any = Reach()
        self.progress = TopologyProgress(mesh, self.clock, reach)
        self.heard(b=10, c=10)

    def heard(self, **applied: int) -> None:
        for node, index in applied.items():
            self.progress.heard(node, index)

    def change(self, index: int) -> list[int]:
        done: list[int] = []
        self.progress.wait(index, lambda: done.append(index))
        return done

    def pass_ms(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.progress.go_on()


@pytest.fixture
def waits() -> Waits:
    return Waits()


def test_a_client_waits_until_all_nodes_have_its_change(waits: Waits) -> None:
    done = waits.change(11)
    waits.heard(b=11)
    assert not done
    waits.heard(c=11)
    assert done


def test_only_one_client_waits_for_a_node_that_does_not_go_on(waits: Waits) -> None:
    first = waits.change(11)
    waits.heard(b=11)
    waits.pass_ms(SPREAD_MS - 1)
    assert not first
    waits.pass_ms(1)
    assert first
    assert waits.progress.up() == ["b"]
    second = waits.change(12)
    assert not second
    waits.heard(b=12)
    assert second


def test_a_node_that_has_caught_up_is_waited_for_again(waits: Waits) -> None:
    waits.change(11)
    waits.heard(b=11)
    waits.pass_ms(SPREAD_MS)
    waits.heard(c=11)
    assert waits.progress.up() == ["b", "c"]
    done = waits.change(12)
    waits.heard(b=12)
    assert not done
    waits.heard(c=12)
    assert done


def test_a_node_with_a_new_link_is_waited_for_again(waits: Waits) -> None:
    waits.change(11)
    waits.heard(b=11)
    waits.pass_ms(SPREAD_MS)
    waits.progress.link_up("c")
    done = waits.change(12)
    waits.heard(b=12)
    assert not done
    waits.heard(c=12)
    assert done


def test_nobody_waits_for_a_node_whose_disk_takes_no_writes(waits: Waits) -> None:
    """It applies each change with the next one."""
    first = waits.change(11)
    waits.heard(b=11)
    assert not first
    waits.progress.stalls("c", True)
    assert first
    assert waits.progress.up() == ["b"]
    waits.heard(c=11)
    second = waits.change(12)
    waits.heard(b=12)
    assert second
    waits.progress.stalls("c", False)
    assert waits.progress.up() == ["b", "c"]
    third = waits.change(13)
    waits.heard(b=13)
    assert not third
    waits.heard(c=13)
    assert third
