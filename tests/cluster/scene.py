"""One fault, from the load before it to the verdict after it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.cluster.disks import SlowDisks
from tests.cluster.ledger import RULES, Ledger, Reader
from tests.cluster.links import isolate, sever
from tests.cluster.load import Load, longest_silence
from tests.cluster.logs import LOG_RULES, LogLoad
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import Cluster, Member, wait_for
from tests.cluster.questions import Questions
from tests.reliability.bodies import number
from tests.reliability.client import ChannelClosed, Client, Delivery, Gone

QUEUES = 3
#: The node through which a queue is declared leads it, so that the test spreads leaders.
QUORUM: dict[str, Any] = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
BEFORE_S = 1.0
AFTER_S = 1.0
#: Fewer would prove little.
CONFIRMED_MIN = 500
#: mqd's log line about an entry that its disk has lost.
LOST_ENTRY = "cannot be read"
#: How long a delivery may be held by a node that was away.
LATE_S = 20.0
RECOVER_MAX_S = QUIET_MAX_S = PATIENCE_S
FETCH_SILENCE_S = 2.0
FAILURES_MAX = 20
FAILURE_CHARS = 700


class Scene:
    """Faults act through this. It notes the faults of each node, and so what clients may suffer."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        name: str,
        slow_disks: SlowDisks | None = None,
        *,
        streams: bool = True,
    ) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.slow_disks = slow_disks
        self.queues = [f"{name}-{i}" for i in range(QUEUES)]
        self.ledgers = [
            Ledger(queue, self.excused, nacked_may_be_late=cluster.has_guests) for queue in self.queues
        ]
        self.load = Load(cluster, self.ledgers, self)
        #: Streams and a super stream, if the broker has them as mqd does.
        self.logs: LogLoad | None = None
        if streams and isinstance(cluster, MqdCluster):
            self.logs = LogLoad(cluster, name, self, self.load.connections)
            self.load.publishers += self.logs.publishers
            self.load.consumers_of_logs += self.logs.readers
        self.failures: list[str] = []
        #: The requests while one link was dead.
        self.questions: Questions | None = None
        self._name = name
        #: Nodes that were down, frozen or cut off at some time.
        self.hit: set[str] = set()
        self.struck_at = self.healing_at = 0.0
        #: True if stored data has been damaged.
        self.damaged = False
        self._log_chars = {name: len(cluster.log(name)) for name in cluster.names}
        #: By node, until when it was down.
        self._down: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        self._lock = threading.Lock()

    # -- what the load asks ----------------------------------------------------------------------------------

    def down(self, name: str, since: float) -> bool:
        return since < self._down.get(name, 0.0)

    def excused(self, name: str) -> bool:
        return time.monotonic() < self._absent.get(name, 0.0)

    def fail(self, text: str) -> None:
        text = text[:FAILURE_CHARS]
        with self._lock:
            if len(self.failures) < FAILURES_MAX and text not in self.failures:
                self.failures.append(text)

    # -- what is done ----------------------------------------------------------------------------------------

    def strike(self, *names: str) -> None:
        """A fault begins; clients of these nodes will notice it."""
        if not self.struck_at:
            self.struck_at = time.monotonic()
        for ledger in self.ledgers:
            ledger.disturbed = True
        self.hit.update(names)
        for name in names:
            self._absent[name] = float("inf")

    def heal(self, *names: str) -> None:
        self.healing_at = now = time.monotonic()
        for name in names:
            self._absent[name] = now + LATE_S

    def _fall(self, *names: str) -> None:
        self.strike(*names)
        for name in names:
            self._down[name] = float("inf")

    def _rise(self, *names: str) -> None:
        self.heal(*names)
        for name in names:
            self.cluster.launch(name)
        for name in names:
            self.cluster.ready(name)
        for name in names:
            self._down[name] = time.monotonic()

    @contextlib.contextmanager
    def killed(self, *names: str) -> Iterator[None]:
        self._fall(*names)
        for name in names:
            self.cluster.kill(name)
        yield
        self._rise(*names)

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        self._fall(name)
        self.cluster.stop(name)
        yield
        self._rise(name)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        self.strike(name)
        self.cluster.freeze(name)
        yield
        self.heal(name)
        self.cluster.thaw(name)

    @contextlib.contextmanager
    def cut_off(
        self,
        name: str,
        shape: Callable[..., None] = isolate,
        **conditions: object,
    ) -> Iterator[None]:
        """`shape` is isolate, mute or deafen."""
        self.strike(name)
        shape(self.cluster.links, name, self.cluster.names, **(conditions or {"hold": True}))
        yield
        self.heal(name)
        shape(self.cluster.links, name, self.cluster.names)

    @contextlib.contextmanager
    def link_cut(self, one: str, two: str, *, both: bool = True, **conditions: object) -> Iterator[None]:
        """Nothing gets from `one` to `two`, nor back if `both`. No client may fail: all must go on."""
        found = conditions or {"hold": True}
        self.strike()
        with self.asked():
            if both:
                sever(self.cluster.links, one, two, **found)
            else:
                self.cluster.links.set(one, two, **found)  # type: ignore[arg-type]
            yield
        self.heal()
        sever(self.cluster.links, one, two)

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Meanwhile clients of all nodes declare, and probes ask whether the nodes are ready."""
        with Questions(self.cluster, self, self._name) as self.questions:
            yield
        if not all(self.questions.ready.values()) and None not in self.questions.ready.values():
            self.fail(f"at the end of the fault the nodes say that they are ready: {self.questions.ready}")

    def hold(self, seconds: float) -> None:
        """Let the load go on."""
        time.sleep(seconds)

    # -- what is asked ---------------------------------------------------------------------------------------

    def leader(self) -> str:
        return self.cluster.leader(self.queues[0])

    def followers(self) -> list[str]:
        leader = self.leader()
        return [name for name in self.cluster.names if name != leader]

    def ends(self) -> tuple[str, str]:
        """Return two nodes that lead: the first leads all declarations, if there is such a node, and each
        leads a queue.
        """
        first = self.cluster.topology_leader() or self.leader()
        leaders = [self.cluster.leader(queue) for queue in self.queues]
        return first, next(name for name in (*leaders, *self.cluster.names) if name != first)

    def caught_up(self, within_s: float = RECOVER_MAX_S) -> float:
        """Wait until every replica has applied what its leader has applied now; return the seconds since the
        heal.
        """
        for queue in self.groups:
            found: list[Member] = []

            def led(queue: str = queue, found: list[Member] = found) -> bool:
                found[:] = self.cluster.members(queue)
                return any(member.leads and member.online for member in found)

            def state(queue: str = queue) -> str:
                return str(self.cluster.members(queue))

            wait_for(f"{queue} has a leader", led, within_s, state)
            target = max(member.applied for member in found if member.leads)

            def reached(queue: str = queue, target: int = target) -> bool:
                return self._all_at(queue, target)

            wait_for(f"replicas of {queue} reach {target}", reached, within_s, state)
        return time.monotonic() - self.healing_at

    def _all_at(self, queue: str, target: int) -> bool:
        members = self.cluster.members(queue)
        nodes = {member.node for member in members if member.online and member.applied >= target}
        return nodes >= set(self.cluster.names)

    @property
    def groups(self) -> list[str]:
        """Quorum queues and streams."""
        return self.queues + (self.logs.names if self.logs is not None else [])

    # -- from beginning to end -------------------------------------------------------------------------------

    def declare(self) -> None:
        for i, queue in enumerate(self.queues):
            with contextlib.closing(
                Client(self.cluster.port(self.cluster.names[i % len(self.cluster.names)]))
            ) as client:
                client.declare(queue, **QUORUM)
        if self.logs is not None:
            self.logs.declare()

    def delete(self) -> None:
        with contextlib.closing(Client(self.cluster.port(self.cluster.names[0]))) as client:
            for queue in self.queues:
                client.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
        if self.logs is not None:
            self.logs.delete()

    def rescue(self) -> None:
        """New consumers fetch the messages that the load's consumers did not get: a message is lost only if
        no node has it.
        """
        for queue, ledger in zip(self.queues, self.ledgers, strict=True):
            missing = ledger.waiting()
            if not missing:
                continue
            for name in self.cluster.names:
                with contextlib.suppress(Gone, OSError, TimeoutError, ChannelClosed):
                    self._fetch(queue, ledger, name)
            self.fail(f"{queue}: consumers did not get {missing} messages, new ones {ledger.waiting()}")

    def _fetch(self, queue: str, ledger: Ledger, name: str) -> None:
        reader = Reader(name, 0)
        with contextlib.closing(Client(self.cluster.port(name))) as client:
            client.consume(queue, 0)
            while events := list(client.receive(FETCH_SILENCE_S)):
                for event in events:
                    assert isinstance(event, Delivery), event
                    ledger.deliver(reader, number(event.body), event.redelivered)
                    client.ack(event.tag)
            client.sync(0)

    def verify_quiet(self) -> None:
        """All clients are gone: check that no message is left, that nobody holds one, and that replicas are
        equal.
        """
        for queue in self.queues:
            try:
                wait_for(
                    f"{queue} is empty, nothing unacked",
                    lambda queue=queue: self.cluster.depth(queue) == (0, 0),  # type: ignore[misc]
                    QUIET_MAX_S,
                    lambda queue=queue: str(self.cluster.depth(queue)),  # type: ignore[misc]
                )
                wait_for(
                    f"replicas of {queue} are equal",
                    lambda queue=queue: _equal(self.cluster.members(queue), len(self.cluster.names)),  # type: ignore[misc]
                    QUIET_MAX_S,
                    lambda queue=queue: str(self.cluster.members(queue)),  # type: ignore[misc]
                )
            except AssertionError as error:
                self.fail(str(error))

    def verify_logs(self) -> None:
        """A false alarm hides a real one: no node may report a lost entry where nothing was damaged."""
        for name, began in self._log_chars.items():
            alarms = [line for line in self.cluster.log(name)[began:].splitlines() if LOST_ENTRY in line]
            if alarms and not self.damaged:
                self.fail(f"{name} takes {len(alarms)} entries for lost, such as: {alarms[0]}")


def _equal(members: list[Member], how_many: int) -> bool:
    states = {(member.applied, member.digest) for member in members}
    return len(states) == 1 and len({member.node for member in members}) >= how_many


@dataclass(frozen=True)
class Outcome:
    fault: str
    confirmed: int
    #: Counts by the rules of the ledger.
    counts: dict[str, int]
    late: int
    nacked: int
    redelivered: int
    #: The longest time without a confirm: at nodes without a fault, until the heal began, and after that; at
    #: nodes with a fault, in all.
    silent_s: float | None
    silent_after_s: float | None
    silent_hit_s: float | None
    #: The longest time without a delivery at nodes without a fault, until the heal began.
    starved_s: float | None
    #: From the beginning of the heal.
    agreed_s: float
    #: The requests while one link was dead, if that was the fault.
    questions: Questions | None
    failures: list[str]
    #: For streams: the confirmed messages, and counts by the rules of their checks.
    log_confirmed: int
    log_counts: dict[str, int]

    @property
    def held(self) -> bool:
        return not (self.failures or any(self.counts.values()) or any(self.log_counts.values()))


def run(cluster: Cluster, name: str, fault: Callable[[Scene], None], **settings: object) -> Outcome:
    """Load, the fault, its heal, the drain, the verdict."""
    scene = Scene(cluster, name=f"chaos-{name.replace(' ', '-')}", **settings)  # type: ignore[arg-type]
    scene.declare()
    load = scene.load
    agreed_s = float("nan")
    try:
        load.start()
        scene.hold(BEFORE_S)
        fault(scene)
        agreed_s = scene.caught_up()
        load.wait_all_confirmed("after the heal", since=scene.healing_at, within_s=RECOVER_MAX_S)
        scene.hold(AFTER_S)
        wait_for("there was some load", lambda: load.confirmed > CONFIRMED_MIN)
        ended = time.monotonic()
        load.stop_publishing()
        load.drain()
        if scene.logs is not None:
            scene.logs.verify()
            scene.logs.topics.close()
    except AssertionError as error:
        ended = time.monotonic()
        scene.fail(str(error))
    finally:
        load.stop()
    scene.rescue()
    scene.verify_quiet()
    scene.verify_logs()
    for ledger in scene.ledgers:
        ledger.close()
        scene.failures += ledger.faults()
    logs = scene.logs.topics if scene.logs is not None else None
    if logs is not None:
        scene.failures += logs.faults()
    outcome = Outcome(
        name,
        load.confirmed,
        {rule: sum(ledger.counts[rule] for ledger in scene.ledgers) for rule in RULES},
        sum(ledger.late for ledger in scene.ledgers),
        sum(len(ledger.nacked) for ledger in scene.ledgers),
        sum(ledger.redelivered for ledger in scene.ledgers),
        longest_silence(load.publishers, scene.struck_at, scene.healing_at, lambda n: n not in scene.hit),
        longest_silence(load.publishers, scene.healing_at, ended, lambda n: n not in scene.hit),
        longest_silence(load.publishers, scene.struck_at, ended, lambda n: n in scene.hit),
        longest_silence(load.consumers, scene.struck_at, scene.healing_at, lambda n: n not in scene.hit),
        agreed_s,
        scene.questions,
        scene.failures,
        len(logs.confirmed) if logs is not None else 0,
        logs.log_counts if logs is not None else dict.fromkeys(LOG_RULES, 0),
    )
    scene.delete()
    return outcome
