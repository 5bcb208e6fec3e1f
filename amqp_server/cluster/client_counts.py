"""Counts connections and channels of clients on each node, so that limits hold in the whole cluster.

Nodes exchange counts only while there is a limit: all counts at first and on each new link, then changed ones
once in a turn. Clients that connect to two nodes at the same moment may exceed a limit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from amqp_server.broker.topology.limits import OperatorLimits
from amqp_server.broker.topology.sessions import Counts, Sessions
from amqp_server.turn import Turn
from quorum_queue.cluster import frames


class Links(Protocol):
    def send(self, peer: str, parts: list[bytes]) -> bool: ...

    def connected(self) -> Collection[str]: ...

    def features_of(self, peer: str) -> Collection[str]: ...


class ClientsWord(msgspec.Struct, frozen=True, array_like=True):
    """A message with counts of one node."""

    #: True if it has all counts of the node, else the changed ones.
    whole: bool
    #: Kind, name of the user or the vhost, and count.
    counts: list[tuple[int, str, int]]


class ClientCounts:
    """See amqp_server.turn.Gatherer."""

    def __init__(self, links: Links, turn: Turn, sessions: Sessions, limits: OperatorLimits) -> None:
        self._links = links
        self._turn = turn
        self._sessions = sessions
        self._limits = limits
        #: Nodes that know all of this node's counts except for recent changes.
        self._told: dict[str, None] = {}
        self._changed: dict[tuple[int, str], None] = {}
        self._of_others: dict[str, Counts] = {}
        sessions.subscribe(self._count_changed)
        limits.subscribe(self._limits_changed)

    def _count_changed(self, kind: int, name: str) -> None:
        if self._told:
            self._changed[kind, name] = None
            self._turn.gather(self)

    def _limits_changed(self) -> None:
        self._turn.gather(self)

    def link_up(self, peer: str) -> None:
        self._told.pop(peer, None)
        self._turn.gather(self)

    def link_down(self, peer: str) -> None:
        self._told.pop(peer, None)

    def node_down(self, node: str) -> None:
        """A node that is down has no clients."""
        self._of_others.pop(node, None)
        self._sessions.others_have(node, {})

    def flush(self) -> None:
        changed, self._changed = self._changed, {}
        if not self._limits.any:
            self._told.clear()
            return
        counts = self._sessions.counts
        news = _word(counts, changed, whole=False) if changed else None
        for peer in self._links.connected():
            if frames.CLIENTS_FEATURE not in self._links.features_of(peer):
                continue
            word = news if peer in self._told else _word(counts, counts, whole=True)
            if word is not None and not self._links.send(peer, word):
                self._told.pop(peer, None)
            else:
                self._told[peer] = None

    def heard(self, peer: str, frame: memoryview) -> None:
        """Take counts of another node. Raises msgspec.MsgspecError."""
        word = msgspec.msgpack.decode(frame[1:], type=ClientsWord)
        told: Counts = {} if word.whole else self._of_others.get(peer, {})
        for kind, name, count in word.counts:
            if count:
                told[kind, name] = count
            else:
                told.pop((kind, name), None)
        self._of_others[peer] = told
        self._sessions.others_have(peer, told)


def _word(counts: Counts, keys: Collection[tuple[int, str]], *, whole: bool) -> list[bytes]:
    rows = [(kind, name, counts.get((kind, name), 0)) for kind, name in keys]
    return [bytes((frames.CLIENTS,)), msgspec.msgpack.encode(ClientsWord(whole, rows))]
