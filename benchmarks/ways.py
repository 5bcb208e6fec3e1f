"""The ways of a message: how many calls of Python, in how many files, it takes from the socket to the
confirm.

    python -m benchmarks.ways

Whole nodes in this process, with their sockets, their links and LMDB, and a profiler on the loop's thread.
Calls count that enter (or resume) a function of the broker; those of trio, of the standard library and in C
do not, nor what a thread does for a sync. A change is a call into another file than that of the call before.
Timers and heartbeats come in between, so each figure is the least of several runs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import trio
from pamqp import base, commands, frame

from amqp_server.app import Node
from amqp_server.config import Config
from benchmarks import frames
from benchmarks.brokers import free_port
from persistence.environment import Environment

RUNS = 15
BATCH = 64
#: Time for the work that follows an answer, such as the commit of an ack, s.
REST_S = 0.05
TIMEOUT_S = 60.0
BODY = b"x" * 100
ROOT = Path(__file__).parent.parent
PACKAGES = tuple(f"{ROOT / name}/" for name in ("amqp_server", "exchanges", "persistence", "quorum_queue"))
#: Parts of a function, not calls.
INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
#: The node that the running task belongs to.
NODE: ContextVar[str] = ContextVar("node", default="")


class Way(NamedTuple):
    calls: int
    files: int
    changes: int


class Row(NamedTuple):
    what: str
    #: Number of messages.
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    way: Way


class Profile:
    """Notes the file of each call, for each node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.seen: dict[str, list[str]] = {}
        #: Trio itself calls the end of a commit, in no task of a node: these identify the node.
        self._owners = {
            id(part): node.config.node for node in nodes for part in (node.commits, node.broker.turn)
        }
        self._owner = ""

    def __enter__(self) -> Profile:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, at: FrameType, event: str, _: Any) -> None:
        code = at.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES) and code.co_name not in INNER:
            node = NODE.get()
            if not node:
                node = self._owner = self._owners.get(id(at.f_locals.get("self")), self._owner)
            self.seen.setdefault(node, []).append(code.co_filename)

    def way(self, node: str) -> Way:
        seen = self.seen.get(node, [])
        changes = sum(one != next_ for one, next_ in zip(seen, seen[1:], strict=False))
        return Way(len(seen), len(set(seen)), changes)


class Client:
    """Sends frames, and counts what comes back."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = b""
        self.delivered = 0
        self.confirmed = 0

    async def send(self, *data: bytes) -> None:
        await self._stream.send_all(b"".join(data))

    async def call(self, channel: int, method: base.Frame, answer: type[base.Frame]) -> None:
        """Send a method and wait for its answer."""
        await self.send(frame.marshal(method, channel))
        while not isinstance(await self._next(), answer):
            pass

    async def until(self, *, delivered: int = 0, confirmed: int = 0) -> None:
        with trio.fail_after(TIMEOUT_S):
            while self.delivered < delivered or self.confirmed < confirmed:
                await self._next()

    async def _next(self) -> object:
        while True:
            used, _, found = frame.unmarshal(self._data) if self._whole() else (0, 0, None)
            if used:
                break
            data = await self._stream.receive_some(65_536)
            if not data:
                raise ConnectionError("the node closed the connection")
            self._data += data
        self._data = self._data[used:]
        if isinstance(found, commands.Basic.Deliver):
            self.delivered = found.delivery_tag or 0
        elif isinstance(found, commands.Basic.Ack):
            self.confirmed = (found.delivery_tag or 0) if found.multiple else self.confirmed + 1
        return found

    def _whole(self) -> bool:
        return len(self._data) >= 8 and len(self._data) >= 8 + int.from_bytes(self._data[3:7], "big")


async def connect(node: Node) -> Client:
    stream = await trio.open_tcp_stream("127.0.0.1", int(node.amqp_address.rpartition(":")[2]))
    client = Client(stream)
    await client.send(b"AMQP\x00\x00\x09\x01")
    start_ok = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
    await client.call(0, start_ok, commands.Connection.Tune)
    await client.send(frame.marshal(commands.Connection.TuneOk(2047, frames.FRAME_MAX, 0), 0))
    await client.call(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
    await client.call(1, commands.Channel.Open(), commands.Channel.OpenOk)
    return client


@asynccontextmanager
async def served(*configs: dict[str, Any]) -> AsyncIterator[list[Node]]:
    """Running nodes; their tasks have the nodes' names."""
    nodes: list[Node] = []
    left = len(configs)
    ready = trio.Event()

    async def run(node: Node) -> None:
        NODE.set(node.config.node)
        await node.run(announce)

    def announce(_: Node) -> None:
        nonlocal left
        left -= 1
        if not left:
            ready.set()

    for options in configs:
        config = Config(amqp="127.0.0.1:0", http="", disk_free_min_bytes=0, memory_limit="64GiB", **options)
        nodes.append(Node(config, Environment.open(config.data_dir, map_bytes=1 << 28)))
    try:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(run, node)
            with trio.fail_after(TIMEOUT_S):
                await ready.wait()
            yield nodes
            nursery.cancel_scope.cancel()
    finally:
        for node in nodes:
            node.marks.close()
            node.environment.close()


def publishes(queue: str, count: int, *, durable: bool = True) -> bytes:
    properties = commands.Basic.Properties(delivery_mode=2 if durable else 1)
    return frames.message("", queue, BODY, properties) * count


def shortest(ways: Sequence[Way]) -> Way:
    """Return the least of each figure: the run with the fewest calls, whose parts met in one turn, may have
    had work beside it that brought files of its own.
    """
    return Way(*map(min, zip(*ways, strict=True)))


async def least(
    nodes: Sequence[Node], publisher: Client, queue: str, count: int, reader: Client | None
) -> list[Way]:
    """Publish so many messages in one write, and wait until they are confirmed, delivered and acked; return
    the shortest way at each node.
    """
    ways: list[list[Way]] = [[] for _ in nodes]
    for _ in range(RUNS):
        with Profile(nodes) as profile:
            confirmed = publisher.confirmed + count
            await publisher.send(publishes(queue, count))
            if reader is not None:
                first = reader.delivered + 1
                await reader.until(delivered=first + count - 1)
                await reader.send(*(frame.marshal(commands.Basic.Ack(first + n), 1) for n in range(count)))
            await publisher.until(confirmed=confirmed)
            await trio.sleep(REST_S)
        for found, node in zip(ways, nodes, strict=True):
            found.append(profile.way(node.config.node))
    return [shortest(found) for found in ways]


async def transient(node: Node) -> Way:
    """Publish a transient message to a consumer that needs no acks; return the shortest way."""
    publisher, reader = await connect(node), await connect(node)
    await publisher.call(1, commands.Queue.Declare(queue="transient"), commands.Queue.DeclareOk)
    consume = commands.Basic.Consume(queue="transient", no_ack=True)
    await reader.call(1, consume, commands.Basic.ConsumeOk)
    ways: list[Way] = []
    for _ in range(RUNS):
        with Profile([node]) as profile:
            await publisher.send(publishes("transient", 1, durable=False))
            await reader.until(delivered=reader.delivered + 1)
            await trio.sleep(REST_S)
        ways.append(profile.way(node.config.node))
    return shortest(ways)


async def ready_to_publish(node: Node, queue: str, **arguments: Any) -> Client:
    client = await connect(node)
    declare = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
    await client.call(1, declare, commands.Queue.DeclareOk)
    await client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return client


async def one_node(directory: Path, counts: Sequence[int]) -> AsyncIterator[Row]:
    async with served({"node": "alone", "data_dir": str(directory)}) as [node]:
        yield Row("one node: transient publish, deliver", 1, await transient(node))
        for count in counts:
            publisher = await ready_to_publish(node, "published")
            [way] = await least([node], publisher, "published", count, None)
            yield Row("one node: publish, confirm", count, way)
        for count in counts:
            publisher, reader = await ready_to_publish(node, "consumed"), await connect(node)
            await reader.call(1, commands.Basic.Consume(queue="consumed"), commands.Basic.ConsumeOk)
            [way] = await least([node], publisher, "consumed", count, reader)
            yield Row("one node: publish, confirm, deliver, ack", count, way)
            await reader.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)


async def three_nodes(directory: Path, counts: Sequence[int]) -> AsyncIterator[Row]:
    names = ("leader", "follower", "other")
    secret = directory / "secret"
    secret.write_text("the secret of this cluster")
    secret.chmod(0o600)
    shared = {
        "peers": tuple(f"{name}=127.0.0.1:{free_port()}" for name in names),
        "cluster_secret_file": str(secret),
    }
    configs = [{"node": name, "data_dir": str(directory / name), **shared} for name in names]
    async with served(*configs) as nodes:
        local: dict[str, Any] = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
        await ready_to_publish(nodes[0], "replicated", **local)
        publisher = await ready_to_publish(nodes[1], "replicated", **local)
        for count in counts:
            ways = await least(nodes, publisher, "replicated", count, None)
            for name, way in zip(
                ("leader", "follower (publisher's node)", "other follower"), ways, strict=True
            ):
                yield Row(f"three nodes: {name}", count, way)


async def show(rows: AsyncIterator[Row]) -> None:
    async for what, count, way in rows:
        size = "one message" if count == 1 else f"{count}, per message"
        figures = f"{way.calls / count:.4g} | {way.files} | {way.changes / count:.4g}"
        print(f"| {what} | {size} | {figures} |", flush=True)


def main() -> None:
    print("| way | messages | calls | files | changes of file |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        trio.run(show, one_node(Path(directory) / "alone", (1, BATCH)))
        trio.run(show, three_nodes(Path(directory), (1, BATCH)))


if __name__ == "__main__":
    main()
