"""Clients of the simulated cluster, in AMQP: they declare, bind, delete, publish, get, consume, purge, and
go.

Some publish and ack in transactions, the others with confirms.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from pamqp import base, commands, header

from amqp_server.channel.moving import Picked, pick
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session, State
from amqp_server.errors import AMQPError
from amqp_server.wire import content, frames
from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.machine import versions
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.ready import Place
from quorum_queue.ports import Refused
from tests.amqp_server.cluster.simulation.messages import Transaction
from tests.amqp_server.connection.node import CAPABILITIES, Delivery, decoded
from tests.turns import Violation

if TYPE_CHECKING:
    from tests.amqp_server.cluster.simulation.cluster import Cluster
    from tests.amqp_server.cluster.simulation.node import SimulatedNode

FRAME_MAX = 131_072
QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": -1}
EXPIRES_MS = 2_500


class Kind:
    """The arguments with which queues of one kind are declared."""

    def __init__(
        self, *, durable: bool = True, exclusive: bool = False, auto_delete: bool = False, **arguments: Any
    ) -> None:
        self.durable, self.exclusive, self.auto_delete = durable, exclusive, auto_delete
        self.arguments = {name.replace("_", "-"): value for name, value in arguments.items()}


#: Queues by their names. Few names, so that they are taken again and again.
QUEUES = {
    "quorum": Kind(x_queue_type="quorum", x_delivery_limit=-1),
    "two": Kind(x_queue_type="quorum", x_delivery_limit=-1, x_quorum_initial_group_size=2, x_quorum_target_group_size=3),
    "wide": Kind(x_queue_type="quorum", x_delivery_limit=-1, x_quorum_target_group_size=5),
    "lease": Kind(x_queue_type="quorum", x_delivery_limit=-1, x_expires=EXPIRES_MS),
    "default": Kind(),
    "classic": Kind(x_queue_type="classic"),
    "classic lease": Kind(x_queue_type="classic", x_expires=EXPIRES_MS),
    "transient": Kind(durable=False),
    "auto": Kind(auto_delete=True),
    "own": Kind(durable=False, exclusive=True),
    "mine": Kind(durable=False, exclusive=True),
}  # fmt: skip
EXCHANGES = {
    "headers": ("headers", True, False),
    "topic": ("topic", True, False),
    "auto": ("fanout", True, True),
    "passing": ("fanout", False, False),
    "auto too": ("direct", False, True),
}
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {}, {"x-match": "any", "a": 1}, {"x-match": "all", "a": 1, "b": {"c": True, "d": 2.5}}, {"n": [1, None, "x"], "m": 3, "l": "s"},
)  # fmt: skip


class Client:
    """One session with one channel, at one node."""

    #: The queues that it may declare, by their names.
    kinds: ClassVar[Mapping[str, Kind]] = QUEUES

    def __init__(
        self, world: Cluster, node: SimulatedNode, number: int, vhost: str, *, transactional: bool = False
    ) -> None:
        self.world = world
        self.transactional = transactional
        self.node = node
        self.number = number
        self.vhost = vhost
        self.random: Random = world.random
        self.outbox = Outbox(node.turn, self, 1 << 20)
        self.session = Session.logged_in(
            node.broker, self.outbox, self, name=f"client {number}", peer="127.0.0.1", user="guest",
            vhost=node.broker.vhost(vhost), frame_max=FRAME_MAX, channel_max=2047,
        )  # fmt: skip
        self.session.client.capabilities = dict(CAPABILITIES)
        self.channel = 0
        #: The request that is not answered yet.
        self.asked: tuple[str, Any] | None = None
        self.asked_at: dict[str, int] = {}
        #: Messages published and not answered yet, by number: bodies and the names of their queues.
        self.unconfirmed: dict[int, tuple[bytes, str]] = {}
        #: Messages published in the open transaction, and the deliveries settled in it.
        self.uncommitted: list[tuple[bytes, str]] = []
        self.uncommitted_tags: list[int] = []
        #: Acked in the open transaction, and the bodies of all deliveries of the channel.
        self.uncommitted_acks: list[bytes] = []
        self.bodies: dict[int, bytes] = {}
        self.published = 0
        #: Deliveries not acked yet, and queues of the consumers.
        self.unacked: dict[int, None] = {}
        self.consumers: dict[str, int] = {}
        self.tags = 0
        self.closing = False
        #: The broker's reasons for closing a channel or the connection.
        self.refusals: list[str] = []
        #: Bodies of the delivered messages, in order.
        self.received: list[bytes] = []
        #: Messages published and refused.
        self.nacked: list[bytes] = []
        #: Consumers that the broker cancelled.
        self.cancelled: list[str] = []
        self._held = b""
        node.clients.append(self)
        self._open_channel()

    def _open_channel(self) -> None:
        self.channel += 1
        self._forget_channel()
        mode = commands.Tx.Select() if self.transactional else commands.Confirm.Select()
        self.send(commands.Channel.Open(), mode, commands.Basic.Qos(prefetch_count=3))

    def abandon(self) -> None:
        """The channel is gone: messages that no commit has been sent for are never committed."""
        for body, _ in self.uncommitted:
            self.world.messages.forget(body)
        self.uncommitted = []

    def _forget_channel(self) -> None:
        self.abandon()
        self.uncommitted_tags, self.uncommitted_acks, self.bodies = [], [], {}
        self.asked = None
        self.unconfirmed, self.published = {}, 0
        self.unacked, self.consumers = {}, {}
        #: Messages that were picked out and are not settled, by delivery tag.
        self.picked: dict[int, bytes] = {}

    def send(self, *methods: base.Frame | bytes) -> None:
        data = b"".join(
            each if isinstance(each, bytes) else frames.method_frame(self.channel, each) for each in methods
        )
        self.node.turn.receive(self.session, data)

    def opened(self) -> None: ...

    def resumed(self) -> None: ...

    def flush(self) -> None:
        """Pass the frames that the outbox lets go to `collect`."""

    def ask(self, what: str, about: Any, method: base.Frame) -> str:
        self.asked, self.asked_at = (what, about), self.world.ledger.clocks()
        self.send(method)
        return f"{what} {about}"

    def queue_id(self, name: str) -> int:
        """Return the id of the queue that has this name here now, or 0."""
        queue = self.node.broker.vhost(self.vhost).queues.get(name)
        return 0 if queue is None else queue.queue_id

    # -- what comes back -------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take the frames that the broker has sent."""
        while data := b"".join(self.outbox.take()):
            self._held += data
            self.outbox.sent(len(data))
            if self.session.paused:
                self.node.turn.run(self.session.drained)
            self.node.turn.run(self.session.room)
        data, self._held = self._held, b""
        for channel, method in decoded(data):
            if channel == 0:
                self._of_connection(method)
            elif channel == self.channel:
                self._take(method)
        if self.session.state is State.CLOSED:
            self._ended()

    def _of_connection(self, method: base.Frame | Delivery) -> None:
        if isinstance(method, commands.Connection.Close):
            self.world.ledger.note("connections closed by the broker")
            self.refusals.append(str(method.reply_text))
            self.asked = None
            self.node.turn.receive(self.session, frames.method_frame(0, commands.Connection.CloseOk()))
            self._ended()
        elif isinstance(method, commands.Connection.CloseOk):
            if not self.closing:
                raise Violation(f"session {self.number} is closed, and nobody asked for it")
            self._ended()

    def _ended(self) -> None:
        self.abandon()
        if self in self.node.clients:
            self.node.clients.remove(self)

    def _lags(self, queue_id: int) -> bool:
        """Return whether another member has applied more. The group may have taken this node for down, and
        this node may not have heard of that.
        """
        groups = [node.cluster.replicas.groups.get(queue_id) for node in self.world.running]
        own = self.node.cluster.replicas.groups.get(queue_id)
        return own is not None and any(group is not None and group.applied > own.applied for group in groups)

    def _is_sealed(self, queue_id: int) -> bool:
        """Return whether the queue's log has its end: gets find it empty until all nodes know that."""
        groups = [node.cluster.replicas.groups.get(queue_id) for node in self.world.running]
        hosts = [group.machine for group in groups if group is not None]
        return any(isinstance(host, GroupHost) and host.replica.machine.sealed for host in hosts)

    def _take(self, method: base.Frame | Delivery) -> None:
        messages = self.world.messages
        if isinstance(method, Delivery):
            how = method.method
            if isinstance(how, commands.Basic.Return):
                messages.returned(method.body)
                return
            if isinstance(how, commands.Basic.GetOk):
                name, queue_id = self._answered("get")[1]
                if not messages.is_of(method.body, queue_id):
                    # The get waited for the topology, and then found another queue of this name.
                    queue_id = self.queue_id(name)
                self.world.ledger.use(queue_id, self.asked_at)
            else:
                assert isinstance(how, commands.Basic.Deliver)
                queue_id = self.consumers[str(how.consumer_tag)]
            self.received.append(method.body)
            away = queue_id in self.node.cluster.hosts.remote or self._lags(queue_id)
            messages.seen(method.body, queue_id, self.number, redelivered=bool(how.redelivered), away=away)
            self.world.ledger.note("redelivered" if how.redelivered else "received")
            self.unacked[int(how.delivery_tag or 0)] = None
            self.bodies[int(how.delivery_tag or 0)] = method.body
        elif isinstance(method, (commands.Basic.Ack, commands.Basic.Nack)):
            self._settled(method)
        elif isinstance(method, commands.Channel.Close):
            self.world.ledger.note(f"refused {method.reply_code}")
            self.world.log(f"session {self.number}: {method.reply_text}")
            self.refusals.append(str(method.reply_text))
            self.send(commands.Channel.CloseOk())
            self._open_channel()
        elif isinstance(method, commands.Basic.Cancel):
            self.consumers.pop(str(method.consumer_tag), None)
            self.cancelled.append(str(method.consumer_tag))
        elif not isinstance(
            method,
            (commands.Channel.OpenOk, commands.Confirm.SelectOk, commands.Tx.SelectOk, commands.Basic.QosOk),
        ):
            self._answer(method)

    def _answered(self, *what: str) -> tuple[str, Any]:
        if self.asked is None or self.asked[0] not in what:
            raise Violation(f"session {self.number} is answered {what}, and has asked {self.asked}")
        asked, self.asked = self.asked, None
        return asked

    def _answer(self, method: base.Frame) -> None:
        asked = self._answered(*_ASKED[method.name])
        self.world.ledger.note(f"{asked[0]} answered")
        if asked[0] == "delete":
            name, queue_id = asked[1]
            if queue_id and self.queue_id(name) == queue_id:
                raise Violation(f"queue {name} is said to be deleted, and is there")
        elif asked[0] == "declare":
            self.world.ledger.use(self.queue_id(asked[1]), self.asked_at)
        elif asked[0] == "get":
            if not self._is_sealed(asked[1][1]):
                self.world.ledger.use(asked[1][1], self.asked_at)
        elif asked[0] == "consume":
            name, tag = asked[1]
            # The queue may be another one than at the time of the request: a node may wait for the topology
            # first.
            self.consumers[tag] = self.queue_id(name) or self.consumers[tag]
        elif asked[0] == "purge":
            self.world.messages.purged(asked[1][1])
        elif asked[0] == "commit":
            for body, name in asked[1]:
                self.world.messages.confirmed(body, self.queue_id(name))
                self.world.ledger.note("committed")
        elif asked[0] == "rollback":
            self.unacked.update(dict.fromkeys(asked[1]))

    def _settled(self, method: commands.Basic.Ack | commands.Basic.Nack) -> None:
        last = method.delivery_tag or 0
        numbers = [number for number in self.unconfirmed if number <= last] if method.multiple else [last]
        for number in numbers:
            found = self.unconfirmed.pop(number, None)
            if found is None:
                raise Violation(f"session {self.number} is answered for {number}, which it has not published")
            body, name = found
            if isinstance(method, commands.Basic.Ack):
                self.world.messages.confirmed(body, self.queue_id(name))
                self.world.ledger.note("confirmed")
            else:
                self.nacked.append(body)

    # -- what it does ----------------------------------------------------------------------------------------

    def declare(self, name: str) -> str:
        kind = self.kinds[name.partition("/")[0]]
        return self.ask(
            "declare", name,
            commands.Queue.Declare(
                queue=name, durable=kind.durable, exclusive=kind.exclusive, auto_delete=kind.auto_delete,
                arguments=dict(kind.arguments),
            ),
        )  # fmt: skip

    def delete(self, name: str) -> str:
        queue_id = self.queue_id(name)
        self.world.ledger.asked[queue_id] = None
        if_unused, if_empty = self.random.random() < 0.2, self.random.random() < 0.2
        method = commands.Queue.Delete(queue=name, if_unused=if_unused, if_empty=if_empty)
        return self.ask("delete", (name, queue_id), method)

    def publish(self, name: str, count: int = 0, level: str = "") -> str:
        if self.world.levels and self._knows_levels:
            level = self.random.choice(self.world.levels)
        headers = self.headers() | ({"x-confirm": level} if level else {})
        properties = commands.Basic.Properties(delivery_mode=2, headers=headers or None)
        queue_id = self.queue_id(name)
        bodies: list[bytes] = []
        alarms = self.node.broker.alarms
        late = self.transactional or alarms.active or bool(alarms.elsewhere)
        for _ in range(count or self.random.choice((1, 1, 3))):
            body = self.world.messages.publish(queue_id, (self.vhost, name), late=late, led=level == "leader")
            if self.transactional:
                self.uncommitted.append((body, name))
            else:
                self.published += 1
                self.unconfirmed[self.published] = body, name
            bodies.append(body)
            self.send(
                commands.Basic.Publish(routing_key=name, mandatory=True),
                frames.raw_frame(2, self.channel, header.ContentHeader(0, len(body), properties).marshal()),
                frames.raw_frame(3, self.channel, body),
            )
        return f"publishes {bodies} to {name}"

    def headers(self) -> dict[str, Any]:
        """Headers of its next message."""
        return {}

    def sends(self, transaction: Transaction) -> None:
        """It sends the commit of this transaction."""

    @property
    def _knows_levels(self) -> bool:
        return self.node.broker.replication.version >= versions.CONFIRM_LEVELS

    @property
    def _knows_picks(self) -> bool:
        return self.node.broker.replication.version >= versions.PICKS and not self.transactional

    def commit(self) -> str:
        messages, self.uncommitted, self.uncommitted_tags = self.uncommitted, [], []
        for body, name in messages:
            self.world.messages.committing(body, self.queue_id(name))
        acked, self.uncommitted_acks = self.uncommitted_acks, []
        if self.node.broker.transactions.available:
            self.sends(self.world.messages.commit(self.number, [body for body, _ in messages], acked))
        return self.ask("commit", messages, commands.Tx.Commit())

    def rollback(self) -> str:
        self.abandon()
        tags, self.uncommitted_tags, self.uncommitted_acks = self.uncommitted_tags, [], []
        return self.ask("rollback", tags, commands.Tx.Rollback())

    def get(self, name: str) -> str:
        return self.ask("get", (name, self.queue_id(name)), commands.Basic.Get(queue=name))

    def pick(self, name: str, picks: Random) -> str:
        """Take messages out of the middle of a queue, as an operator does; or do away with one of those."""
        if self.picked and picks.random() < 0.6:
            tag = picks.choice(list(self.picked))
            body = self.picked.pop(tag)
            if picks.random() < 0.6:
                self.world.messages.moved(body)
                self.send(commands.Basic.Ack(delivery_tag=tag))
                return f"moves {body!r}"
            self.send(commands.Basic.Nack(delivery_tag=tag, requeue=True))
            return f"gives {body!r} back"
        queue_id, places = self.queue_id(name), self._places_in(name)
        if not places or self.session.channels.get(self.channel) is None:
            return "finds nothing to pick"
        queue = self.node.broker.vhost(self.vhost).queues[name]
        wanted = picks.sample(places, min(len(places), 3))

        def told(got: Picked | Refused | None) -> None:
            if not isinstance(got, Picked):
                return
            _, body = content.split(got.item)
            if not self.world.messages.is_of(body, queue_id):
                raise Violation(f"{body!r} was picked from queue {queue_id}")
            self.world.ledger.note("picked")
            self.picked[got.tag] = body

        channel = self.session.channels[self.channel]
        try:
            self.node.turn.run(lambda: pick(channel, queue, wanted, told))
        except AMQPError as error:
            return f"picks nothing: {error}"
        return f"picks {[place.position for place in wanted]} from {name}"

    def _places_in(self, name: str) -> list[Place]:
        """Return the places of ready messages, as some node knows them."""
        for node in (self.node, *self.world.running):
            queue = node.broker.vhost(self.vhost).queues.get(name)
            host: Any = None if queue is None else queue.host
            machine = getattr(getattr(host, "replica", host), "machine", None)
            if isinstance(machine, Machine) and machine.ready.count:
                return [Place(0, seq) for run in machine.ready.runs() for seq in run.seqs]
        return []

    def consume(self, name: str, arguments: dict[str, Any] | None = None) -> str:
        self.tags += 1
        tag = f"c{self.number}.{self.tags}"
        self.consumers[tag] = self.queue_id(name)
        return self.ask(
            "consume", (name, tag), commands.Basic.Consume(queue=name, consumer_tag=tag, arguments=arguments)
        )

    def cancel(self) -> str:
        tag = self.random.choice(list(self.consumers))
        return self.ask("cancel", tag, commands.Basic.Cancel(consumer_tag=tag))

    def settle(self) -> str:
        tag = self.random.choice(list(self.unacked))
        del self.unacked[tag]
        if self.transactional:
            self.uncommitted_tags.append(tag)
        if self.random.random() < 0.7:
            if self.transactional:
                self.uncommitted_acks.append(self.bodies[tag])
            self.send(commands.Basic.Ack(delivery_tag=tag))
        else:
            self.send(commands.Basic.Nack(delivery_tag=tag, requeue=True))
        return f"settles {tag}"

    def ack_all(self) -> None:
        self.unacked.clear()
        self.send(commands.Basic.Ack(delivery_tag=0, multiple=True))

    def purge(self, name: str) -> str:
        queue_id = self.queue_id(name)
        self.world.messages.purge(queue_id)
        return self.ask("purge", (name, queue_id), commands.Queue.Purge(queue=name))

    def bind(self) -> str:
        random = self.random
        source = random.choice((*EXCHANGES, "amq.headers"))
        key, arguments = random.choice(("", "k")), _shuffled(random.choice(ARGUMENTS), random)
        if random.random() < 0.7:
            to = random.choice(list(self.kinds))
            method: base.Frame = commands.Queue.Bind(
                queue=to, exchange=source, routing_key=key, arguments=arguments
            )
        else:
            to = random.choice(list(EXCHANGES))
            method = commands.Exchange.Bind(
                destination=to, source=source, routing_key=key, arguments=arguments
            )
        return self.ask("bind", (source, to, key, arguments), method)

    def unbind(self) -> str:
        """Unbind a binding of this vhost, with its arguments in another order."""
        there = sorted(
            self.node.broker.vhost(self.vhost).router.bindings(), key=lambda binding: binding.order
        )
        if not there:
            return "has nothing to unbind"
        found = self.random.choice(there)
        arguments = _shuffled(found.arguments, self.random)
        if found.kind == "queue":
            method: base.Frame = commands.Queue.Unbind(
                queue=found.destination,
                exchange=found.source,
                routing_key=found.routing_key,
                arguments=arguments,
            )
        else:
            method = commands.Exchange.Unbind(
                destination=found.destination,
                source=found.source,
                routing_key=found.routing_key,
                arguments=arguments,
            )
        return self.ask("unbind", found.order, method)

    def declare_exchange(self) -> str:
        name = self.random.choice(list(EXCHANGES))
        kind, durable, auto_delete = EXCHANGES[name]
        method = commands.Exchange.Declare(
            exchange=name, exchange_type=kind, durable=durable, auto_delete=auto_delete
        )
        return self.ask("declare exchange", name, method)

    def delete_exchange(self) -> str:
        name = self.random.choice(list(EXCHANGES))
        if_unused = self.random.random() < 0.5
        method = commands.Exchange.Delete(exchange=name, if_unused=if_unused)
        return self.ask("delete exchange", name, method)

    def close(self) -> str:
        if self.random.random() < 0.5:
            self.node.turn.run(self.session.lost)
            self._ended()
            return "is lost"
        self.closing = True
        self.node.turn.receive(self.session, frames.method_frame(0, commands.Connection.Close(200, "", 0, 0)))
        return "closes"

    # -- chance ----------------------------------------------------------------------------------------------

    def act(self) -> str:
        """Do one thing at random."""
        random, action = self.random, self.random.random()
        if self.closing:
            return "waits for its end"
        if action > 0.98:
            return self.close()
        if self.asked is not None:
            return "waits for an answer"
        if (self.uncommitted or self.uncommitted_tags) and random.random() < 0.3:
            return self.commit() if random.random() < 0.8 else self.rollback()
        name = random.choice(list(self.kinds))
        there = [each for each in self.kinds if self.queue_id(each)]
        if there and random.random() < 0.85:
            name = random.choice(there) if action >= 0.20 else name
        picks = self.world.picks
        if picks is not None and picks.random() < 0.3 and self._knows_picks:
            return self.pick(name, picks)
        if action < 0.20:
            if name == "two" and self.world.is_filling():
                # If one of the two nodes has yet to be filled and the other one has an empty disk, nobody may
                # ever lead.
                name = "wide"
            return self.declare(name)
        if action < 0.25:
            return self.delete(name)
        if action < 0.45:
            return self.publish(name)
        if action < 0.58:
            return self.get(name)
        if action < 0.65 and len(self.consumers) < 2:
            return self.consume(name)
        if action < 0.67 and self.consumers:
            return self.cancel()
        if action < 0.69:
            return self.purge(name)
        if action < 0.79:
            return self.bind() if action < 0.755 else self.unbind()
        if action < 0.84:
            return self.declare_exchange()
        if action < 0.86:
            return self.delete_exchange()
        return self.settle() if self.unacked else "waits"


def _shuffled(arguments: Mapping[str, Any], random: Random) -> dict[str, Any]:
    names = list(arguments)
    random.shuffle(names)
    return {
        name: _shuffled(value, random) if isinstance(value := arguments[name], dict) else value
        for name in names
    }


_ASKED = {
    "Queue.DeclareOk": ("declare",),
    "Queue.DeleteOk": ("delete",),
    "Queue.BindOk": ("bind",),
    "Queue.UnbindOk": ("unbind",),
    "Queue.PurgeOk": ("purge",),
    "Exchange.DeclareOk": ("declare exchange",),
    "Exchange.DeleteOk": ("delete exchange",),
    "Exchange.BindOk": ("bind",),
    "Exchange.UnbindOk": ("unbind",),
    "Basic.GetEmpty": ("get",),
    "Basic.ConsumeOk": ("consume",),
    "Basic.CancelOk": ("cancel",),
    "Tx.CommitOk": ("commit",),
    "Tx.RollbackOk": ("rollback",),
}
