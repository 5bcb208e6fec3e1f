"""The answers of one member of a stream to other nodes: to members that fill their segments, and to nodes
that have no copy.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from outcome import Error, Outcome

from amqp_server.streams.layout.consumer_start import Start
from amqp_server.streams.members.requests import ABSENT, Done
from persistence.streams.log import READ_BYTES, Raw
from persistence.streams.remote.objects import Unavailable
from quorum_queue.cluster import frames
from quorum_queue.ports import Refused, Turn

if TYPE_CHECKING:
    from amqp_server.streams.layout.encode import Encoded
    from amqp_server.streams.local_host import StreamServices
    from amqp_server.streams.members.host import StreamMemberHost


class MemberAnswers:
    """Answers the questions of other nodes; see Asks."""

    def __init__(self, host: StreamMemberHost, services: StreamServices, turn: Turn) -> None:
        self._host = host
        self._services = services
        self._turn = turn
        #: Nodes that wait for messages, with the first offset that they want.
        self._followers: dict[str, tuple[int, Done]] = {}

    def has_more(self) -> None:
        """There may be more messages for nodes that follow the stream."""
        followers, self._followers = self._followers, {}
        for peer, (offset, reply) in followers.items():
            self.answer(peer, frames.ASK_FOLLOW, offset, reply)

    def close(self) -> None:
        followers, self._followers = self._followers, {}
        for _, reply in followers.values():
            reply(ABSENT)

    def answer(self, peer: str, what: int, value: int, reply: Done, data: bytes = b"") -> None:
        """Answer a question of another node; see Asks."""
        host = self._host
        if host.ended or not host.opened:
            reply(ABSENT)
        elif what == frames.ASK_NAMES:
            host.names.note_for(data, reply)
        elif what in (frames.ASK_READ, frames.ASK_FOLLOW):
            self._answer_read(peer, what, value, reply)
        elif what == frames.ASK_SOUND:
            reply(host.word(frames.TOLD_FOUND, host.log.sound_stop))
        elif what in (frames.ASK_LAST, frames.ASK_FIND) or value == frames.STRICTLY:
            host.reach_committed(partial(self._answer_place, what, value, reply))
        elif not host.group.informed:
            reply(ABSENT)
        else:
            host.catch_up(lambda *why: reply(ABSENT if host.ended else host.word(frames.TOLD_FOUND)))

    def _answer_place(self, what: int, value: int, reply: Done, why: Refused | None = None) -> None:
        """Tell where a consumer begins: this member has everything that was confirmed when it was asked."""
        host = self._host
        if why is not None or host.ended or (what != frames.ASK_OFFSETS and host.missing_count):
            reply(ABSENT)
        elif what == frames.ASK_OFFSETS:
            reply(host.word(frames.TOLD_FOUND))
        else:
            start = Start("last") if what == frames.ASK_LAST else Start(time_ms=value)
            host.finding.find(
                start,
                lambda offset: reply(ABSENT if offset < 0 else host.word(frames.TOLD_FOUND, offset)),
            )

    def _answer_read(self, peer: str, what: int, offset: int, reply: Done) -> None:
        host = self._host
        first, tail = host.first_offset, host.tail
        if offset < first:
            reply(host.word(frames.TOLD_GONE, first))
        elif offset >= host.committed_offset:
            if what == frames.ASK_FOLLOW:
                self._followers[peer] = offset, reply
            else:
                reply(host.word(frames.TOLD_FOUND))
        elif tail and offset >= tail[0].batch.base:
            parts: list[bytes] = []
            size = 0
            for each in tail[bisect_right(tail, offset, key=stop_of) :]:
                if size and size + each.batch.size > READ_BYTES:
                    break
                parts += each.parts
                size += each.batch.size
            reply(host.word(frames.TOLD_FOUND, offset, b"".join(parts)))
        elif offset >= host.stored_offset and not host.is_remote(offset):
            # This member fetches the message itself.
            reply(ABSENT)
        else:
            done = partial(self._has_read_raw, offset, reply)
            if host.tier is not None and host.tier.reader is not None:
                reader = host.tier.reader
                host.tier.look_for(
                    reader.is_remote(offset),
                    partial(reader.read_raw_local, offset),
                    partial(reader.read_raw, offset),
                    done,
                )
            else:
                self._services.store.read(partial(host.log.read_raw, offset), done)
            sending = host.group.sending
            if sending and peer in sending:
                sending[peer].moved_at = host.replicas.clock.monotonic_ms()

    def _has_read_raw(self, offset: int, reply: Done, outcome: Outcome[Raw]) -> None:
        host = self._host
        if host.ended:
            reply(ABSENT)
            return
        if isinstance(outcome, Error):
            reply(ABSENT)
            if not isinstance(outcome.error, Unavailable):
                self._turn.contain(host, outcome.unwrap)
            return
        raw = outcome.unwrap()
        if offset < host.first_offset:
            reply(host.word(frames.TOLD_GONE, host.first_offset))
        elif raw.lost is not None and host.filling.is_given_up(raw.lost.low):
            reply(host.word(frames.TOLD_LOST, raw.lost.stop))
        elif raw.lost is not None:
            host.filling.miss(raw.lost)
            reply(host.word(frames.TOLD_DAMAGED, raw.lost.stop))
            host.filling.go_on()
        elif not raw.data:
            reply(ABSENT)
        else:
            reply(host.word(frames.TOLD_FOUND, offset, raw.data))


def stop_of(encoded: Encoded) -> int:
    return encoded.batch.stop


__all__ = ["MemberAnswers", "stop_of"]
