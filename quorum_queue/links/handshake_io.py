"""The handshake over a wire: it reads no byte beyond the handshake, and holds no more than one message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum_queue.links.framing import HEAD
from quorum_queue.links.handshake import (
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    Acceptor,
    Dialler,
    Hello,
    Keys,
    PeerRefused,
    Standing,
)
from quorum_queue.links.ports import Wire
from quorum_queue.links.wire import readable, writable


class EndedError(ConnectionError):
    """The other side closed the connection."""


@dataclass(frozen=True)
class Greeter:
    """How this node introduces itself."""

    keys: Keys
    cluster: str
    hello: Hello
    #: Returns nonces.
    random: Callable[[int], bytes]
    #: Returns this node's present standing with a peer.
    standing: Callable[[str], Standing]

    async def dial(self, wire: Wire, to: str) -> tuple[Hello, Standing]:
        """Raises Refused, OSError."""
        dialler = Dialler(self.keys, self.cluster, self.hello, to, self.random(NONCE_BYTES))
        await write_message(wire, dialler.open())
        try:
            answer = await read_message(wire)
        except EndedError:
            # A dying process resets the connection; this peer has read our message, and closed.
            raise PeerRefused(
                "it closed the connection without an answer: its cluster secret or cluster name differs, or "
                f"{self.hello.name!r} is not among its peers",
                suspect=True,
            ) from None
        finish, hello, standing = dialler.answer(answer, self.standing(to))
        await write_message(wire, finish)
        return hello, standing

    async def accept(self, wire: Wire, opened: Callable[[Hello], None]) -> tuple[Hello, Standing]:
        """Calls `opened` with the dialler's claimed identity; it may raise
        Refused. Raises Refused, OSError.
        """
        acceptor = Acceptor(self.keys, self.cluster, self.hello, self.random(NONCE_BYTES))
        hello = acceptor.opened(await read_message(wire))
        opened(hello)
        await write_message(wire, acceptor.answer(self.standing(hello.name)))
        return hello, acceptor.finish(await read_message(wire))


async def read_message(wire: Wire) -> bytes:
    """Raises Refused, OSError."""
    (size,) = HEAD.unpack(await _exactly(wire, HEAD.size))
    if size > MESSAGE_BYTES_MAX:
        raise PeerRefused("it does not speak this protocol")
    return bytes(await _exactly(wire, size))


async def write_message(wire: Wire, message: bytes) -> None:
    """Raises OSError."""
    rest = memoryview(HEAD.pack(len(message)) + message)
    while rest:
        rest = rest[wire.send([rest]) :]
        if rest:
            await writable(wire)
    while wire.pending_bytes:
        await writable(wire)


async def _exactly(wire: Wire, count: int) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        await readable(wire)
        came = wire.receive([rest])
        if came == 0:
            raise EndedError("the connection ended within the handshake")
        rest = rest[came or 0 :]
    return data
