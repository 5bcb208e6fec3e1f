"""A node in a process of its own: python -m tests.quorum_queue.links.stopped_node PORT-OF-N1."""

from __future__ import annotations

import sys
from dataclasses import replace

import trio

from quorum_queue.links.ports import Peer

from .nodes import OPTIONS, LinkNode, listening


async def main() -> None:
    async with trio.open_nursery() as nursery:
        options = replace(OPTIONS, dead_ms=400, heartbeat_ms=40)
        peers = [Peer("n1", "127.0.0.1", int(sys.argv[1]))]
        LinkNode("n2", nursery, listening(), peers=peers, options=options).start()


if __name__ == "__main__":
    trio.run(main)
