"""How nodes tell each other of their links, and what a leader does about them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import FLAPS, Reach
from quorum_queue.cluster.frames import REACH_FEATURE, FrameError, ReachWord
from quorum_queue.cluster.options import ReplicationOptions
from tests.clocks import ManualClock

OPTIONS = ReplicationOptions(reach_ms=500, steady_ms=10_000)
TELLS = (REACH_FEATURE,)


class Links:
    def __init__(self) -> None:
        self.up: list[str] = []
        self.sent: list[tuple[str, ReachWord]] = []

    def connected(self) -> list[str]:
        return self.up

    def features_of(self, peer: str) -> Collection[str]:
        return ()

    def arrived_bytes(self, peer: str) -> int:
        return 0

    def pending_bytes(self, peer: str) -> int:
        return 0

    def send(self, peer: str, parts: list[bytes]) -> bool:
        self.sent.append((peer, frames.parse_reach(memoryview(b"".join(parts)))))
        return True


class World:
    """Node a, and what it hears of the others."""

    def __init__(self) -> None:
        self.links = Links()
        self.clock = ManualClock(100_000)
        self.leads = True
        self.reach = Reach("a", self.links, self.clock, leads=lambda: self.leads, options=OPTIONS)

    def up(self, *peers: str, features: tuple[str, ...] = TELLS) -> None:
        for peer in peers:
            self.links.up.append(peer)
            self.reach.link_up(peer, features)

    def down(self, *peers: str) -> None:
        for peer in peers:
            self.links.up.remove(peer)
            self.reach.link_down(peer)

    def told(self, peer: str, linked: str, *, leads: bool = True) -> None:
        self.reach.heard(peer, ReachWord(leads, tuple(linked)))

    def wait(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.reach.tell()


def three() -> World:
    world = World()
    world.up("b", "c")
    world.told("b", "ac")
    world.told("c", "ab")
    return world


def cut() -> World:
    """The link to c is dead; b reaches both."""
    world = three()
    world.down("c")
    world.wait(OPTIONS.reach_ms)
    return world


# -- words ---------------------------------------------------------------------------------------------------


def test_words_and_their_bytes() -> None:
    for word in (ReachWord(True, ()), ReachWord(False, ("a", "näme")), ReachWord(True, ("x" * 255, "b"))):
        assert frames.parse_reach(memoryview(b"".join(frames.reach(word)))) == word
    assert frames.parse_further(memoryview(b"".join(frames.further("n3", 7)))) == ("n3", 7)


@pytest.mark.parametrize(
    "data", [b"\x0e", b"\x0e\x01\x02a", b"\x0e\x01\x00", b"\x0e\x01\x01\xff", b"\x0e\x01\x01a\x05"]
)
def test_a_broken_frame_about_links_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        frames.parse_reach(memoryview(data))


def test_broken_words_of_other_nodes() -> None:
    for data in (b"\x0f\x00", b"\x0f" + bytes(8) + b"\xff"):
        with pytest.raises(FrameError):
            frames.parse_further(memoryview(data))


def test_each_new_link_and_each_change_is_told_once() -> None:
    world = World()
    world.up("b")
    world.up("c")
    assert world.links.sent == [
        ("b", ReachWord(True, ("b",))), ("b", ReachWord(True, ("b", "c"))), ("c", ReachWord(True, ("b", "c")))
    ]  # fmt: skip
    world.links.sent.clear()
    world.wait(50)
    assert world.links.sent == []
    world.leads = False
    world.wait(50)
    world.down("c")
    assert world.links.sent == [
        ("b", ReachWord(False, ("b", "c"))), ("c", ReachWord(False, ("b", "c"))), ("b", ReachWord(False, ("b",)))
    ]  # fmt: skip


def test_a_node_of_the_version_before_is_told_nothing() -> None:
    world = World()
    world.up("b", features=())
    world.up("c")
    assert [peer for peer, _ in world.links.sent] == ["c"]
    assert not world.reach.understands("b")


# -- what a leader gains by handing over ---------------------------------------------------------------------


def test_a_lost_voter_that_another_one_reaches_is_a_gain() -> None:
    world = cut()
    assert world.reach.lacking() == ["c"]
    assert world.reach.gain("b", "abc") == 1
    assert world.reach.dead_links("abc") == [("a", "c")]


def test_a_node_that_is_dead_is_no_gain() -> None:
    world = three()
    world.down("c")
    # The other end notices a little later.
    world.wait(OPTIONS.reach_ms - 1)
    assert world.reach.gain("b", "abc") == 0
    world.told("b", "a")
    world.wait(OPTIONS.reach_ms)
    assert world.reach.gain("b", "abc") == 0
    assert not world.reach.is_alive("c")
    assert world.reach.dead_links("abc") == []


def test_members_that_the_other_node_does_not_reach_weigh_against_it() -> None:
    world = World()
    world.up("b", "c", "d", "e")
    for peer in "bcde":
        world.told(peer, "".join(name for name in "abcde" if name != peer))
    world.down("e")
    world.told("b", "ace")
    world.told("d", "ace")
    world.wait(OPTIONS.reach_ms)
    assert {peer: world.reach.gain(peer, "abcde") for peer in "bcd"} == {"b": 0, "c": 1, "d": 0}


def test_a_node_that_stops_or_does_not_tell_is_no_gain() -> None:
    world = cut()
    world.told("b", "ac", leads=False)
    assert world.reach.gain("b", "abc") == 0
    world.down("b")
    world.up("b", features=())
    world.wait(OPTIONS.reach_ms)
    assert world.reach.gain("b", "abc") == 0


def test_a_node_that_denies_a_link_is_believed() -> None:
    world = three()
    assert world.reach.linked("b", "c")
    world.told("c", "a")
    assert not world.reach.linked("b", "c")
    assert not world.reach.linked("c", "b")


# -- links that break again and again ------------------------------------------------------------------------


def flap(world: World, peer: str, times: int) -> None:
    for _ in range(times):
        world.down(peer)
        world.wait(100)
        world.up(peer)
        world.told(peer, "ab")
        world.wait(100)


def test_a_link_that_flaps_counts_as_lost_though_it_stands() -> None:
    world = three()
    flap(world, "c", FLAPS - 1)
    assert world.reach.gain("b", "abc") == 0
    flap(world, "c", 1)
    assert world.reach.lacking() == ["c"]
    assert world.reach.gain("b", "abc") == 1
    world.wait(OPTIONS.steady_ms)
    assert world.reach.lacking() == []
    assert world.reach.gain("b", "abc") == 0


def test_a_node_whose_links_all_flap_moves_no_leader() -> None:
    world = three()
    for _ in range(FLAPS):
        world.told("b", "a")
        flap(world, "c", 1)
        world.told("b", "ac")
    assert world.reach.gain("b", "abc") == 0


def test_breaks_that_are_long_past_do_not_count() -> None:
    world = three()
    for _ in range(2 * FLAPS):
        flap(world, "c", 1)
        world.wait(OPTIONS.steady_ms // FLAPS)
    assert world.reach.gain("b", "abc") == 0


# -- who may lead again --------------------------------------------------------------------------------------


def test_a_former_leader_leads_again_when_its_link_has_lasted() -> None:
    world = three()
    assert world.reach.may_return("b", "abc")
    world.told("b", "a")
    assert not world.reach.may_return("b", "abc")
    world.wait(2 * OPTIONS.steady_ms)
    world.told("b", "ac")
    world.wait(OPTIONS.steady_ms - 1)
    assert not world.reach.may_return("b", "abc")
    world.wait(1)
    assert world.reach.may_return("b", "abc")
    world.told("b", "ac", leads=False)
    assert not world.reach.may_return("b", "abc")


def test_a_node_that_starts_again_leads_again_at_once() -> None:
    world = three()
    world.down("b")
    world.told("c", "a")
    world.up("b")
    assert not world.reach.may_return("b", "abc")
    world.told("b", "ac")
    assert not world.reach.may_return("b", "abc")
    world.told("c", "ab")
    assert world.reach.may_return("b", "abc")


def test_a_link_lost_for_a_moment_brings_no_leader_back() -> None:
    world = three()
    world.told("b", "a")
    world.down("c")
    assert not world.reach.may_return("b", "abc")
    world.wait(OPTIONS.steady_ms + 1)
    # By now c counts as dead.
    assert world.reach.may_return("b", "abc")


def test_a_node_that_does_not_tell_leads_again_unless_others_deny_its_links() -> None:
    world = World()
    world.up("b", features=())
    world.up("c")
    world.told("c", "ab")
    assert world.reach.may_return("b", "abc")
    world.told("c", "a")
    assert not world.reach.may_return("b", "abc")


# -- placing -------------------------------------------------------------------------------------------------


def test_members_that_a_leader_would_miss() -> None:
    world = cut()
    assert [world.reach.missed(placed) for placed in ("abc", "bac", "ab", "cab")] == [1, 0, 0, 1]
    world.told("b", "a")
    assert world.reach.missed("abc") == 0
