"""Finds the offset at which a consumer of a stream in a cluster begins, in this member's own copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from outcome import Error, Outcome

from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.readers import AWAY
from persistence.streams.remote.objects import Unavailable
from quorum_queue.ports import Turn

if TYPE_CHECKING:
    from amqp_server.streams.local_host import StreamServices
    from amqp_server.streams.members.host import StreamMemberHost


class Finding:
    """Searches the tail, and lets a thread search the segments."""

    def __init__(self, host: StreamMemberHost, services: StreamServices, turn: Turn) -> None:
        self._host = host
        self._services = services
        self._turn = turn

    def find(self, start: Start, done: Callable[[int], None]) -> None:
        """Find the offset of the last batch, or of the first batch from a time on. AWAY: it is in a remote
        that does not answer.
        """
        host = self._host
        segments, tail = host.log.segments, host.tail
        if start.name == "last":
            if tail:
                done(tail[-1].batch.base)
            else:
                self._look(host.segment_reader.last, done)
            return
        time_ms = host.time_meant(start)
        tier = host.tier
        if tier is not None and tier.find(time_ms, partial(self._found, done)):
            return
        if segments and segments[-1].size and segments[-1].last_ms >= time_ms:
            self._look(partial(host.log.find, time_ms), done)
        else:
            later = [each.batch.base for each in tail if each.batch.time_ms >= time_ms]
            done(later[0] if later else host.committed_offset)

    def _look(self, find: Callable[[], int], done: Callable[[int], None]) -> None:
        self._services.store.read(find, partial(self._found, done))

    def _found(self, done: Callable[[int], None], outcome: Outcome[int]) -> None:
        if not isinstance(outcome, Error):
            done(outcome.unwrap())
        elif isinstance(outcome.error, Unavailable):
            done(AWAY)
        else:
            self._turn.contain(self._host, outcome.unwrap)


__all__ = ["Finding"]
