"""What there is in a virtual host, and the time of the present step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.model.spec import settings
from tests.model.spec.channels import Channel, Session, User
from tests.model.spec.messages import Choice, Copy, Message, Presence
from tests.model.spec.producers import Epochs
from tests.model.spec.queues import Consumer, Queue
from tests.model.spec.routing import BY_KEY, CHOOSING, PREDECLARED, Binding, Exchange, route
from tests.model.spec.streams import Log

#: With many deliveries, expiry is looked at so often, s.
TICK_S = 0.003


@dataclass
class Broker:
    """What the model takes for granted of the broker that it looks at."""

    nodes: int = 1
    #: Default delivery limit of quorum queues.
    delivery_limit: int | None = 20
    #: True if an answer says that all consequences of earlier requests are there, as on a single node of mqd.
    prompt: bool = True
    #: True if a passive declare counts all messages that were confirmed, and all consumers with a consume-ok,
    #: whichever nodes the clients use.
    exact_counts: bool = True
    #: True if a message expires at its time wherever it stands, not only as the first one of its queue; None
    #: if that is not known.
    expires_anywhere: bool | None = True
    #: Names of offsets that a stream keeps: a further one is refused.
    names_max: int = 1000
    #: Runs of unacked messages that a group keeps for a partition: beyond that a member gets nothing new.
    gaps_max: int = 4096
    #: True until all nodes have been upgraded from the last release.
    old: bool = False
    #: By how much later than its end a message may be on its way to a client.
    slack_s: float = 0.0


@dataclass(eq=False)
class State:
    broker: Broker
    queues: dict[str, Queue | Log] = field(default_factory=dict)
    exchanges: dict[str, Exchange] = field(
        default_factory=lambda: {name: Exchange(name, kind) for name, kind in PREDECLARED.items()}
    )
    bindings: list[Binding] = field(default_factory=list)
    #: Users who made bindings, and all users by name.
    binders: dict[tuple[str, str], str] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    epochs: Epochs = field(default_factory=Epochs)
    policies: list[settings.Policy] = field(default_factory=list)
    operator_policies: list[settings.Policy] = field(default_factory=list)
    #: Limits of the virtual host.
    queues_max: int | None = None
    connections_max: int | None = None
    #: Auto-delete queues whose last consumer has left: gone a moment later.
    vanishing: list[str] = field(default_factory=list)
    #: Monotonic time now, and when the present step was begun.
    now: float = 0.0
    sent_at: float = 0.0
    step: int = 0
    #: When messages of transactions were published, by number: their delay begins then.
    published_at: dict[int, float] = field(default_factory=dict)
    sent_times: dict[int, float] = field(default_factory=dict)
    #: For how long the present step may last in the broker.
    lasts_s: float = 0.0
    ordinal: int = 0
    _ticked: float = 0.0
    #: Consumers of higher priority that had room while another one got a message in this step.
    passed_over: list[tuple[Queue, Consumer, Consumer]] = field(default_factory=list)
    #: Consumers that got room in this step, for each settle: the broker may hand out messages between two.
    roomier: list[list[Consumer]] = field(default_factory=list)
    #: True between a fault and its end.
    troubled: bool = False
    #: Step of the last fault, or of a connection that was lost.
    struck: int = 0
    #: Messages whose exchange chose a queue that nobody has seen yet.
    choices: list[Choice] = field(default_factory=list)

    @property
    def slack_s(self) -> float:
        return self.broker.slack_s

    def begin_step(self, now: float) -> None:
        self.step += 1
        self.roomier.clear()
        self.sent_at = self.now = self.sent_times[self.step] = now
        for queue in self.queues.values():
            if isinstance(queue, Queue):
                queue.tidy()

    @contextmanager
    def room_made(self, channel: Channel) -> Iterator[None]:
        """Note which consumers get room by a settle."""
        full = [each for each in channel.consumers.values() if not each.spare]
        yield
        self.roomier.append([each for each in full if each.spare])

    def tick(self, now: float, *, again: bool = False) -> None:
        """Time goes on. `again`: there was a tick a moment ago, which may do."""
        self.now = now
        if again and now - self._ticked < TICK_S:
            return
        self._ticked = now
        for queue in list(self.queues.values()):
            if isinstance(queue, Queue):
                queue.tick()

    def _settings(self, queue: Queue) -> settings.Settings:
        policy, operators = (
            settings.chosen(each, queue.kind, queue.name) for each in (self.policies, self.operator_policies)
        )
        return settings.combined(queue.kind, queue.arguments, policy, operators, self.broker.delivery_limit)

    def locked(self, queue: Queue | Log, session: Session) -> bool:
        return isinstance(queue, Queue) and queue.owner is not None and queue.owner is not session

    def may_read(self, group: Queue, stream: str) -> bool:
        """True if the user who declared the group, or who bound the stream later, may read the stream."""
        names = {group.declarer, self.binders.get((group.arguments["x-stream"], stream), group.declarer)}
        return any(name not in self.users or self.users[name].may("read", stream) for name in names)

    def unread_by(self, user: User, group: Queue | Log) -> list[str]:
        """Streams of a group that a user may not read: it can't be a member then."""
        if isinstance(group, Log) or group.kind != "stream-group":
            return []
        return [name for name in self.streams_of(group.arguments["x-stream"]) if not user.may("read", name)]

    def streams_of(self, name: str) -> list[str]:
        """The partitions of a stream or a super stream."""
        exchange = self.exchanges.get(name)
        if exchange is not None and exchange.kind == "x-super-stream":
            bound = [b.destination for b in self.bindings if b.source == name]
            return exchange.partitions or bound
        return [name] if isinstance(self.queues.get(name), Log) else []

    def _route(self, exchange: str, keys: list[str], headers: dict[str, Any]) -> set[str]:
        return route(self.exchanges, self.bindings, exchange, keys, headers, self.queues)

    def _choice(self, message: Message, targets: set[str]) -> Choice | None:
        """What an exchange that takes one of its bindings makes of these targets; it may know the one."""
        exchange = self.exchanges.get(message.exchange)
        if exchange is None or exchange.kind not in CHOOSING or len(targets) < 2:
            return None
        memory = exchange.chosen if exchange.kind in BY_KEY else None
        if memory is not None and message.key in memory:
            targets.intersection_update({memory[message.key]})
            return None
        return Choice(message, self.step, memory)

    def _into_group(self, group: Queue, log: Log, entry: Copy) -> None:
        readable = self.may_read(group, log.name)
        presence = Presence.COMING if entry.presence is not Presence.MAYBE else Presence.MAYBE
        if not readable or log.may_be_compacted(entry) or not log.kept(entry):
            # A tombstone goes when it is old.
            presence = Presence.MAYBE
        copy = Copy(entry.message, 0, entry.sent, log.name, presence, ordinal=len(group.copies))
        copy.exchange, copy.key, copy.ready_at = entry.message.exchange, entry.message.key, self.step
        group.copies.append(copy)
