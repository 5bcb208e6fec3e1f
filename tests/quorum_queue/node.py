"""A node without sockets and disk: the services that the hosts of queues need, over the store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

from amqp_server.broker.declared.records import QueueRecord, encoded
from amqp_server.broker.declared.settings import effective_settings
from amqp_server.broker.recovery import recovery, stored_queues
from persistence.commits.holds import Holds
from persistence.commits.layer import Lone
from persistence.journal import Journal
from quorum_queue.clock import QueueTime
from quorum_queue.local_host import LocalHost, NodeServices
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.snapshot import sizes_of
from quorum_queue.memory import MemoryBudget, ReadAhead
from tests import turns
from tests.clocks import ManualClock
from tests.stores.memory import MemoryEnvironment, MemoryStore

QUEUE_ID = 7
PERSISTENT = Attributes(persistent=True)
#: Used by nodes that are made from now on.
READ_AHEAD = ReadAhead()


class Wakes:
    """Timers: a list of hosts and the times at which they want to be woken."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Any]] = []

    def wake(self, host: Any, at_ms: int) -> None:
        self.asked.append((at_ms, host))

    def run(self, now: int) -> None:
        due = [host for at_ms, host in self.asked if at_ms <= now]
        self.asked = [(at_ms, host) for at_ms, host in self.asked if at_ms > now]
        for host in due:
            host.wake()


class Letters:
    """The dead-letter sender: keeps the letters it gets, if their target is there."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, str]] = []
        self.takes = True

    def dead_letter(
        self,
        queue: Any,
        run: Run,
        reason: Reason,
        done: Callable[[bool], None] | None,
        letter: Letter | None = None,
    ) -> None:
        assert run.contents is not None
        if self.takes:
            self.taken += [(content, reason) for content in run.contents]
        if done is not None:
            done(self.takes)


class Requests:
    """The commit task: `commit` of the node is its one step."""

    def __init__(self, environment: MemoryEnvironment) -> None:
        self._environment = environment
        self._holds = Holds(environment.pending)

    @property
    def unsynced(self) -> bool:
        pending = self._environment.pending
        return bool(pending.open) or len(pending.layers) > 1

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
            self._environment.pending.open.when_durable(done, alone)


class Marks:
    """As persistence.delivered_marks: the last marks of each slot, whatever was there before."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}

    def mark(self, slot: int, seq: int) -> None:
        self.slots[slot] = seq

    def get(self, slot: int) -> int:
        return self.slots.get(slot, -1)

    def allocate(self) -> int:
        slot = len(self.slots)
        self.slots[slot] = -1
        return slot

    def free(self, slot: int) -> None:
        del self.slots[slot]

    def retain(self, slots: Iterable[int]) -> None:
        self.slots = {slot: self.get(slot) for slot in slots}


class Publisher:
    """Counts its answers; no number may come twice."""

    def __init__(self) -> None:
        self.confirms: set[int] = set()
        self.refusals: set[int] = set()

    def _answer(self, first: int, last: int, answers: set[int]) -> None:
        numbers = set(range(first, last + 1))
        assert numbers
        assert numbers.isdisjoint(self.confirms | self.refusals)
        answers |= numbers

    def confirmed(self, first: int, last: int) -> None:
        self._answer(first, last, self.confirms)

    def refused(self, first: int, last: int) -> None:
        self._answer(first, last, self.refusals)

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)


class Receiver:
    """A consumer's sink: (delivery id, content, redelivered) as they came."""

    def __init__(self) -> None:
        self.received: list[tuple[int, bytes, bool]] = []

    def failed(self, error: Exception) -> None:
        raise error

    def deliver(self, consumer: Consumer | None, run: Run, first_id: int) -> None:
        assert run.contents is not None
        assert len(run.contents) == len(run.seqs)
        self.received += [
            (first_id + index, content, run.redelivered) for index, content in enumerate(run.contents)
        ]

    @property
    def contents(self) -> list[bytes]:
        return [content for _, content, _ in self.received]


class OnceOnly:
    """A journal that checks its own rule: a sequence number is written once in a queue's life."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._written: set[int] = set()

    def append(
        self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes], head_parts: int = 0
    ) -> None:
        seqs = set(range(first_seq, first_seq + count))
        assert seqs.isdisjoint(self._written)
        self._written |= seqs
        self._journal.append(queue_id, first_seq, count, payload, head_parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def once_only(store: MemoryStore) -> Journal:
    journal: Any = OnceOnly(Journal(store))
    return cast("Journal", journal)


class HostedQueue:
    """The topology's queue: notes what its host reports."""

    name = "q"
    vhost = SimpleNamespace(name="/")

    def __init__(self, marks: Marks, slots: list[int]) -> None:
        self.marks, self.slots = marks, slots
        self.left: list[int] = []
        self.errors: list[Exception] = []
        #: Changes of messages, if its settings ask for events.
        self.told: list[tuple[int, int, int, bytes]] = []
        #: How often the host has asked for its deletion.
        self.seals = 0

    disconnected_ms = 0

    def renew(self) -> None: ...

    def sealed(self) -> None:
        self.seals += 1

    def messages_changed(self, told: list[tuple[int, int, int, bytes]]) -> None:
        self.told += told

    def consumer_gone(self, left: int) -> None:
        self.left.append(left)

    def consumers_lost(self) -> None: ...

    def consumer_lost(self, key: Any) -> None: ...

    def more_marks(self, count: int) -> list[int]:
        return [*self.slots, *(self.marks.allocate() for _ in range(count))]

    def host_failed(self, error: Exception) -> None:
        raise error


class QueueNode:
    def __init__(self, budget_bytes: int = 1 << 30) -> None:
        self.environment = MemoryEnvironment()
        self.clock = ManualClock()
        self.wakes = Wakes()
        self.letters = Letters()
        self.marks = Marks()
        self.budget_bytes = budget_bytes
        self.services = self._services()

    def _services(self) -> NodeServices:
        commits = Requests(self.environment)
        return NodeServices(
            clock=self.clock,
            queue_time=QueueTime(self.clock),
            turn=turns.at_once(commits),
            memory=MemoryBudget(self.budget_bytes),
            timers=self.wakes,
            dead_letters=self.letters,
            journal=once_only(self.environment),
            spill=once_only(self.environment.spill),
            commits=commits,
            marks=self.marks,
            read_ahead=READ_AHEAD,
        )

    def host(self, settings: Settings, *, journalled: bool) -> LocalHost:
        slots = [self.marks.allocate() for _ in range(settings.priority_max + 1)] if journalled else []
        return self._local(Machine(settings), slots, journalled=journalled)

    def _local(self, machine: Machine, slots: list[int], *, journalled: bool) -> LocalHost:
        queue = HostedQueue(self.marks, slots)
        return LocalHost(queue, QUEUE_ID, machine, self.services, journalled=journalled, marks=slots)

    def commit(self) -> None:
        """Make all submitted changes durable; the waiting confirms follow."""
        self.environment.flush()
        self.environment.spill.flush()

    def crash(self, arguments: dict[str, object], producers: int = 100_000) -> LocalHost:
        """Kill -9 and start again: uncommitted changes are gone, the marks are not."""
        self.environment.crash()
        self.wakes = Wakes()
        self.services = self._services()
        record = QueueRecord("/", "q", QUEUE_ID, False, encoded(arguments), deduplication_producers=producers)
        slots = list(self.marks.slots)
        settings = effective_settings(recovery.parsed_of(record), producers)
        machine = stored_queues.read_queue(record, settings, slots, self.services)
        return self._local(machine, slots, journalled=True)


def publish(
    host: LocalHost,
    contents: list[bytes],
    origin: Publisher | None = None,
    first: int = 1,
    attributes: Attributes = PERSISTENT,
    head: bytes = b"head",
) -> None:
    host.submit(("enqueue", Run(range(len(contents)), list(contents), head, attributes), origin, first))


def resident_bytes(host: LocalHost) -> int:
    """Return the size of the bodies that the queue really has in memory."""
    machine = host.machine
    runs = list(machine.ready.runs())
    runs += [run for consumer in machine.consumers.by_key.values() for run in consumer.checkout.runs]
    runs += [run for run, _ in machine.dead_lettering.values()]
    runs += list(machine.delayed.runs())
    return sum(sum(sizes_of(run)) for run in runs if run.in_memory)
