"""A process is stopped and continued, as by SIGSTOP and SIGCONT."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import trio

from .nodes import OPTIONS, LinkNode, listening

ROOT = Path(__file__).parents[3]


async def test_stopped_process_keeps_its_session_if_its_peer_waits() -> None:
    """The stop is longer than a peer may be silent; but the peer's frames wait in the socket meanwhile."""
    await stop_and_go_on(dead_ms=60_000, sessions=1)


async def test_stopped_process_is_dead_for_its_peer_until_it_goes_on() -> None:
    await stop_and_go_on(dead_ms=300, sessions=4)


def other_node(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.quorum_queue.links.stopped_node", str(port)], cwd=ROOT
    )


async def stop_and_go_on(*, dead_ms: int, sessions: int) -> None:
    """Stop one of two nodes three times. The other node sees one session throughout, or at least one more
    after each time: the stopped one may be without the processor for as long as it takes to count as dead.
    """
    async with trio.open_nursery() as nursery:
        one = LinkNode(
            "n1",
            nursery,
            listening(),
            options=replace(OPTIONS, dead_ms=dead_ms, heartbeat_ms=40),
        )
        one.events.welcome.add("n2")
        one.start()
        process = other_node(one.address.port)
        try:
            await one.events.until(lambda: one.connected() == {"n2"})
            for _ in range(3):
                process.send_signal(signal.SIGSTOP)
                if sessions == 1:
                    await trio.sleep(1.0)
                    assert one.connected() == {"n2"}
                else:
                    await one.events.until(lambda: one.connected() == set())
                process.send_signal(signal.SIGCONT)
                await one.events.until(lambda: one.connected() == {"n2"})
                await trio.sleep(0.3)
            assert one.events.count("up", "n2") == sessions or one.events.count("up", "n2") >= sessions > 1
        finally:
            process.kill()
            process.wait()
            nursery.cancel_scope.cancel()
            one.listen.close()
    one.events.check_alternation()
