"""Meshes over loopback: sessions come up, carry frames in order, end, and come back."""

from __future__ import annotations

import hashlib
import os
import ssl
import time

import pytest
import trio
import trustme

from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.ports import Peer
from quorum_queue.links.session import FRAMES_AT_ONCE

from .nodes import LinkNode, Tls, all_linked, listening, nodes, until


def frames(node: LinkNode, sender: str) -> list[bytes]:
    return node.events.frames.get(sender, [])


async def refused(node: LinkNode, peer: str, times: int = 3) -> None:
    """Wait until the node has dialled the peer this often in vain."""
    pair = node.mesh._sessions.pairs[peer]
    first = pair.failures
    await until(lambda: pair.failures >= first + times)


async def test_three_nodes_link_once_each(maybe_tls: Tls | None) -> None:
    async with nodes("n1", "n2", "n3", tls=maybe_tls) as made:
        for node in made:
            for other in made:
                if other is not node:
                    assert node.events.count("up", other.name) == 1
                    hello = node.events.hellos[other.name]
                    assert (hello.name, hello.incarnation, hello.identity) == (
                        other.name,
                        1,
                        f"disk of {other.name}",
                    )


async def test_frames_keep_their_order(maybe_tls: Tls | None) -> None:
    """In both directions at once, in all sizes, whichever node dialled."""
    async with nodes("n1", "n2", tls=maybe_tls) as made:
        sizes = [1, 3, 4, 100, 4095, 4096, 4097, 65_536, 1 << 20, 3_000_001, 7]
        sent = [index.to_bytes(4, "big") * (size // 4 + 1) for index, size in enumerate(sizes * 3)]
        for number, node in enumerate(made):
            peer = made[1 - number].name
            for frame in sent:
                middle = len(frame) // 2
                assert node.mesh.send(peer, [frame[:middle], b"", frame[middle:]])
            await trio.lowlevel.checkpoint()
        for number, node in enumerate(made):
            peer = made[1 - number].name
            await node.events.until(lambda node=node, peer=peer: len(frames(node, peer)) == len(sent))  # type: ignore[misc]
            assert frames(node, peer) == sent
        assert made[0].mesh.pending_bytes("n2") == 0 == made[1].mesh.pending_bytes("n1")


async def test_the_largest_frame_arrives_and_a_larger_one_is_refused(maybe_tls: Tls | None) -> None:
    async with nodes("n1", "n2", tls=maybe_tls, frame_bytes_max=64 << 20) as (one, two):
        big = os.urandom(1 << 20) * 64
        digests: list[bytes] = []
        two.events.react = lambda peer, views: digests.extend(hashlib.sha256(view).digest() for view in views)
        assert one.mesh.send("n2", [big])
        await two.events.until(lambda: bool(digests))
        assert digests == [hashlib.sha256(big).digest()]
        with pytest.raises(ValueError, match="frame"):
            one.mesh.send("n2", [big, bytes(1 << 20)])
        with pytest.raises(ValueError, match="frame"):
            one.mesh.send("n2", [b""])


async def test_one_turn_is_one_batch() -> None:
    """Frames that are queued without a wait in between leave together, and the other side reads them
    together.
    """
    async with nodes("n1", "n2") as (one, two):
        batches: list[int] = []
        two.events.react = lambda peer, views: batches.append(len(views))
        for index in range(300):
            one.mesh.send("n2", [b"%d" % index])
        assert one.mesh.pending_bytes("n2") == sum(4 + len(b"%d" % index) for index in range(300))
        await two.events.until(lambda: len(frames(two, "n1")) == 300)
        whole, rest = divmod(300, FRAMES_AT_ONCE)
        assert batches == [FRAMES_AT_ONCE] * whole + [rest]


async def test_answers_leave_at_the_end_of_the_turn() -> None:
    async with nodes("n1", "n2") as (one, two):

        def echo(peer: str, views: list[memoryview]) -> None:
            for view in views:
                assert two.mesh.send(peer, [bytes(view)])

        two.events.react = echo
        for index in range(50):
            one.mesh.send("n2", [b"%d" % index])
        one.mesh.flush()
        assert one.mesh.pending_bytes("n2") == 0
        await one.events.until(lambda: len(frames(one, "n2")) == 50)
        assert frames(one, "n2") == [b"%d" % index for index in range(50)]


async def test_no_session_no_frame() -> None:
    async with nodes("n1", "n2", start=False) as (one, two):
        assert not one.mesh.send("n2", [b"x"])
        assert not one.mesh.send("nobody", [b"x"])
        assert one.mesh.pending_bytes("n2") == 0
        two.start()
        one.start()
        await all_linked([one, two])
        await two.stop()
        await one.events.until(lambda: one.events.count("down", "n2") == 1)
        assert not one.mesh.send("n2", [b"x"])
        assert one.connected() == set()


@pytest.mark.parametrize("stopped", [0, 1])
async def test_a_session_comes_back_after_a_restart(stopped: int, maybe_tls: Tls | None) -> None:
    """For either of the two, the session is gone with the process, and is there again soon after the process
    is back.
    """
    async with nodes("n1", "n2", tls=maybe_tls) as made:
        survivor = made[1 - stopped]
        name = made[stopped].name
        for generation in range(3):
            await made[stopped].stop()
            await survivor.events.until(lambda: survivor.events.count("down", name) == generation + 1)  # noqa: B023
            # Time enough for the survivor to get no answer, and to wait longer and longer.
            await trio.sleep(0.3)
            made[stopped] = made[stopped].restarted()
            made[stopped].start()
            # The restarted node dials by itself, so the survivor's wait does not matter.
            await all_linked(made)
            assert survivor.events.hellos[name].incarnation == generation + 2
            assert made[stopped].mesh.send(survivor.name, [b"%d" % generation])
            await survivor.events.until(lambda: len(frames(survivor, name)) == generation + 1)  # noqa: B023


async def test_both_dial_at_once_again_and_again() -> None:
    async with nodes("n1", "n2", "n3", retry_min_ms=1) as made:
        for generation in range(1, 15):
            for node in made[:2]:
                node.mesh.drop("n3")
            made[0].mesh.drop("n2")
            for node in made:
                for other in made:
                    if node is not other:
                        await node.events.until(
                            lambda node=node, other=other, down=generation: (  # type: ignore[misc]
                                node.events.count("down", other.name) >= down
                            )
                        )
            await all_linked(made)
        for node in made:
            assert node.mesh.send("n1" if node.name != "n1" else "n2", [b"x"])
        await made[0].events.until(lambda: frames(made[0], "n2") == [b"x"] == frames(made[0], "n3"))


class Proxy:
    """Carries bytes between nodes until told to stop carrying, with the connections left open."""

    def __init__(self, target: Peer) -> None:
        self.target = target
        self.listener = listening()
        self.carrying = True
        self.connections = 0

    def peer(self) -> Peer:
        return Peer(self.target.name, *self.listener.getsockname())

    async def run(self) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        await trio.serve_listeners(self._carry, [listener])

    async def _carry(self, near: trio.SocketStream) -> None:
        self.connections += 1
        try:
            far = await trio.open_tcp_stream(self.target.host, self.target.port)
        except OSError:
            await near.aclose()
            return
        async with near, far, trio.open_nursery() as nursery:

            async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                try:
                    async for data in source:
                        if self.carrying:
                            await sink.send_all(data)
                    if self.carrying:
                        nursery.cancel_scope.cancel()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    nursery.cancel_scope.cancel()

            nursery.start_soon(pump, near, far)
            nursery.start_soon(pump, far, near)


async def test_silent_peer_is_dead_and_comes_back() -> None:
    """The network drops everything without an error."""
    async with nodes("n1", "n2", start=False, dead_ms=300, heartbeat_ms=30) as (one, two):
        to_two, to_one = Proxy(two.address), Proxy(one.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(to_two.run)
            nursery.start_soon(to_one.run)
            one.mesh.add_peer(to_two.peer())
            two.mesh.add_peer(to_one.peer())
            one.start()
            two.start()
            await all_linked([one, two])
            to_one.carrying = to_two.carrying = False
            await one.events.until(lambda: ("down", "n2") in one.events.told)
            await two.events.until(lambda: ("down", "n1") in two.events.told)
            to_one.carrying = to_two.carrying = True
            await one.events.until(lambda: one.events.count("up", "n2") >= 2)
            await all_linked([one, two])
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("restarted", [0, 1])
async def test_half_dead_session_is_replaced(restarted: int) -> None:
    """One node restarts behind a network that keeps the old connection open: its new session takes over at
    once.
    """
    async with nodes("n1", "n2", start=False, dead_ms=60_000, heartbeat_ms=30) as made:
        proxies = [Proxy(node.address) for node in made]
        async with trio.open_nursery() as nursery:
            for proxy in proxies:
                nursery.start_soon(proxy.run)
            made[0].mesh.add_peer(proxies[1].peer())
            made[1].mesh.add_peer(proxies[0].peer())
            for node in made:
                node.start()
            await all_linked(made)
            for proxy in proxies:
                proxy.carrying = False
            survivor, name = made[1 - restarted], made[restarted].name
            await made[restarted].stop()
            assert survivor.connected() == {name}
            made[restarted] = made[restarted].restarted(peers=[survivor.address])
            made[restarted].start()
            await survivor.events.until(lambda: survivor.events.count("up", name) == 2)
            assert survivor.events.hellos[name].incarnation == 2
            await all_linked(made)
            assert survivor.mesh.send(name, [b"hello"])
            await made[restarted].events.until(lambda: frames(made[restarted], survivor.name) == [b"hello"])
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("loser", [0, 1])
async def test_lost_by_one_side_only(loser: int) -> None:
    """Within one incarnation: one node gave the session up, and the other has not noticed."""
    async with nodes("n1", "n2", start=False, dead_ms=60_000, heartbeat_ms=30) as made:
        proxies = [Proxy(node.address) for node in made]
        async with trio.open_nursery() as nursery:
            for proxy in proxies:
                nursery.start_soon(proxy.run)
            made[0].mesh.add_peer(proxies[1].peer())
            made[1].mesh.add_peer(proxies[0].peer())
            for node in made:
                node.start()
            await all_linked(made)
            for proxy in proxies:
                proxy.carrying = False
            other = made[1 - loser]
            made[loser].mesh.add_peer(other.address)
            made[loser].mesh.drop(other.name)
            await other.events.until(lambda: other.events.count("up", made[loser].name) == 2)
            await all_linked(made)
            nursery.cancel_scope.cancel()


async def test_second_node_of_the_same_name_waits() -> None:
    async with nodes("n1", "n2") as (one, two), trio.open_nursery() as nursery:
        arguments = two.arguments | {"identity": "another disk", "incarnation": 50}
        twin = LinkNode("n2", nursery, listening(), **arguments)
        twin.start()
        await refused(twin, "n1")
        assert one.events.count("up", "n2") == 1
        assert twin.connected() == set()
        await two.stop()
        await all_linked([one, twin])
        assert one.events.hellos["n2"].identity == "another disk"
        nursery.cancel_scope.cancel()
    twin.listen.close()


async def test_peer_that_takes_nothing_loses_its_session(maybe_tls: Tls | None) -> None:
    """The queue is bounded, and back-pressure is visible before the queue is full."""
    limit = 32 << 20
    async with nodes("n1", "n2", tls=maybe_tls, queue_bytes_max=limit, read_bytes=4096) as (one, two):
        chunk = bytes(1 << 20)
        highest = accepted = 0
        # There is no wait: meanwhile the other node, in the same loop, takes nothing.
        while one.mesh.send("n2", [chunk]):
            one.mesh.flush()
            accepted += 1
            highest = max(highest, one.mesh.pending_bytes("n2"))
            assert accepted < 1000
        assert limit // 2 < highest <= limit + (1 << 20)
        assert one.connected() == set()
        assert one.events.count("down", "n2") == 0, "told later, not within send"
        await one.events.until(lambda: one.events.count("down", "n2") == 1)
        await all_linked([one, two])
        assert one.mesh.pending_bytes("n2") == 0


async def test_a_frame_may_be_larger_than_the_queue() -> None:
    """A message that does not fit into the queue must not end the link again and again."""
    async with nodes("n1", "n2", queue_bytes_max=1 << 20) as (one, two):
        big = bytes(8 << 20)
        sizes: list[int] = []
        two.events.react = lambda peer, views: sizes.extend(map(len, views))
        assert one.mesh.send("n2", [big])
        assert not one.mesh.send("n2", [b"one more"])
        await one.events.until(lambda: one.events.count("down", "n2") == 1)
        await all_linked([one, two])
        assert one.mesh.send("n2", [big])
        await two.events.until(lambda: len(big) in sizes)
        assert one.events.count("down", "n2") == 1


async def test_what_the_node_above_raises_is_raised_by_run() -> None:
    """The node decides about a defect: the mesh neither swallows it nor takes it for the peer's fault."""

    class Defect(Exception):
        pass

    def defect(peer: str, views: list[memoryview]) -> None:
        raise Defect

    with pytest.RaisesGroup(Defect, flatten_subgroups=True), trio.fail_after(PATIENCE_S):
        async with nodes("n1", "n2") as (one, two):
            one.events.react = defect
            two.mesh.send("n1", [b"x"])
            await trio.sleep_forever()


async def test_peers_come_and_go() -> None:
    async with nodes("n1", "n2") as (one, two), trio.open_nursery() as nursery:
        three = LinkNode("n3", nursery, listening(), peers=[one.address, two.address])
        three.start()
        one.mesh.add_peer(three.address)
        await one.events.until(lambda: one.connected() == {"n2", "n3"})
        assert two.events.count("up", "n3") == 0
        two.mesh.add_peer(three.address)
        await all_linked([one, two, three])
        one.mesh.remove_peer("n3")
        await one.events.until(lambda: one.events.count("down", "n3") == 1)
        await refused(three, "n1")
        assert one.events.count("up", "n3") == 1
        one.mesh.add_peer(three.address)
        await all_linked([one, two, three])
        nursery.cancel_scope.cancel()
    three.listen.close()


async def test_a_node_that_joins_is_admitted_by_name_and_not_dialled() -> None:
    """A node that is about to join is let in by name, and not dialled."""
    async with trio.open_nursery() as nursery:
        one = LinkNode("n1", nursery, listening())
        one.events.welcome.add("n2")
        joining = LinkNode("n2", nursery, listening(), peers=[one.address])
        refused = LinkNode("n3", nursery, listening(), peers=[one.address])
        for node in (one, joining, refused):
            node.start()
        await all_linked([one, joining])
        await until(lambda: set(one.events.wanted) == {"n2", "n3"})
        assert one.connected() == {"n2"}
        nursery.cancel_scope.cancel()
    for node in (one, joining, refused):
        node.listen.close()


async def test_another_secret_is_logged_once_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    """Both sides log this, once, and do not send it to the other."""
    async with nodes("n1", "n2", "n3") as (one, two, three):
        await two.stop()
        wrong = two.restarted(secret=b"another secret of this cluster")
        wrong.start()

        def warnings() -> list[str]:
            return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

        for said in ("proof of the cluster secret is wrong", "without an answer"):
            await until(lambda said=said: any(said in text for text in warnings()))  # type: ignore[misc]
        await refused(wrong, "n1")
        await refused(three, "n2")
        assert wrong.connected() == set()
        assert one.connected() == {"n3"}
        # Four nodes refuse at the port and four dial; each logs at most once in the interval.
        assert len(warnings()) <= 8
        assert not any("secret of" in text for text in warnings())
        await wrong.stop()
        right = two.restarted()
        right.start()
        await all_linked([one, right, three])


async def test_certificate_of_another_authority(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    other = trustme.CA()
    strange = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    for context in strange:
        other.issue_cert("127.0.0.1").configure_cert(context)
        other.configure_trust(context)
    async with nodes("n1", "n2", "n3", tls=tls) as (one, two, three):
        await two.stop()
        wrong = two.restarted(tls=strange)
        wrong.start()
        await until(
            lambda: (
                "CERTIFICATE_VERIFY_FAILED" in caplog.text.upper()
                or "certificate verify failed" in caplog.text
            )
        )
        await refused(wrong, "n1")
        await refused(three, "n2")
        assert wrong.connected() == set()
        assert one.connected() == {"n3"} == three.connected() - {"n1"} | {"n3"}
        await wrong.stop()


def stand_still(seconds: float) -> None:
    """Nothing in this process runs meanwhile, as after SIGSTOP."""
    time.sleep(seconds)


async def test_own_standstill_is_no_silence_of_the_peers() -> None:
    async with nodes("n1", "n2", dead_ms=400, heartbeat_ms=40) as (one, two):
        for _ in range(4):
            stand_still(0.6)
            for _ in range(10):
                await trio.sleep(0.01)
                assert one.connected() == {"n2"}
        assert one.events.count("down", "n2") == 0 == two.events.count("down", "n1")


async def test_idle_links_live() -> None:
    async with nodes("n1", "n2", dead_ms=300, heartbeat_ms=30) as (one, two):
        await trio.sleep(1.0)
        for node in (one, two):
            assert len(node.events.told) == 1
            assert node.events.frames == {}
