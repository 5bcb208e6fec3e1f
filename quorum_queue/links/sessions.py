"""The sessions of a node: chooses the connections for them, and reports their events in turns."""

from __future__ import annotations

import logging
import struct
from time import monotonic

import trio

from quorum_queue.links.framing import FrameReader
from quorum_queue.links.handshake import Hello, PeerRefused, Standing
from quorum_queue.links.handshake_io import read_message, write_message
from quorum_queue.links.open_sessions import OpenSessions
from quorum_queue.links.ports import Events, LinkOptions, Peer, Poll, Wire
from quorum_queue.links.session import LinkSession
from quorum_queue.links.session_choice import decides, follows, takes
from quorum_queue.links.steady_clock import SteadyClock
from quorum_queue.shared_ticks import now_ms, until_beat_s

logger = logging.getLogger("mqd.links")

#: A session that lasted this long counts as good: a redial after its end is no further failure.
GOOD_SESSION_S = 1.0

START = b"\x01"
ADOPTED = struct.Struct(">Q")


class Candidate:
    """A connection that got START and has not answered ADOPTED yet."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.scope = trio.CancelScope()


class Pair:
    """This node and one peer. Kept for ever: few names come with a proof of the secret."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: None if the peer is known only because it dialled us.
        self.address: Peer | None = None
        self.session: LinkSession | None = None
        self.candidate: Candidate | None = None
        self.dialling: trio.CancelScope | None = None
        self.unlinked = trio.Event()
        #: Number of attempts and short sessions since the last good session.
        self.failures = 0
        self.had_session = False


class LinkSessions:
    """At most one session with each peer."""

    #: Set before the first connection.
    events: Events
    poll: Poll

    def __init__(self, node: str, options: LinkOptions) -> None:
        self.node = node
        self._options = options
        self.pairs: dict[str, Pair] = {}
        #: The address at which each peer was last: its connections have places of their own.
        self.addresses: dict[str, str] = {}
        self._flush_wanted = trio.Event()
        self.outgoing = OpenSessions(lambda: self._flush_wanted.set())
        self.open = self.outgoing.by_peer
        #: Number of sessions that this node has begun because the peer decided so.
        self._adopted = 0
        #: Buffer shared by all links: filled and emptied between two waits.
        self._shared = memoryview(bytearray(options.read_bytes))
        self._clock = SteadyClock(0.0, 2 * options.heartbeat_ms / 1000)

    def pair(self, name: str) -> Pair:
        """Return the pair with this peer; make it if necessary."""
        pair = self.pairs.get(name)
        if pair is None:
            pair = self.pairs[name] = Pair(name)
        return pair

    def standing(self, name: str) -> Standing:
        """Return this node's standing with the peer, for the handshake."""
        session = self.open.get(name)
        return Standing(self._adopted, session is not None and not session.closed)

    def seen_s(self) -> float:
        """Return the steady time."""
        return self._clock.at(monotonic())

    async def authenticated(self, wire: Wire, hello: Hello, standing: Standing) -> None:
        """Agree with the peer whether this connection is the session, and serve it if so. Raises Refused,
        OSError.
        """
        refusal = self.events.refusal(hello)
        if refusal:
            raise PeerRefused(refusal, suspect=True)
        pair = self.pair(hello.name)
        if decides(self.node, hello.name):
            adopted_as = await self._offer(pair, wire, hello, standing)
            if adopted_as is None:
                return
            await self._serve(pair, wire, hello, adopted_as, [])
        else:
            await self._expect_start(wire, hello)
            if pair.session is not None and not follows(hello, pair.session.hello):
                raise _another(hello)
            self._adopted += 1
            await self._serve(pair, wire, hello, self._adopted, [ADOPTED.pack(self._adopted)])

    async def _expect_start(self, wire: Wire, hello: Hello) -> None:
        with trio.fail_after(self._options.dead_ms / 1000):
            if await read_message(wire) != START:
                raise PeerRefused(f"{hello.name!r} breaks the protocol")

    async def _offer(self, pair: Pair, wire: Wire, hello: Hello, standing: Standing) -> int | None:
        """Say START if this connection is to be the session; return the number under which the peer adopted
        it.
        """
        old, session = pair.candidate, pair.session
        if old is not None:
            if not takes(hello, standing, old.hello, None):
                return _pass_over(hello, old.hello)
            old.scope.cancel()
        if session is not None and not takes(hello, standing, session.hello, session.adopted_as):
            return _pass_over(hello, session.hello)
        candidate = pair.candidate = Candidate(hello)
        adopted_as: int | None = None
        try:
            with candidate.scope, trio.move_on_after(self._options.dead_ms / 1000):
                await write_message(wire, START)
                message = await read_message(wire)
                if len(message) != ADOPTED.size:
                    raise PeerRefused(f"{hello.name!r} breaks the protocol")
                (adopted_as,) = ADOPTED.unpack(message)
            return adopted_as if pair.candidate is candidate else None
        finally:
            if pair.candidate is candidate:
                pair.candidate = None

    async def _serve(self, pair: Pair, wire: Wire, hello: Hello, adopted_as: int, first: list[bytes]) -> None:
        """`first` is the first frame of the session, if it is there already."""
        ended = trio.Event()
        session = LinkSession(
            wire,
            hello,
            adopted_as,
            self._options,
            FrameReader(self._shared, self._options.frame_bytes_max),
            self._clock,
            monotonic,
            self.poll,
            self.events.received,
            ended.set,
        )
        if first:
            session.send(first)
        if pair.session is not None:
            self._end(pair, pair.session, "the peer has restarted")
        pair.session = self.open[pair.name] = session
        pair.unlinked = trio.Event()
        pair.had_session = True
        logger.info("link to %s up (incarnation %d)", pair.name, session.hello.incarnation)
        self.events.link_up(pair.name, session.hello)
        session.flush()
        try:
            session.begin()
            await ended.wait()
        finally:
            self._end(pair, session, "this node stops")

    def _end(self, pair: Pair, session: LinkSession, reason: str) -> None:
        session.close(reason)
        if pair.session is not session:
            return
        pair.session = None
        self.outgoing.remove(session)
        if self.seen_s() - session.began >= GOOD_SESSION_S:
            pair.failures = 0
        pair.unlinked.set()
        logger.info("link to %s down: %s", pair.name, session.reason)
        self.events.link_down(pair.name)

    async def flush_on_demand(self) -> None:
        """Send frames that were queued outside of turns, as soon as the task that queued them waits."""
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted = trio.Event()
            self.outgoing.flush()

    async def keep_time(self) -> None:
        """Send keep-alives and end the sessions of silent peers."""
        dead_s = self._options.dead_ms / 1000
        while True:
            await trio.sleep(until_beat_s(self._options.heartbeat_ms, now_ms()))
            self._clock.tick(monotonic())
            seen = self.seen_s()
            for session in list(self.open.values()):
                if seen - session.heard_at > dead_s:
                    session.close(f"silent for {dead_s:g} s")
                else:
                    session.keep_alive()


def _another(hello: Hello) -> PeerRefused:
    return PeerRefused(f"another {hello.name!r} has a session already", suspect=True)


def _pass_over(new: Hello, old: Hello) -> int | None:
    """Keep the present connection."""
    if not follows(new, old):
        raise _another(new)
    return None
