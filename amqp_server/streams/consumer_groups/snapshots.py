"""Snapshots of a consumer group in a cluster, made, read and dropped in steps: a group may have hundreds of
thousands of runs of unacked messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from quorum_queue.boundary import Unit
from quorum_queue.cluster.snapshots.state_of import unreadable
from quorum_queue.consumer_groups.entries import CodecError
from quorum_queue.consumer_groups.replica import GroupReplica
from quorum_queue.consumer_groups.snapshot import Reading, View
from quorum_queue.host import Ended
from quorum_queue.ports import Turn
from quorum_queue.steps import in_later_steps, in_steps


class Host(Unit, Protocol):
    """The host of the group."""

    replica: GroupReplica
    #: A snapshot of the leader that was read, and its replica.
    read: tuple[bytes, GroupReplica] | None
    ended: Ended

    def new_replica(self) -> GroupReplica:
        """Return an empty replica."""


def encode_in_parts(host: Host, turn: Turn, then: Callable[[bytes], None]) -> None:
    """Encode the state of this moment, some of it in each turn."""
    in_steps(turn, _encode(host, View(host.replica), then), host.failed)


def _encode(host: Host, view: View, then: Callable[[bytes], None]) -> Iterator[None]:
    while not host.ended:
        if not view.go_on():
            then(view.state())
            return
        yield


def read_in_parts(
    host: Host, turn: Turn, state: bytes, wanted: Callable[[], bool], then: Callable[[], None]
) -> None:
    """Read a snapshot of another node, some of it in each turn, as long as it is wanted."""
    in_steps(turn, _read(host, state, wanted, then), host.failed)


def _read(host: Host, state: bytes, wanted: Callable[[], bool], then: Callable[[], None]) -> Iterator[None]:
    replica = host.new_replica()
    reading = Reading(state, replica)
    while not host.ended and wanted():
        if not _has_more(reading):
            host.read = state, replica
            then()
            return
        yield


def _has_more(reading: Reading) -> bool:
    try:
        return reading.go_on()
    except CodecError as error:
        raise unreadable(error) from None


def drop(host: Host, turn: Turn, replica: GroupReplica) -> None:
    """Free what a replica has that is not needed any more."""
    in_later_steps(turn, replica.let_go(), host.failed)


__all__ = ["drop", "encode_in_parts", "read_in_parts"]
