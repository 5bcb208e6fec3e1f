"""Offsets that streams keep by name, as the management API shows and deletes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

from amqp_server.broker.broker import Broker
from amqp_server.broker.topology.queue import Queue
from amqp_server.errors import NotFound, NotImplemented_, PreconditionFailed, Unavailable
from amqp_server.management.objects.internal_session import ANSWER_S
from amqp_server.streams.layout.named_offsets import NAME_ABSENT, NAME_IN_USE
from amqp_server.streams.local_host import StreamHost
from amqp_server.streams.remote_host import StreamRemoteHost
from quorum_queue.machine.versions import NAMES_REFUSED
from quorum_queue.ports import Refused

Answer = TypeVar("Answer")


class ManagedOffsets:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def stream(self, vhost: str, name: str) -> Queue:
        """Raises NotFound, PreconditionFailed."""
        queue = self._broker.vhost(vhost).queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        if not queue.type.is_stream:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' is not a stream")
        return queue

    def keeps(self, queue: Queue) -> bool:
        """Return whether this node has a copy of a stream."""
        return not isinstance(queue.host, StreamRemoteHost)

    def members(self, queue: Queue) -> list[str]:
        """Return the nodes that have a copy, the one that leads first."""
        leader = self._broker.hosts.leader(queue)
        return sorted(queue.members, key=lambda name: (name != leader, name))

    def consumers(self, queue: Queue) -> dict[str, str]:
        """Return the names that consumers on this node have, with their connections; "" for consumers that
        were cancelled, and may still ack what they have.
        """
        host = _host(queue)
        return dict.fromkeys(sorted(host.names_here()), "") | {
            subscription.start.group: subscription.channel.connection.client.name
            for subscription in queue.subscriptions.values()
            if subscription.start.group
        }

    async def kept(self, queue: Queue) -> list[dict[str, Any]]:
        """Return the names of a stream that this node has a copy of, the least recently used first. Raises
        Unavailable.
        """
        host = _host(queue)
        found = await self._answer(queue, host.kept_names)
        if isinstance(found, Refused):
            raise Unavailable(f"{_place(queue)} is not available at the moment: {found.text}")
        first, end = host.first_offset, host.end_offset
        return [
            {
                "name": name,
                "committed_offset": offset,
                "lag": None if offset is None else max(end - max(offset, first), 0),
            }
            for name, offset in found
        ]

    async def delete(self, queue: Queue, name: str) -> None:
        """Delete a name that no consumer has. Raises NotFound, PreconditionFailed, Unavailable."""
        refused = await self._answer(queue, partial(_host(queue).delete_name, name))
        if refused == NAME_ABSENT:
            raise NotFound(f"{_place(queue)} has no offset with the name '{name}'")
        if refused == NAME_IN_USE:
            raise self.in_use(queue, name)
        if refused is not None:
            raise Unavailable(f"{_place(queue)} is not available at the moment: {refused.text}")

    def in_use(self, queue: Queue, name: str, connection: str = "") -> PreconditionFailed:
        of = f" of connection '{connection}'" if connection else ""
        return PreconditionFailed(
            f"{_place(queue)}: a consumer{of} uses the name '{name}': stop it before you delete the offset"
        )

    def check_version(self, queue: Queue) -> None:
        """Raises NotImplemented_ if nodes may be there that know no deletions."""
        if self._broker.replication.version < NAMES_REFUSED:
            raise NotImplemented_(
                "deleting a named offset in a cluster needs nodes that all run a version of mqd that supports "
                f"it: {_place(queue)}"
            )

    async def _answer(self, queue: Queue, ask: Callable[[Callable[[Answer], None]], None]) -> Answer:
        """Return what the host answers. Raises Unavailable if it takes too long."""
        answers: list[Answer] = []
        answered = trio.Event()

        def told(answer: Answer) -> None:
            answers.append(answer)
            answered.set()

        self._broker.turn.run(ask, told)
        with trio.move_on_after(ANSWER_S):
            await answered.wait()
        if not answers:
            raise Unavailable(
                f"{_place(queue)} has not answered; `mqctl cluster status` shows whether it has a majority"
            )
        return answers[0]


def _host(queue: Queue) -> StreamHost:
    """Raises Unavailable."""
    host = queue.host
    if not isinstance(host, StreamHost):
        raise Unavailable(f"{_place(queue)} has failed on this node")
    return host


def _place(queue: Queue) -> str:
    return f"stream '{queue.name}' in vhost '{queue.vhost.name}'"


__all__ = ["ManagedOffsets"]
