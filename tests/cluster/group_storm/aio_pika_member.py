# mypy: disable-error-code="import-untyped, no-untyped-call, attr-defined, arg-type"
"""A member that uses aio-pika, again and again: several channels of one connection, and acks out of order."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import aiormq.exceptions

from tests.cluster.group_storm.telling import GROUP, HEARTBEAT_S, Teller, a_node, chance, complain, ends


class Member:
    def __init__(self, url: str) -> None:
        self.teller = Teller(url)
        self.held: list[tuple[Any, tuple[str, int]]] = []
        self.deliveries = 0

    async def join(self, connection: Any) -> None:
        self.channel = await connection.channel()
        await self.channel.set_qos(chance.choice([1, 7, 100]))
        self.queue = await self.channel.get_queue(GROUP)
        self.teller.join()
        self.tag = await self.queue.consume(self._take)

    async def _take(self, message: Any) -> None:
        if not self.teller.ended:
            told = self.teller.delivery(message.headers, again=bool(message.redelivered))
            self.deliveries += 1
            self.held.append((message, told))

    async def is_lost(self) -> bool:
        """The library drops a consumer when the broker cancels it, and does not report that."""
        underlay: Any = await self.channel.get_underlay_channel()
        return self.tag not in underlay.consumers

    async def step(self) -> None:
        while self.held and chance.random() < 0.9:
            message, told = self.held.pop(chance.randrange(len(self.held)) if chance.random() < 0.3 else 0)
            if chance.random() < 0.04:
                self.teller.tell("r", *told)
                await message.nack(requeue=True)
            else:
                self.teller.tell("a", *told)
                await message.ack()
        if chance.random() < 0.1:
            await self.sync()

    async def sync(self) -> None:
        self.teller.tell("q")
        await self.channel.declare_queue(GROUP, passive=True)
        self.teller.tell("c")

    async def leave(self) -> None:
        await self.queue.cancel(self.tag)
        while self.held:
            message, told = self.held.pop(0)
            self.teller.tell("a", *told)
            await message.ack()
        await self.sync()
        self.teller.tell("closing")


async def visit() -> None:
    url = a_node()
    members: list[Member] = []
    connection = await aio_pika.connect(f"{url}?heartbeat={HEARTBEAT_S}" if HEARTBEAT_S else url, timeout=20)
    try:
        for _ in range(chance.choice([1, 2, 3])):
            member = Member(url)
            members.append(member)
            await member.join(connection)
        messages = chance.choice([5, 50, 500])
        until = asyncio.get_running_loop().time() + chance.choice([1, 3, 10])
        while not ends() and sum([each.deliveries for each in members]) < messages:
            if connection.is_closed or asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(0.01)
            for member in members:
                if await member.is_lost():
                    return
                await member.step()
        if not connection.is_closed:
            for member in members:
                await member.leave()
            await connection.close()
            for member in members:
                member.teller.end("leave")
    finally:
        for member in members:
            member.teller.end("gone")
        await connection.close()


async def main() -> None:
    while not ends():
        try:
            async with asyncio.timeout(60):
                await visit()
        except (aiormq.exceptions.AMQPError, OSError, RuntimeError, TimeoutError) as error:
            complain(error)
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
