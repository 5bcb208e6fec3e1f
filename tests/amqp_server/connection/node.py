"""A broker without sockets or disk, and peers that talk to it in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pamqp import base, body, commands, frame, header

from amqp_server.broker.alarms import Alarms
from amqp_server.broker.broker import Broker
from amqp_server.broker.dead_letter import DeadLetterSender
from amqp_server.broker.hosts import LocalHosts
from amqp_server.broker.recovery import stored_queue_time
from amqp_server.broker.timers import Timers
from amqp_server.config import Config
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session
from amqp_server.streams.local_host import StreamServices
from amqp_server.turn import Turn
from amqp_server.wire import frames
from persistence.commits.holds import Holds
from persistence.commits.layer import Lone
from persistence.journal import Journal
from quorum_queue.clock import Clock
from quorum_queue.local_host import LocalHost, NodeServices
from quorum_queue.memory import MemoryBudget
from quorum_queue.unsent_bytes import Unsent
from tests import turns
from tests.clocks import ManualClock
from tests.stores.memory import MemoryEnvironment

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
    """Commits that become durable when the test says so: `MemoryNode.sync`."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        self._pending = environment.pending
        self._holds = Holds(self._pending)

    @property
    def unsynced(self) -> bool:
        return bool(self._pending.open) or len(self._pending.layers) > 1

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None: ...

    def hold(self, granted: Callable[[], None]) -> None:
        self._holds.hold(granted)

    def release(self) -> None:
        self._holds.release(self.request)

    def request(
        self, done: Callable[[], None] | None = None, *, to_store: bool = False, alone: Lone | None = None
    ) -> None:
        if done is not None:
            self._pending.open.when_durable(done, alone)


def make_broker(
    config: Config,
    environment: MemoryEnvironment,
    clock: Clock,
    commits: Any,
    *,
    marks: Any = None,
    replication: Any = None,
    turn: Turn | None = None,
    streams: Callable[[NodeServices], StreamServices] | None = None,
) -> Broker:
    """Put a broker together as amqp_server.app does, over the store in memory; turns end when the test says
    so.
    """
    turn = turn or turns.by_hand(commits)
    timers = Timers(changed=lambda: None)
    services = NodeServices(
        clock=clock,
        queue_time=stored_queue_time.restore(environment, clock),
        turn=turn,
        memory=MemoryBudget(1 << 30, Unsent(config.unsent_budget_bytes, turn)),
        timers=timers,
        dead_letters=DeadLetterSender(config.frame_max_bytes, clock),
        journal=Journal(environment),
        spill=Journal(environment.spill),
        commits=commits,
        marks=marks or Marks(),
    )
    return Broker(
        config,
        environment,
        clock,
        turn=turn,
        timers=timers,
        alarms=Alarms(),
        services=services,
        hosts=LocalHosts(services, environment, None if streams is None else streams(services)),
        replication=replication,
    )


def exchange_parts(broker: Broker, **parts: Any) -> None:
    """Give a broker other parts than it was made with; its vhosts use them, too."""
    for name, part in parts.items():
        setattr(broker, name, part)
        object.__setattr__(broker.parts, name, part)


class MemoryNode:
    """A broker with the vhost / and the users guest and other."""

    def _configured(self, **options: Any) -> Config:
        return Config(**options)

    def __init__(self, **options: Any) -> None:
        self.environment = environment = MemoryEnvironment()
        self.clock = ManualClock(5_000_000, 1_700_000_000_000)
        self.broker = broker = make_broker(
            self._configured(**options), environment, self.clock, self._commits()
        )
        self.turn = broker.turn
        broker.add_vhost("/")
        for user in ("guest", "other"):
            broker.access.permissions.set(user, "/", ".*", ".*", ".*")
        self.peers: list[Peer] = []

    def _commits(self) -> Any:
        return Commits(self.environment)

    def peer(self, *, user: str = "guest", frame_max: int = 131_072, name: str = "peer") -> Peer:
        """Return a client that has logged in."""
        peer = Peer(self, user, frame_max, name)
        self.peers.append(peer)
        return peer

    def sync(self) -> None:
        """Put all changes on the disk."""
        self.turn.run(self.environment.flush)
        for peer in self.peers:
            peer.collect()

    def contents(self) -> dict[str, list[tuple[bytes, bytes, bool]]]:
        """Return the messages of each queue: routing, content frames, redelivered."""
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
    """A client's end of a session. See connection.session.Edge, and amqp_server.turn.Sender."""

    def __init__(self, node: MemoryNode, user: str, frame_max: int, name: str = "peer") -> None:
        self.node = node
        broker = node.broker
        self.outbox = Outbox(
            broker.turn, self, broker.config.outbox_high_bytes, broker.services.memory.unsent
        )
        self.session = Session.logged_in(
            broker,
            self.outbox,
            self,
            name=name,
            peer="127.0.0.1",
            user=user,
            vhost=broker.vhost("/"),
            frame_max=frame_max,
            channel_max=16,
        )
        self.session.client.capabilities = dict(CAPABILITIES)
        #: All bytes that the broker has sent.
        self.output = b""
        #: False if it reads nothing from now on.
        self.reads = True
        self._read = 0

    def opened(self) -> None: ...

    def resumed(self) -> None: ...

    def flush(self) -> None:
        """Pass the bytes that the outbox lets go to `collect`."""

    def send(self, *data: bytes) -> None:
        """Send bytes as one read, and end the turn."""
        self.node.turn.receive(self.session, b"".join(data))
        for peer in self.node.peers:
            peer.collect()

    def call(self, channel: int, *methods: base.Frame) -> list[tuple[int, base.Frame | Delivery]]:
        """Send methods as one read; return all answers, also those that wait for the disk, in as many turns
        as they take.
        """
        self.send(*(frames.method_frame(channel, method) for method in methods))
        self.node.sync()
        while self.node.turn.behind:
            self.node.turn.run(self.node.turn.catch_up)
            self.node.sync()
            self.collect()
        return self.answers()

    def collect(self) -> None:
        """Take the bytes that the outbox lets go."""
        while self.reads and (data := b"".join(self.outbox.take())):
            self.output += data
            self.outbox.sent(len(data))
            if self.session.paused:
                self.node.turn.run(self.session.drained)
            self.node.turn.run(self.session.room)

    def answers(self) -> list[tuple[int, base.Frame | Delivery]]:
        """Return the answers since the last call, decoded by pamqp."""
        data, self._read = self.output[self._read :], len(self.output)
        return decoded(data)


def decoded(data: bytes) -> list[tuple[int, base.Frame | Delivery]]:
    """Decode whole frames with pamqp, contents put together. Fails if bytes are left or frames are out of
    turn.
    """
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
