"""Events for the exchange amq.rabbitmq.event, as RabbitMQ's rabbitmq_event_exchange publishes them.

What becomes of messages goes to amq.mqd.event, for queues that ask (x-message-status-events).

Each event is a message without a body: the routing key is its name, and headers have the details. The node
that has proposed a change of the topology publishes its event when it applies the change, so an event is
published once in a cluster, with the name of the user. Events of a connection are published by its node. No
event is made if no queue is bound, and a node that ends loses the events that it has not published yet. If a
worker of a node is killed, its next process tells the ends of its connections.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Final, Protocol

from amqp_server.broker.topology.event_headers import pid
from amqp_server.turn import Turn
from amqp_server.wire import content, tables
from amqp_server.wire.content import Properties
from amqp_server.wire.frames import FRAME_BYTES_MIN, SHORT_STRING_MAX, short_string
from exchanges.router import AT_ONCE, Router, RoutingTooLong, Walk
from quorum_queue.clock import Clock
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.ports import Host

logger = logging.getLogger("mqd.events")

EVENT: Final = "amq.rabbitmq.event"
#: The exchange for what becomes of messages: there may be very many.
MESSAGE_EVENT: Final = "amq.mqd.event"
#: RabbitMQ's name for the broker itself.
INTERNAL: Final = "rmq-internal"
#: The user on whose behalf the current change is proposed.
ACTING: ContextVar[str] = ContextVar("acting", default=INTERNAL)

_PERSISTENT: Final = bytes((2,))


class Bound(Protocol):
    """A queue that may be bound to the exchange."""

    host: Host


class Home(Protocol):
    """The vhost with the exchange."""

    router: Router

    @property
    def queues(self) -> Mapping[str, Bound]: ...


class KeptConnections(Protocol):
    """The open connections of this process, for the next one: see amqp_server.workers.open_connections."""

    def begun(self, number: int, told: Mapping[str, object]) -> None: ...

    def ended(self, number: int) -> None: ...


class Events:
    """See amqp_server.turn.Gatherer."""

    def __init__(
        self,
        turn: Turn,
        clock: Clock,
        vhosts: Mapping[str, Home],
        *,
        node: str,
        node_name: str,
        vhost: str,
        waiting_max: int,
        frame_max: int,
    ) -> None:
        """`node_name` is that of the whole node, if it is several processes."""
        self._turn = turn
        self._clock = clock
        self._vhosts = vhosts
        self._node = node
        self._node_name = node_name
        self.vhost = vhost
        self._frame_max = frame_max
        self._waiting_max = waiting_max
        #: The user whose change is being applied; None: another node has proposed it, and publishes the
        #: event.
        self.user: str | None = None
        #: Sessions of this process, by number, that began in another one of the node: with which name of the
        #: process, and which number.
        self.began_as: dict[int, tuple[str, int]] = {}
        #: None if no other process tells what was lost with this one.
        self.kept: KeptConnections | None = None
        self._waiting: deque[tuple[str, str, Mapping[str, object], int]] = deque()
        #: The walk that finds the route of the first waiting one.
        self._walk: Walk | None = None
        #: Events dropped for lack of room since the last log line about that.
        self._left_out = 0

    @property
    def wanted(self) -> bool:
        """True if anything is bound to the exchange."""
        return self.wants(EVENT)

    def wants(self, exchange: str) -> bool:
        """Return whether anything is bound to this exchange."""
        vhost = self._vhosts.get(self.vhost)
        return vhost is not None and vhost.router.in_use(exchange)

    def origin(self, session: int) -> tuple[str, int]:
        """Return the process in which a session of this one began, and its number there."""
        return self.began_as.get(session) or (self._node, session)

    def pid(self, session: int, channel: int = 0) -> str:
        """Return the pid in all events of a session, or of its channel: it stays when a connection goes to
        another process of the node.
        """
        return pid(*self.origin(session), channel)

    def changed(self, key: str, headers: Mapping[str, object]) -> None:
        """Publish an event for a change of the topology that is being
        applied, if this node has proposed it.
        """
        if self.user is not None and self.wanted:
            self.tell(key, {**headers, "user_who_performed_action": self.user})

    def tell(self, key: str, headers: Mapping[str, object], exchange: str = EVENT) -> None:
        """Publish an event at the end of the turn, when the change is done."""
        if len(self._waiting) >= self._waiting_max:
            self._left_out += 1
            return
        self._waiting.append((exchange, key, headers, self._clock.wall_ms()))
        self._turn.gather(self)

    def alarms_changed(self, changes: Sequence[tuple[str, bool]]) -> None:
        """Publish events for alarms of the node that were raised or cleared."""
        if not self.wanted:
            return
        for name, raised in changes:
            self.tell("alarm.set" if raised else "alarm.cleared", {"source": name, "node": self._node_name})

    def flush(self) -> None:
        turn = self._turn
        if not turn.is_left(self):
            turn.contain(self, self._publish_all)

    def failed(self, error: Exception) -> None:
        logger.error("events could not be published", exc_info=error)
        self._waiting.clear()
        self._walk = None

    def _publish_all(self) -> None:
        waiting, turn = self._waiting, self._turn
        while waiting:
            if self._publish_some(*waiting[0]):
                waiting.popleft()
                self._walk = None
            if waiting and turn.overdue():
                turn.later(self, self._publish_all)
                return
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            logger.warning("%d events were dropped: more than event_waiting_max were waiting", left_out)

    def _publish_some(self, exchange: str, key: str, headers: Mapping[str, object], now_ms: int) -> bool:
        """Publish an event; False if its route is still looked for."""
        vhost = self._vhosts.get(self.vhost)
        if vhost is None:
            return True
        if self._walk is None:
            self._walk = vhost.router.begin(exchange, (key,))
        try:
            if not self._walk.go_on(AT_ONCE):
                return False
        except RoutingTooLong:
            return True
        self._publish(vhost, exchange, key, headers, now_ms, self._walk.route.queues)
        return True

    def _publish(
        self,
        vhost: Home,
        exchange: str,
        key: str,
        headers: Mapping[str, object],
        now_ms: int,
        targets: Sequence[str],
    ) -> None:
        if not targets:
            return
        properties = Properties(
            {
                "headers": tables.encode({**headers, "timestamp_in_ms": now_ms}),
                "delivery_mode": _PERSISTENT,
                "timestamp": (now_ms // 1000).to_bytes(8, "big"),
            }
        )
        header = properties.encode(0)
        frame_max = self._frame_max
        framed = content.build(header, b"", 1, frame_max)
        small = len(header) + 8 <= FRAME_BYTES_MIN
        attributes = Attributes(True, 0, None, 1, FRAME_BYTES_MIN if small else frame_max)
        head = short_string(exchange) + short_string(key.encode()[:SHORT_STRING_MAX])
        for name in targets:
            if name not in vhost.queues:
                # It was deleted while the route was looked for.
                continue
            host = vhost.queues[name].host
            run = Run(range(1), [framed], head, attributes)
            if host.counts_bytes:
                run = content.by_overhead(run)[0]
            # Events have no ids.
            host.submit(("enqueue_known", run, None, 1, []) if host.records else ("enqueue", run, None, 1))
