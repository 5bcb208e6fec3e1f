"""The mesh's options, the events that it reports, and what it needs: wires, and a poll of their sockets."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from quorum_queue.links.handshake import Hello

if TYPE_CHECKING:
    from quorum_queue.links.session import LinkSession


@dataclass(frozen=True)
class Peer:
    """Where another node of the cluster listens for links."""

    name: str
    host: str
    port: int
    #: Its number among the processes that share this address; see shared_port.
    process: int = 0


@dataclass(frozen=True)
class LinkOptions:
    """Limits and intervals of all links of a node."""

    #: Payload of one frame: the largest entry and its fields.
    frame_bytes_max: int = 192 << 20
    #: Bytes queued for one peer and not yet taken by its socket. With more, the next frame ends the session.
    #: One frame may be larger.
    queue_bytes_max: int = 256 << 20
    #: Bytes of one read from a socket; all links share the buffer.
    read_bytes: int = 1 << 20
    #: After this time, the rest of many small frames waits until everything else had its turn.
    read_s: float = inf
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
    #: Each sort of warning is logged once in this time, with the number of omitted ones.
    log_interval_ms: int = 5_000


class Wire(Protocol):
    """Bytes to and from a socket; nothing waits. See plain_wire.PlainWire, wire.TlsWire."""

    @property
    def pending_bytes(self) -> int:
        """Bytes taken by `send` and not yet by the socket."""

    @property
    def more(self) -> bool:
        """True if `receive` may return something though the socket is not readable."""

    def fileno(self) -> int: ...

    def receive(self, buffers: list[memoryview]) -> int | None:
        """Fill the buffers in order with received bytes; return their count, 0 at the end, None if there were
        none.
        """

    def send(self, chunks: list[bytes | memoryview]) -> int:
        """Return how many bytes of the chunks were taken: all, some, or none."""

    def push(self) -> None:
        """Move bytes that `send` has taken before to the socket."""

    def close(self) -> None: ...


class Poll(Protocol):
    """Calls sessions, within a turn, when their sockets are ready. See amqp_server.connection.sockets."""

    def watch_link(self, session: LinkSession, *, writable: bool) -> None:
        """Call its `read` whenever its socket is readable, and its `writable` when there is room, if asked
        for.
        """

    def forget_link(self, session: LinkSession) -> None: ...

    def read_again(self, session: LinkSession) -> None:
        """Call its `read` once more, even if its socket is not readable."""


class Events(Protocol):
    """The node above: the mesh calls it on the loop, without waiting; it must be fast.

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
        """Return the reason why there can be no session with this
        authenticated node now; empty if there can.
        """

    def received(self, peer: str, frames: list[memoryview]) -> None:
        """All complete frames of one read, in order. The views are valid during this call only."""


__all__ = ["Events", "Hello", "LinkOptions", "Peer", "Poll", "Wire"]
