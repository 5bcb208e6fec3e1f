"""Direct replies to clients of other nodes, sent over the link. See amqp_server.broker.reply.

As in RabbitMQ the publisher does not learn whether the client is still connected: a reply is confirmed when
it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorum_queue.cluster import frames
from quorum_queue.cluster.ports import Links
from quorum_queue.cluster.queues.deferred_host import cut
from quorum_queue.machine.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.ports import Turn

#: Replies of one turn are split into frames of about this size.
FRAME_BYTES = 1 << 20


class RemoteReply:
    """Stands for a queue's host, like ReplyHost on the client's own node. See broker.queue.Target."""

    counts_bytes = False
    wants_ids = False
    records = False
    in_journal = True
    takes_parts = False
    is_queue = False
    deleted = False

    def __init__(self, turn: Turn, token: str, home: str, links: Links, node: str, incarnation: int) -> None:
        self.name = token
        self.published = 0
        self._turn = turn
        self._home = home
        self._links = links
        self._from = (node, incarnation)
        self.pending: list[Any] = []

    @property
    def host(self) -> RemoteReply:
        return self

    def begin_large(self, content: bytes, head: bytes, channel: int) -> None:
        return None

    def submit(self, *commands: Any) -> None:
        self.pending += commands
        self._turn.schedule(self)

    def barrier(self, done: Callable[..., None]) -> None:
        done()

    def hold(self) -> None:
        """The reply is sent at once: its client is on another node."""

    def unhold(self) -> None:
        """It was not held."""

    def apply_pending(self) -> None:
        pending, self.pending = self.pending, []
        for command in pending:
            origin, first = command[2], command[3]
            last = first + len(command[1].seqs) - 1
            sent = all(self._send(part) for part in cut([("enqueue", command[1], None, 0)], FRAME_BYTES))
            if origin is not None:
                (origin.confirmed if sent else origin.refused)(first, last)

    def failed(self, error: Exception) -> None:
        """Replies could not be encoded: the state of this object cannot be trusted."""
        raise error

    def _send(self, commands: list[Any]) -> bool:
        return self._links.send(self._home, frames.reply(self.name, encode_batch(*self._from, 1, commands)))


def decode(batch: bytes) -> list[Any]:
    """Return the replies as commands for a ReplyHost. Raises quorum_queue.machine.codec.CodecError."""
    entry = decode_entry(encode_entry(0, [batch]))
    commands = []
    for command in entry.batches[0].commands:
        run = command[1]
        run.contents = entry.bodies.contents(run.seqs)
        run.sizes = None
        run.seqs = range(len(run.seqs))
        commands.append(("enqueue", run, None, 0))
    return commands
