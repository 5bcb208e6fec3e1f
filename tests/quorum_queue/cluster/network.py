"""Links as TCP makes them: sessions of two ordered streams, which each end opens and loses at its own
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from quorum_queue.machine import versions

NEW, OPEN, CLOSED = range(3)


class End(Protocol):
    """A node, as links see it."""

    name: str
    alive: bool
    incarnation: int
    #: See quorum_queue.links.handshake.Hello.
    features: tuple[str, ...]
    sessions: dict[str, LinkSession]

    def link_up(self, peer: str, incarnation: int) -> None: ...

    def link_down(self, peer: str) -> None: ...

    def received(self, peer: str, found: list[bytes]) -> None: ...


class LinkSession:
    def __init__(self, ends: tuple[str, str], incarnations: dict[str, int]) -> None:
        self.ends = ends
        self.incarnations = incarnations
        #: The frames under way to each end.
        self.streams: dict[str, deque[bytes]] = {name: deque() for name in ends}
        self.states = dict.fromkeys(ends, NEW)

    def other(self, name: str) -> str:
        return self.ends[1] if name == self.ends[0] else self.ends[0]

    def bytes_to(self, name: str) -> int:
        return sum(map(len, self.streams[name]))


class Network:
    def __init__(self) -> None:
        self.nodes: dict[str, End] = {}
        self.sessions: list[LinkSession] = []
        #: Links, as (from, to), on which nothing arrives.
        self.blocked: dict[tuple[str, str], None] = {}
        #: Nodes that do nothing for a while: what is sent to them waits.
        self.standing: dict[str, None] = {}
        #: The version that the topology would allow queues to be raised to.
        self.version = versions.FIRST

    def connect(self, one: str, two: str) -> None:
        """Begin a session, unless there is one. A handshake needs both directions."""
        nodes = self.nodes
        if not (nodes[one].alive and nodes[two].alive) or self._between(one, two):
            return
        if (one, two) in self.blocked or (two, one) in self.blocked:
            return
        if one in self.standing or two in self.standing:
            return
        incarnations = {name: nodes[name].incarnation for name in (one, two)}
        self.sessions.append(LinkSession((one, two), incarnations))

    def _between(self, one: str, two: str) -> bool:
        return any(
            {one, two} == set(session.ends) and CLOSED not in session.states.values()
            for session in self.sessions
        )

    def send(self, sender: str, to: str, frame: bytes) -> bool:
        session = self.nodes[sender].sessions.get(to)
        if session is None:
            return False
        if session.states[to] != CLOSED:
            session.streams[to].append(frame)
        return True

    def places(self) -> list[tuple[LinkSession, str]]:
        """Return the ends of sessions at which something may happen now."""
        found: list[tuple[LinkSession, str]] = []
        for session in self.sessions:
            for name in session.ends:
                if name in self.standing:
                    continue
                state, other = session.states[name], session.other(name)
                if state == NEW:
                    ready = session.states[other] != CLOSED
                else:
                    clear = (other, name) not in self.blocked
                    ready = (
                        state == OPEN
                        and clear
                        and (bool(session.streams[name]) or session.states[other] == CLOSED)
                    )
                if ready:
                    found.append((session, name))
        return found

    def go_on(self, session: LinkSession, name: str, frames_max: int = 1) -> str:
        """Do the next thing at one end; return what it was. A few frames may come with one read."""
        node, other = self.nodes[name], session.other(name)
        if session.states[name] == NEW:
            old = node.sessions.get(other)
            if old is not None:
                self.close(old, name)
            session.states[name] = OPEN
            node.sessions[other] = session
            node.link_up(other, session.incarnations[other])
            return f"{name} has a link to {other}"
        if session.streams[name]:
            stream = session.streams[name]
            frames = [stream.popleft() for _ in range(min(frames_max, len(stream)))]
            node.received(other, frames)
            return f"{name} gets frames of kinds {[frame[0] for frame in frames]} from {other}"
        self.close(session, name)
        return f"{name} sees the end of its link to {other}"

    def close(self, session: LinkSession, name: str) -> None:
        """One end closes the session; the other end learns of it after the frames that are under way."""
        state, session.states[name] = session.states[name], CLOSED
        session.streams[name].clear()
        other = session.other(name)
        if session.states[other] != OPEN:
            session.states[other] = CLOSED
            self.sessions.remove(session)
        if state == OPEN:
            node = self.nodes[name]
            del node.sessions[other]
            if node.alive:
                node.link_down(other)

    def crashed(self, name: str, cut: Callable[[], bool]) -> None:
        """A node is gone. `cut` says of its last frames, one by one, which never arrive."""
        for session in [session for session in self.sessions if name in session.ends]:
            stream = session.streams[session.other(name)]
            while stream and cut():
                stream.pop()
            self.close(session, name)
