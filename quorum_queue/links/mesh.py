"""All links of a node."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Collection, Iterable

import trio

from quorum_queue.links import local_sockets
from quorum_queue.links.accepting import Accepting
from quorum_queue.links.dialling import Dialling
from quorum_queue.links.handshake import Hello, Keys, check_size
from quorum_queue.links.handshake_io import Greeter
from quorum_queue.links.plain_wire import PlainWire
from quorum_queue.links.ports import Events, LinkOptions, Peer, Poll, Wire
from quorum_queue.links.rate_limited_log import SeldomLog
from quorum_queue.links.sessions import LinkSessions
from quorum_queue.links.shared_port import ONE_PROCESS, Processes
from quorum_queue.links.wire import TlsWire

logger = logging.getLogger("mqd.links")


class Mesh:
    """One session with each peer that can be reached. All methods but `run` are for the loop's thread and do
    not wait.
    """

    def __init__(
        self,
        *,
        node: str,
        incarnation: int,
        identity: str,
        cluster: str,
        listens: Collection[socket.socket],
        peers: Iterable[Peer],
        secret: bytes,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None,
        options: LinkOptions,
        version: int = 1,
        features: Iterable[str] = (),
        processes: Processes = ONE_PROCESS,
    ) -> None:
        """`tls` is (server's context, client's context). The caller keeps ownership of `listens`.

        Raises ValueError for a secret too short, or names too long.
        """
        hello = Hello(node, incarnation, identity, version, tuple(features))
        check_size(cluster, hello)
        self._listens = listens
        self._tls = tls
        sessions = self._sessions = LinkSessions(node, options)
        #: Queue one frame, the parts concatenated; False if there is no session. It is sent at the end of
        #: this turn. Big parts are not copied. Raises ValueError if the frame is empty or longer than a frame
        #: may be.
        self.send = sessions.outgoing.send
        #: The turn calls `flush` at its end, so queued frames need not be sent before.
        self.turn_begins = sessions.outgoing.turn_begins
        #: Send the queued frames. Frames queued outside of turns are sent without this call.
        self.flush = sessions.outgoing.flush
        #: Return the peers to which the next `flush` sends something.
        self.waiting = sessions.outgoing.waiting
        greeter = Greeter(Keys(secret), cluster, hello, os.urandom, self._sessions.standing)
        log = SeldomLog(logger, options.log_interval_ms / 1000, trio.current_time)
        self._accepting = Accepting(self._sessions, greeter, options, self._wire, log, processes)
        #: Take a connection that another process of this node has accepted, and passed on.
        self.take = self._accepting.take
        self._dialling = Dialling(self._sessions, greeter, options, self._wire, log)
        self._nursery: trio.Nursery | None = None
        for peer in peers:
            self.add_peer(peer)

    async def run(self, events: Events, poll: Poll) -> None:
        """Accept and dial until cancelled, and notify `events`; its `received` is called by the poll."""
        self._sessions.events = events
        self._sessions.poll = poll
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for pair in self._sessions.pairs.values():
                    self._dialling.start(nursery, pair)
                nursery.start_soon(self._sessions.keep_time)
                nursery.start_soon(self._sessions.flush_on_demand)
                await self._accepting.run(self._listens)
        finally:
            self._nursery = None

    def pending_bytes(self, peer: str) -> int:
        """Return the bytes that are queued for the peer and that the socket has not taken yet."""
        session = self._sessions.open.get(peer)
        return 0 if session is None else session.pending_bytes

    def arrived_bytes(self, peer: str) -> int:
        """Return the bytes of a frame from the peer that has not come completely."""
        session = self._sessions.open.get(peer)
        return 0 if session is None else session.arrived_bytes

    def connected(self) -> Collection[str]:
        """Return the peers with a session."""
        return [name for name, session in self._sessions.open.items() if not session.closed]

    def features_of(self, peer: str) -> Collection[str]:
        """Return the features that a connected peer has announced; none of a peer that is not connected."""
        session = self._sessions.open.get(peer)
        return () if session is None else session.hello.features

    def add_peer(self, peer: Peer) -> None:
        """Dial this peer from now on, or dial it at this new address."""
        if peer.name == self._sessions.node:
            return
        pair = self._sessions.pair(peer.name)
        pair.address = peer
        if self._nursery is not None:
            self._dialling.start(self._nursery, pair)

    def remove_peer(self, peer: str) -> None:
        """End the session; do not dial the peer, and let it in only if the events admit it."""
        pair = self._sessions.pairs.get(peer)
        if pair is not None:
            pair.address = None
            self._sessions.addresses.pop(peer, None)
            self.drop(peer)
            if pair.dialling is not None:
                pair.dialling.cancel()
                pair.dialling = None

    def drop(self, peer: str) -> None:
        """End the session; the next one may begin at once. `link_down` comes soon, not during this call."""
        session = self._sessions.open.get(peer)
        if session is not None:
            session.close("dropped by this node")

    def use_tls(self, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> None:
        """Use these contexts for new links."""
        self._tls = tls

    def _wire(self, sock: socket.socket, server_host: str | None) -> Wire:
        """`server_host` is None for a connection that the other side made."""
        local_sockets.prepare(sock)
        if self._tls is None or sock.family == socket.AF_UNIX:
            return PlainWire(sock)
        context = self._tls[0] if server_host is None else self._tls[1]
        return TlsWire(sock, context, server_host=server_host)
