"""Passes a peer's frame about a queue or its Raft group to its handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from quorum_queue.boundary import Unit
from quorum_queue.cluster import frames
from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.leaving import has_left
from quorum_queue.cluster.ports import Links
from quorum_queue.cluster.queues import events
from quorum_queue.cluster.queues.guests import Guests
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas


class Elsewhere(Unit, Protocol):
    """The host of a queue that is on other nodes."""

    def received(self, found: list[tuple[Any, ...]]) -> None: ...


class Member(Unit, Protocol):
    """The host of a queue that this node is a member of."""

    @property
    def group(self) -> Group: ...

    def let_go(self, node: str, incarnation: int) -> None: ...


class QueueHosts(Protocol):
    """The hosts of this node's queues; see amqp_server.cluster.hosts."""

    @property
    def remote(self) -> Mapping[int, Elsewhere]: ...

    @property
    def grouped(self) -> Mapping[int, Member]: ...

    def left(self, queue_id: int) -> None:
        """This node is no longer a member of the queue's group."""


class Dispatch:
    """One handler for each kind of frame."""

    def __init__(
        self, replicas: Replicas, links: Links, guests: Guests, hosts: QueueHosts, reach: Reach
    ) -> None:
        self._replicas = replicas
        self._links = links
        self._guests = guests
        self._hosts = hosts
        self._reach = reach
        self._contain = replicas.contain

    def frame(self, peer: str, frame: memoryview) -> None:
        """Take one frame. Raises frames.FrameError, CodecError: the peer is broken."""
        kind = frame[0]
        if kind == frames.RAFT:
            self._replicas.received(peer, frame)
        elif kind == frames.QUEUE:
            self._guests.received(peer, frame)
        elif kind == frames.EVENTS:
            queue_id, head, bodies = frames.parse_events(frame)
            host = self._hosts.remote.get(queue_id)
            if host is not None:
                self._contain(host, host.received, events.decode(head, bodies))
        elif kind == frames.LEAVING:
            self._peer_leaves(peer, frames.parse_group(frame))
        elif kind == frames.LEFT:
            self._hosts.left(frames.parse_group(frame))
        elif kind == frames.STOPPED:
            self._peer_stopped(peer, *frames.parse_stopped(frame))
        else:
            self._replicas.received(peer, frame)

    def _peer_leaves(self, peer: str, group_id: int) -> None:
        """A node that is to leave a group asks whether the group has removed it."""
        group = self._replicas.groups.get(group_id)
        if group is not None and has_left(group, peer, self._reach):
            self._links.send(peer, frames.left(group_id))

    def _peer_stopped(self, peer: str, queue_id: int, incarnation: int) -> None:
        """A member of a queue has failed: its consumers are gone."""
        host = self._hosts.grouped.get(queue_id)
        if host is not None and host.group.is_leader:
            self._contain(host, host.let_go, peer, incarnation)
            self._contain(host, host.group.show_majority, peer)
