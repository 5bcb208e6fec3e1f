"""Snapshots of quorum queues in parts: many messages take longer to encode, or to read, than a turn may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from quorum_queue.errors import Unreadable
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.snapshots import snapshot
from quorum_queue.steps import in_steps

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.member_host import GroupHost


def encode_in_parts(host: GroupHost, then: Callable[[bytes], None]) -> None:
    """Encode the state of this moment, a part in each turn."""
    in_steps(host.services.turn, _encode(host, host.replica.view(), then), host.failed)


def _encode(host: GroupHost, view: snapshot.View, then: Callable[[bytes], None]) -> Iterator[None]:
    while not host.ended:
        if not view.go_on():
            then(view.replica())
            return
        yield
    view.end()


def read_in_parts(
    host: GroupHost, state: bytes, wanted: Callable[[], bool], then: Callable[[], None]
) -> None:
    """Read a snapshot of another node, a part in each turn, as long as it is wanted. Raises Unreadable."""
    in_steps(host.services.turn, _read(host, state, wanted, then), host.failed)


def _read(
    host: GroupHost, state: bytes, wanted: Callable[[], bool], then: Callable[[], None]
) -> Iterator[None]:
    reading = snapshot.Reading(state)
    while not host.ended and wanted():
        if not _has_more(reading):
            host.read = state, QueueReplica.of(reading)
            then()
            return
        yield


def _has_more(reading: snapshot.Reading) -> bool:
    try:
        return reading.go_on()
    except CodecError as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> Unreadable:
    return Unreadable(f"its snapshot can't be read by this version of mqd: {error}")


__all__ = ["encode_in_parts", "read_in_parts", "unreadable"]
