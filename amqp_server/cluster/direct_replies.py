"""Direct replies to clients of other nodes, sent over the link. See amqp_server.broker.reply.

As in RabbitMQ the publisher does not learn whether the client is still connected: a reply is confirmed when
it is sent.
"""

from __future__ import annotations

from typing import Any

from amqp_server.broker.reply import DirectTarget
from quorum_queue.cluster import frames
from quorum_queue.cluster.ports import Links
from quorum_queue.cluster.queues.deferred_host import cut
from quorum_queue.machine.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.ports import Turn

#: Replies of one turn are split into frames of about this size.
FRAME_BYTES = 1 << 20


class RemoteReply(DirectTarget):
    """Stands for a ReplyHost on the client's own node."""

    def __init__(self, turn: Turn, token: str, home: str, links: Links, node: str, incarnation: int) -> None:
        super().__init__(token, turn)
        self._home = home
        self._links = links
        self._from = (node, incarnation)

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
