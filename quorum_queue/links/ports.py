"""What a mesh is told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum_queue.links.handshake import Hello


@dataclass(frozen=True)
class Peer:
    """Where another node of the cluster listens for links."""

    name: str
    host: str
    port: int


@dataclass(frozen=True)
class LinkOptions:
    """Limits and intervals of all links of a node."""

    #: Payload of one frame: an entry of 64 MiB and what is said about it.
    frame_bytes_max: int = (64 << 20) + (64 << 10)
    #: Queued for one peer and not yet taken by its socket; a peer that lets more gather loses its session.
    queue_bytes_max: int = 256 << 20
    #: Taken from a socket by one read, shared by all links.
    read_bytes: int = 1 << 20
    #: A keep-alive leaves when nothing else did for so long.
    heartbeat_ms: int = 100
    #: A session silent for so long is over.
    dead_ms: int = 1_000
    #: For a connection to the peer's address.
    dial_ms: int = 1_000
    #: From the connection to the end of authentication, TLS included.
    handshake_ms: int = 5_000
    #: Between attempts to dial, growing from the one to the other, with jitter.
    retry_min_ms: int = 50
    retry_max_ms: int = 1_000
    #: Connections that have not proved yet that they know the secret; the oldest makes room for the next.
    half_open_max: int = 32
    #: Warnings of one sort are logged once in so long, with the number of those left out.
    log_interval_ms: int = 5_000


class Events(Protocol):
    """The node above: called on the loop, without waiting; it must be fast.

    What a peer sends may be wrong: then the node drops the peer. An exception out of these is a defect, and ends `run`.
    """

    def link_up(self, peer: str, hello: Hello) -> None:
        """A session with this peer begins. What is sent from now on belongs to it."""

    def link_down(self, peer: str) -> None:
        """The session is over; what was queued for it is gone. Follows each `link_up` exactly once."""

    def admits(self, peer: str) -> bool:
        """True if a node that is no peer may have a session: one that is about to join."""

    def refusal(self, hello: Hello) -> str:
        """Return why there can be no session with this authenticated node now; nothing if there can."""

    def received(self, peer: str, frames: list[memoryview]) -> None:
        """All complete frames of one read, in order. The views are good during this call only."""


__all__ = ["Events", "Hello", "LinkOptions", "Peer"]
