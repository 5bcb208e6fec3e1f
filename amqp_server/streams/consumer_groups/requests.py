"""Requests of clients and operators to a group in a cluster, until the log has the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from quorum_queue.consumer_groups.entries import Command
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost


class InUse(NamedTuple):
    """A group is not moved, because it has so many members."""

    members: int


class Requests:
    """Attaches, gets, purges and moves in progress."""

    #: For mypyc; see `let_go`.
    __deletable__ = ("_host",)

    def __init__(self, host: ConsumerGroupMemberHost) -> None:
        self._host = host
        #: Batch, verb, key or token.
        self._sent: list[tuple[int, str, Any]] = []
        self._moving: dict[int, Callable[[Refused | InUse | None], None]] = {}

    def sent(self, number: int, commands: list[Command]) -> None:
        """Note that these commands are in this batch."""
        for each in commands:
            if each[0] in ("attach", "get", "purge", "move", "move_unused", "seal", "prepare"):
                self._sent.append((number, each[0], each[1]))

    def until(self, last_own: int) -> list[tuple[str, Any]]:
        """Take the requests of batches up to this one."""
        found: list[tuple[str, Any]] = []
        while self._sent and self._sent[0][0] <= last_own:
            found.append(self._sent.pop(0)[1:])
        return found

    def keys(self, verb: str) -> list[Any]:
        """Return the keys of the requests of this kind in progress."""
        return [key for _, each, key in self._sent if each == verb]

    # -- purge, and going elsewhere --------------------------------------------------------------------------

    def look_for_ends(self, *command: Any) -> None:
        """Submit a command with the ends of the streams, which have all messages that were confirmed before
        this call.
        """
        host = self._host
        hosts = host.stream_hosts()
        wanted = [each for each in host.replica.group.partitions if each in hosts]
        found: list[list[int]] = []
        left = len(wanted)

        def told(stream_id: int, offsets: range | None) -> None:
            nonlocal left
            left -= 1
            if offsets is not None:
                found.append([stream_id, offsets.start, offsets.stop])
            if not left and not host.ended:
                host.submit((*command, found))

        if not wanted:
            host.submit((*command, found))
        for stream_id in wanted:
            hosts[stream_id].offsets(partial(told, stream_id))

    def move(
        self,
        token: int,
        places: Iterable[tuple[int, int]],
        done: Callable[[Refused | InUse | None], None],
        *,
        if_unused: bool,
    ) -> None:
        self._moving[token] = done
        verb = "move_unused" if if_unused else "move"
        self._host.submit((verb, token, [list(each) for each in places]))

    def has_moved(self, token: int, refused: Refused | InUse | None = None) -> None:
        done = self._moving.pop(token, None)
        if done is not None:
            done(refused)

    def refuse_moves(self, why: Refused) -> None:
        moving, self._moving = self._moving, {}
        for done in moving.values():
            done(why)

    def let_go(self) -> None:
        """Drop the reference to the closed host, to break the reference cycle."""
        del self._host


__all__ = ["InUse", "Requests"]
