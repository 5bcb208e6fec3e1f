"""The mesh's options, and the events that it reports."""

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

    #: Payload of one frame: an entry of 64 MiB and its fields.
    frame_bytes_max: int = (64 << 20) + (64 << 10)
    #: Bytes queued for one peer and not yet taken by its socket; with more the peer loses its session.
    queue_bytes_max: int = 256 << 20
    #: Bytes of one read from a socket; all links share the buffer.
    read_bytes: int = 1 << 20
    #: A keep-alive is sent when no other frame was sent for so long.
    heartbeat_ms: int = 100
    #: A session that is silent for so long ends.
    dead_ms: int = 1_000
    #: Time for a connection to the peer's address.
    dial_ms: int = 1_000
    #: Time from the connection to the end of authentication, TLS included.
    handshake_ms: int = 5_000
    #: Pause between attempts to dial, growing from the first to the second, with jitter.
    retry_min_ms: int = 50
    retry_max_ms: int = 1_000
    #: Unauthenticated connections; the oldest makes room for the next.
    half_open_max: int = 32
    #: A sort of warning is logged once in this time, with the number of those left out.
    log_interval_ms: int = 5_000


class Events(Protocol):
    """The node above: called on the loop, without waiting; it must be fast.

    If a peer sends something wrong, the node drops the peer. An exception of these methods is a defect, and
    ends `run`.
    """

    def link_up(self, peer: str, hello: Hello) -> None:
        """A session with this peer begins. Frames sent from now on belong to it."""

    def link_down(self, peer: str) -> None:
        """The session is over; its queued frames are lost. Follows each `link_up` exactly once."""

    def admits(self, peer: str) -> bool:
        """Return whether a node that is no peer may have a session: one that is about to join."""

    def refusal(self, hello: Hello) -> str:
        """Return why there can be no session with this authenticated node now; nothing if there can."""

    def received(self, peer: str, frames: list[memoryview]) -> None:
        """All complete frames of one read, in order. The views are valid during this call only."""


__all__ = ["Events", "Hello", "LinkOptions", "Peer"]
