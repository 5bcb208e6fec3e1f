"""The other copies of a replicated stream, as compaction sees them: a tombstone may go when no member has a
message that it deletes. Otherwise a member that repairs its segments could get such a message, without the
tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqp_server.streams.members.requests import Asks
from persistence.streams.compaction import EVERYTHING
from quorum_queue.cluster import frames
from quorum_queue.cluster.frames import StreamWord

if TYPE_CHECKING:
    from amqp_server.streams.members.host import StreamMemberHost


class MemberCopies:
    def __init__(self, host: StreamMemberHost, asks: Asks) -> None:
        self._host = host
        self._asks = asks

    def ask_sound_stop(self, then: Callable[[int], None]) -> None:
        """Ask all other members; 0 if one of them does not answer."""
        host, asks = self._host, self._asks
        members = host.group.core.members.everyone()
        others = [name for name in members if name != host.replicas.node]
        if not others:
            then(EVERYTHING)
            return
        if host.filling.asking or not all(map(asks.linked, others)):
            then(0)
            return
        told: list[int] = []

        def answered(word: StreamWord) -> None:
            told.append(word.value if word.what == frames.TOLD_FOUND else 0)
            if len(told) == len(others) and not host.ended:
                then(min(told))

        for name in others:
            asks.ask(name, host.queue_id, frames.ASK_SOUND, 0, host, answered)


__all__ = ["MemberCopies"]
