"""A broker without sockets whose streams are on a disk in memory; its threads work when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outcome import Outcome, capture
from pamqp import base, commands

from amqp_server.broker.broker import Broker
from amqp_server.broker.recovery import recovery
from amqp_server.config import Config
from amqp_server.streams.local_host import StreamHost, StreamOptions, StreamServices
from amqp_server.wire import content, frames
from persistence.errors import FULL
from persistence.journal import Journal
from persistence.streams.compaction import Throttle
from persistence.streams.compression import NONE
from persistence.streams.deduplication_file import Keeper
from persistence.streams.log import StreamLog
from quorum_queue.local_host import NodeServices
from tests.amqp_server.connection.node import Delivery, Marks, MemoryNode, Peer, make_broker
from tests.persistence.streams.crashing import CrashingFiles
from tests.stores.memory import MemoryEnvironment


class Store:
    """See persistence.streams.store.StreamStore."""

    def __init__(self, files: CrashingFiles) -> None:
        self.files = files
        self.writes: list[Callable[[], None]] = []
        #: Writes that found the disk full.
        self.refused: list[Callable[[], None]] = []
        self.reads: list[Callable[[], None]] = []
        self.compactions: list[Callable[[], None]] = []

    def log(
        self, queue_id: int, segment_bytes: int, *, keeper: Keeper | None = None, codec: str = NONE
    ) -> StreamLog:
        return StreamLog(
            self.files, Path("/streams") / str(queue_id), segment_bytes, keeper=keeper, codec=codec
        )

    def keep(self, queue_ids: Iterable[int], may_go: Callable[[int], bool] = lambda queue_id: True) -> None:
        raise NotImplementedError

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def job() -> None:
            try:
                result = call()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.refused.append(job)
            else:
                done(result)

        self.writes.append(job)

    def compact(self, call: Callable[[Throttle], Any], done: Callable[[Outcome[Any]], None]) -> None:
        throttle = Throttle(1 << 40)
        self.compactions.append(lambda: done(capture(call, throttle)))

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self.reads.append(lambda: done(capture(call)))


class StreamNode(MemoryNode):
    """A node with small segments, which are flushed as soon as the test works."""

    def __init__(self, options: StreamOptions | None = None, **config: Any) -> None:
        self.files = CrashingFiles()
        self.marks = Marks()
        self.options = options or StreamOptions(segment_bytes=500, flush_bytes=1)
        self.config = Config(**config)
        super().__init__(**config)
        self._begin()
        self.broker.add_vhost("/")
        for user in ("guest", "other"):
            self.broker.access.permissions.set(user, "/", ".*", ".*", ".*")

    def _begin(self) -> None:
        self.store = Store(self.files)
        self.broker = self._broker()
        self.turn = self.broker.turn
        self.peers = []

    def _broker(self) -> Broker:
        return make_broker(
            self.config,
            self.environment,
            self.clock,
            self._commits(),
            marks=self.marks,
            streams=self._stream_services,
        )

    def _stream_services(self, services: NodeServices) -> StreamServices:
        return StreamServices(
            clock=services.clock,
            queue_time=services.queue_time,
            turn=services.turn,
            memory=services.memory,
            timers=services.timers,
            journal=Journal(self.environment),
            commits=services.commits,
            store=self.store,
            options=self.options,
        )

    def work(self) -> None:
        """Do all pending syncs, writes and reads, and the work that follows from them."""
        store = self.store
        store.writes[:0] = store.refused
        store.refused.clear()
        for _ in range(1000):
            self.sync()
            jobs = [*store.writes, *store.reads, *store.compactions]
            store.writes.clear()
            store.reads.clear()
            store.compactions.clear()
            if not jobs and not self.environment.pending.open:
                return
            for job in jobs:
                self.turn.run(job)
        raise AssertionError("it does not come to an end")

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.broker.timers.run(self.clock.now_ms)
        self.turn.end()

    def restart(self, *, lost_power: bool = False) -> None:
        """Restart after kill -9; with `lost_power`, data that was not synced may be lost."""
        self.environment.crash()
        if lost_power:
            self.files.crash()
        self._begin()
        self.turn.run(recovery.recover, self.broker, Journal(self.environment))

    def host(self, name: str = "s") -> StreamHost:
        host = self.broker.vhost("/").queues[name].host
        assert isinstance(host, StreamHost)
        return host


def opened(node: StreamNode, channel: int = 1) -> Peer:
    peer = node.peer()
    peer.call(channel, commands.Channel.Open())
    return peer


def declare(peer: Peer, name: str = "s", **arguments: object) -> list[tuple[int, Any]]:
    table: dict[str, Any] = {"x-queue-type": "stream"} | {
        key.replace("_", "-"): value for key, value in arguments.items()
    }
    return peer.call(1, commands.Queue.Declare(queue=name, durable=True, arguments=table))


def publish(
    peer: Peer,
    bodies: list[bytes],
    name: str = "s",
    filters: list[str | None] | None = None,
    channel: int = 1,
    more: list[dict[str, Any]] | None = None,
) -> None:
    """Publish messages as one read; `more` are further headers of each."""
    parts: list[bytes] = []
    for number, body in enumerate(bodies):
        method = commands.Basic.Publish(exchange="", routing_key=name)
        value = filters[number] if filters else None
        headers: dict[str, Any] = {} if value is None else {"x-stream-filter-value": value}
        headers |= more[number] if more else {}
        properties = commands.Basic.Properties(headers=headers or None)
        payload = _header(properties, len(body))
        parts += [frames.method_frame(channel, method), content.build(payload, body, channel, 131_072)]
    peer.send(*parts)


def _header(properties: commands.Basic.Properties, size: int) -> bytes:
    from pamqp import header

    return header.ContentHeader(0, size, properties).marshal()


def consume(
    peer: Peer,
    offset: object = "first",
    prefetch: int = 1000,
    tag: str = "t",
    name: str = "s",
    **more: Any,
) -> list[tuple[int, Any]]:
    """Return the answers that come at once."""
    arguments: dict[str, Any] = {key.replace("_", "-"): value for key, value in more.items()}
    if offset is not None:
        arguments["x-stream-offset"] = offset
    methods: list[base.Frame] = [
        commands.Basic.Qos(prefetch_count=prefetch),
        commands.Basic.Consume(queue=name, consumer_tag=tag, arguments=arguments),
    ]
    return peer.call(1, *methods)


def got(peer: Peer, answers: list[tuple[int, Any]] | None = None) -> list[tuple[int, bytes]]:
    """Return offsets and bodies of the deliveries that came since the last call."""
    found: list[tuple[int, bytes]] = []
    for _, each in [*(answers or []), *peer.answers()]:
        if isinstance(each, Delivery):
            assert isinstance(each.method, commands.Basic.Deliver) and not each.method.redelivered
            offset = (each.properties.headers or {})["x-stream-offset"]
            assert isinstance(offset, int)
            found.append((offset, each.body))
    return found


__all__ = ["MemoryEnvironment", "StreamNode", "consume", "declare", "got", "publish"]
