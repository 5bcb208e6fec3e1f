"""Messages that the management API publishes, gets, reads and moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import trio
from pamqp import commands

from amqp_server.broker.access.permissions import ITSELF
from amqp_server.broker.broker import Broker
from amqp_server.broker.topology.consumer_groups import refuse_publish
from amqp_server.errors import NotFound, PreconditionFailed, Unavailable
from amqp_server.management.objects.internal_session import ANSWER_S, Direct, Got, Rest, Takes
from amqp_server.management.objects.views import (
    Fate,
    MessageView,
)
from amqp_server.streams.local_host import StreamHost
from amqp_server.wire import methods
from amqp_server.wire.content import PROPERTIES, Properties

#: Bytes of bodies that one request may get; the next request gets the rest.
GET_BYTES_MAX = 32 << 20
#: Messages that are moved before the request waits for their confirms.
MOVED_AT_ONCE = 100


class ManagedMessages:
    def __init__(self, broker: Broker, synced: Callable[[], Awaitable[None]]) -> None:
        """`synced` returns when all changes made before the call are on disk."""
        self._broker = broker
        self._synced = synced

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        properties: Mapping[str, object],
        body: bytes,
        user: str,
        access: str = "",
    ) -> bool:
        """Return True if it reached a queue. `access`: see Session.logged_in.

        Properties have their AMQP names (`content_type`, `headers` …).
        """
        if self._broker.alarms.active:
            raise PreconditionFailed(f"publishers are blocked: {self._broker.alarms.reason}")
        method = methods.make(
            commands.Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=True
        )
        with Direct(self._broker, vhost, user, access) as direct:
            return await direct.publish(method, properties, body)

    async def get(
        self,
        vhost: str,
        queue: str,
        count: int,
        fate: Fate,
        takes: Takes | None = None,
        rest: Rest = trio.lowlevel.checkpoint,
    ) -> list[MessageView]:
        """`takes` is asked about each message; the first that it does not take is requeued, and the last."""
        takes = takes or _take_all
        got: list[MessageView] = []
        size = tag = 0
        with Direct(self._broker, vhost, ITSELF) as direct:
            while len(got) < count and size < GET_BYTES_MAX:
                taken = await direct.get(queue, rest)
                if taken is None:
                    break
                told, message = taken
                view = MessageView(
                    exchange=told.exchange or "",
                    routing_key=told.routing_key or "",
                    redelivered=bool(told.redelivered),
                    message_count=told.message_count or 0,
                    properties=partial(_properties, message.properties),
                    body=message.body,
                    size=message.size,
                )
                if not await takes(view.size, len(got)):
                    break
                tag = taken.tag
                size += view.size
                got.append(view)
            if tag and fate != "requeue":
                # Messages that are not settled are requeued at their position when the session ends.
                ack, reject = commands.Basic.Ack(tag, True), commands.Basic.Nack(tag, True, False)
                await direct.ask(ack if fate == "ack" else reject)
        return got

    async def read(
        self,
        vhost: str,
        stream: str,
        arguments: Mapping[str, object],
        count: int,
        takes: Takes | None = None,
        rest: Rest = trio.lowlevel.checkpoint,
    ) -> list[tuple[int, MessageView]]:
        """Return messages of a stream with their offsets, as a consumer with these arguments gets them.
        `takes` is asked about each one; the first that it does not take is the end.

        Raises PreconditionFailed if the queue is no stream, and for invalid arguments.
        """
        queue = self._broker.vhost(vhost).queues.get(stream)
        if queue is None:
            raise NotFound(f"no queue '{stream}' in vhost '{vhost}'")
        if not isinstance(queue.host, StreamHost):
            raise PreconditionFailed(
                f"queue '{stream}' in vhost '{vhost}' is not a stream, or has failed on this node"
            )
        # This node may not know yet of messages that are confirmed.
        known, start = await self._offsets(queue.host), arguments.get("x-stream-offset")
        if known is None:
            raise Unavailable(
                f"offsets of stream '{stream}' in vhost '{vhost}' are not known on this node now: ask again"
            )
        end = known.stop
        if not known or (isinstance(start, int) and start >= end):
            return []
        with Direct(self._broker, vhost, ITSELF) as direct:
            found = await direct.read(stream, arguments, count, GET_BYTES_MAX, end, takes or _take_all, rest)
        return [
            (
                each.offset,
                MessageView(
                    exchange=each.deliver.exchange or "",
                    routing_key=each.deliver.routing_key or "",
                    redelivered=False,
                    message_count=0,
                    properties=partial(_properties, each.content.properties),
                    body=each.content.body,
                    size=each.content.size,
                ),
            )
            for each in found
            # The stream may have got messages since `end` was read.
            if each.offset < end
        ]

    async def _offsets(self, host: StreamHost) -> range | None:
        found: list[range | None] = []
        answered = trio.Event()

        def told(offsets: range | None) -> None:
            found.append(offsets)
            answered.set()

        self._broker.turn.run(host.offsets, told)
        with trio.move_on_after(ANSWER_S):
            await answered.wait()
        return found[0] if found else None

    async def move(self, vhost: str, source: str, destination: str, count: int) -> tuple[int, int]:
        """Move the first messages of a queue to another one; return how many went, and how many it refused.

        A message is removed from the first queue after the other one has confirmed it. If the node dies in
        between, it is in both queues.
        """
        if self._broker.alarms.active:
            raise PreconditionFailed(f"publishers are blocked: {self._broker.alarms.reason}")
        queue = self._broker.vhost(vhost).queues.get(destination)
        if queue is None:
            raise NotFound(f"no queue '{destination}' in vhost '{vhost}'")
        if queue.type.is_group:
            raise refuse_publish(queue)
        moved = 0
        with Direct(self._broker, vhost, ITSELF) as direct:
            await direct.ask(commands.Confirm.Select())
            while moved < count:
                got = await self._take_some(direct, source, min(count - moved, MOVED_AT_ONCE))
                if not got:
                    break
                taken = await direct.hand_on(queue, got, self._synced)
                moved += taken
                if taken < len(got):
                    return moved, len(got) - taken
        return moved, 0

    async def _take_some(self, direct: Direct, queue: str, count: int) -> list[Got]:
        got: list[Got] = []
        size = 0
        while len(got) < count and size < GET_BYTES_MAX:
            taken = await direct.get(queue)
            if taken is None:
                break
            got.append(taken)
            size += len(taken.content.body)
        return got


async def _take_all(size: int, before: int) -> bool:
    return True


def _properties(properties: Properties) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in PROPERTIES:
        if name not in properties.raw:
            continue
        if name == "headers":
            told[name] = properties.headers
        elif name in ("delivery_mode", "priority"):
            told[name] = properties.octet(name)
        elif name == "timestamp":
            told[name] = int.from_bytes(properties.raw[name], "big")
        else:
            told[name] = properties.text(name)
    return told
