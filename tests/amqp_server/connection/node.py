"""A broker without sockets or disk, and peers that talk to it in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pamqp import base, body, commands, frame, header

from amqp_server.broker.broker import Broker
from amqp_server.config import Config
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session, State
from amqp_server.wire import frames
from amqp_server.wire.intake import Publisher
from persistence.journal import Journal
from persistence.memory import MemoryEnvironment
from quorum_queue.local import LocalHost, NodeServices
from quorum_queue.memory import MemoryBudget

CAPABILITIES = {
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Marks:
    """Slots in a dictionary."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def mark(self, slot: int, seq: int) -> None:
        self._slots[slot] = seq

    def get(self, slot: int) -> int:
        return self._slots.get(slot, -1)

    def allocate(self) -> int:
        slot = len(self._slots)
        self._slots[slot] = -1
        return slot

    def free(self, slot: int) -> None:
        self._slots[slot] = -1

    def retain(self, slots: Iterable[int]) -> None:
        self._slots = {slot: self.get(slot) for slot in slots}


class Commits:
    """Durable when the test says so: `MemoryNode.sync`."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        self._pending = environment.pending

    def request(self, done: Callable[[], None] | None = None) -> None:
        if done is not None:
            self._pending.open.done.append(done)


class MemoryNode:
    """A broker with the vhost / and the users guest and other."""

    def __init__(self, **options: Any) -> None:
        self.environment = environment = MemoryEnvironment()
        self.now_ms = 1_700_000_000_000
        self.broker = broker = Broker(Config(**options), environment, lambda: self.now_ms)
        commits = Commits(environment)
        broker.services = NodeServices(
            clock=broker.clock,
            memory=MemoryBudget(1 << 30),
            timers=broker.timers,
            dead_letters=broker.dead_letters,
            journal=Journal(environment),
            spill=Journal(environment.spill),
            commits=commits,
            marks=Marks(),
        )
        broker.unsynced = lambda: bool(environment.pending.open) or len(environment.pending.layers) > 1
        broker.add_vhost("/")
        for user in ("guest", "other"):
            broker.permissions.set(user, "/", ".*", ".*", ".*")
        self.peers: list[Peer] = []

    def peer(self, *, user: str = "guest", frame_max: int = 131_072) -> Peer:
        """Return a client that has logged in."""
        peer = Peer(self, user, frame_max)
        self.peers.append(peer)
        return peer

    def sync(self) -> None:
        """All that was changed is on disk."""
        self.environment.flush()
        self.broker.end_turn()
        for peer in self.peers:
            peer.collect()

    def contents(self) -> dict[str, list[tuple[bytes, bytes, bool]]]:
        """What stands in each queue: routing, content frames, redelivered."""
        found: dict[str, list[tuple[bytes, bytes, bool]]] = {}
        for queue in self.broker.all_queues():
            found[queue.name] = messages = []
            assert isinstance(queue.host, LocalHost)
            for run in queue.host.machine.ready.runs():
                assert run.contents is not None
                messages += [
                    (run.head_of(index), item, run.redelivered) for index, item in enumerate(run.contents)
                ]
        return found


class Delivery(NamedTuple):
    method: base.Frame
    properties: commands.Basic.Properties
    body: bytes


class Peer:
    """A client's end of a session."""

    def __init__(self, node: MemoryNode, user: str, frame_max: int) -> None:
        self.node = node
        self.outbox = Outbox({}, node.broker.config.outbox_high_bytes)
        self.session = session = Session(node.broker, self.outbox, "127.0.0.1", "peer")
        session.username = user
        session.capabilities = dict(CAPABILITIES)
        session.vhost = node.broker.vhost("/")
        session.frame_max = frame_max
        session.channel_max = 16
        session.publisher = Publisher(frame_max, user.encode(), node.broker.config.message_bytes_max)
        session.state = State.RUNNING
        #: All that the broker has sent.
        self.output = b""
        self._read = 0

    def send(self, *data: bytes) -> None:
        """Send bytes as one read, and end the turn."""
        self.session.receive(b"".join(data))
        self.node.broker.end_turn()
        for peer in self.node.peers:
            peer.collect()

    def call(self, channel: int, *methods: base.Frame) -> list[tuple[int, base.Frame | Delivery]]:
        """Send methods as one read; return what comes back, on disk or not."""
        self.send(*(frames.method_frame(channel, method) for method in methods))
        self.node.sync()
        return self.answers()

    def collect(self) -> None:
        """Take what the outbox lets go."""
        while data := b"".join(self.outbox.take()):
            self.output += data
            self.outbox.sent(len(data))
            if self.session.paused:
                self.session.drained()

    def answers(self) -> list[tuple[int, base.Frame | Delivery]]:
        """Return what came since the last call, decoded by pamqp."""
        data, self._read = self.output[self._read :], len(self.output)
        return decoded(data)


def decoded(data: bytes) -> list[tuple[int, base.Frame | Delivery]]:
    """Decode whole frames with pamqp, contents put together. Fails if bytes are left or frames are out of turn."""
    found: list[tuple[int, base.Frame | Delivery]] = []
    while data:
        used, channel, method = frame.unmarshal(data)
        data = data[used:]
        if not isinstance(method, base.Frame) or method.index not in _WITH_CONTENT:
            assert not isinstance(method, (header.ContentHeader, body.ContentBody)), (
                "content without a method"
            )
            if isinstance(method, base.Frame):
                found.append((channel, method))
            continue
        used, number, head = frame.unmarshal(data)
        assert number == channel and isinstance(head, header.ContentHeader)
        data = data[used:]
        parts: list[bytes] = []
        left = head.body_size
        while left:
            used, number, part = frame.unmarshal(data)
            assert number == channel and isinstance(part, body.ContentBody)
            data = data[used:]
            parts.append(part.value)
            left -= len(part.value)
        assert left == 0
        found.append((channel, Delivery(method, head.properties, b"".join(parts))))
    return found


_WITH_CONTENT = {
    method.index for method in (commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return)
}
