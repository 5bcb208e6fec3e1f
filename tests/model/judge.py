"""Runs a program against a broker, and judges what clients see by the model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pamqp.base
from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.model import brokers
from tests.model.brokers import PASSWORD, Operated
from tests.model.client import Arrived, Client, Gone, publish_frames, wait_readable
from tests.model.programs import Program, Step
from tests.model.spec.channels import Channel, Delivered, Session, User
from tests.model.spec.messages import Message, Presence
from tests.model.spec.promises import HARD, OK, Broken, Promise
from tests.model.spec.queues import LATE_S, Queue
from tests.model.spec.routing import Binding
from tests.model.spec.settings import Policy
from tests.model.spec.streams import Log
from tests.model.spec.vhost import Vhost

#: Number of the client that the judge has for itself.
OWN = -1
#: How long messages are sent that a queue is to fail at, and their first number.
PLANTED_S, TRIGGERS = 0.1, 1_000_000
#: A lease that ends within this time is outlasted before the next step.
SOON_S = 0.25


class Lost(Exception):
    """The broker stopped to answer, or ended."""


class Judge:
    def __init__(
        self, broker: Operated, program: Program, vhost: str, patience_s: float = PATIENCE_S
    ) -> None:
        self.broker = broker
        self.program = program
        self.name = vhost
        self.patience_s = patience_s
        self.model = Vhost(broker.taken_for_granted())
        self.model.users = self.users = {name: User(name) for name in {*program.users, "guest"}}
        self.clients: dict[int, Client] = {}
        self.sessions: dict[int, Session] = {}
        self.cancels: list[tuple[Channel, str]] = []
        self.hit: set[str] = set()
        self.at = -1
        #: Steps that were left out, since what they need was out of reach.
        self.skipped = 0

    # -- from beginning to end -------------------------------------------------------------------------------

    def run(self) -> Broken | None:
        """Return what was wrong, with the step in its text; None if nothing was."""
        self._prepare()
        try:
            for at, step in enumerate(self.program.steps):
                self.at = at
                self._step(step)
            self.at = len(self.program.steps)
            self._verify()
        except Broken as error:
            where = self.program.steps[self.at]["op"] if self.at < len(self.program.steps) else "verification"
            return Broken(f"step {self.at} ({where}): {error}")
        finally:
            self._end()
        return None

    def _prepare(self) -> None:
        api = self.broker.api
        api("PUT", brokers.path("vhosts", self.name), {})
        api("PUT", brokers.path("permissions", self.name, "guest"), _permissions(User("guest")))
        for user in self.users.values():
            if user.name != "guest":
                api("PUT", brokers.path("users", self._login(user.name)), {"password": PASSWORD, "tags": ""})
                api("PUT", brokers.path("permissions", self.name, self._login(user.name)), _permissions(user))

    def _login(self, user: str) -> str:
        return "guest" if user == "guest" else f"{self.name}-{user}"

    def _end(self) -> None:
        for client in self.clients.values():
            client.abort()
        with contextlib.suppress(brokers.Refused, OSError, AssertionError):
            self.broker.heal()
            self.broker.api("DELETE", brokers.path("vhosts", self.name))
            for name in self.users:
                if name != "guest":
                    self.broker.api("DELETE", brokers.path("users", self._login(name)))

    def _step(self, step: Step) -> None:
        self.model.begin_step(time.monotonic())
        self.model.tick(time.monotonic())
        self._probe()
        do: Callable[[Step], None] = getattr(self, "_do_" + step["op"])
        if self._out_of_reach(step):
            self.skipped += 1
            return
        try:
            do(step)
        except Gone as gone:
            self._lost(int(step.get("client", OWN)), gone)
        self._settle()

    def _out_of_reach(self, step: Step) -> bool:
        if "client" in step and step["client"] >= 0 and self._place(step["client"]) in self.hit:
            return True
        name = step.get("queue") or (step.get("destination") if step["op"] == "bind" else None)
        if name is not None:
            queue = self.model.queues.get(name)
            return isinstance(queue, Queue) and (not queue.certain or not queue.reachable)
        if step["op"] == "publish":
            keys = [step["key"], *step.get("cc", [])]
            targets = self.model._route(step["exchange"], keys, {})
            return any(
                isinstance(q := self.model.queues.get(n), Queue) and not (q.certain and q.reachable)
                for n in targets
            )
        return False

    def _place(self, client: int) -> str:
        if client == OWN:
            return next(name for name in self.broker.names if name not in self.hit)
        place = self.program.places[client]
        return place if place in self.broker.names else self.broker.names[0]

    # -- connections -----------------------------------------------------------------------------------------

    def _client(self, number: int) -> Client:
        client = self.clients.get(number)
        if client is not None and client.gone is None:
            return client
        if client is not None:
            self._lost(number, client.gone or Gone(0))
        name = "guest" if number == OWN else self.program.users[number]
        place = self._place(number)
        password = "guest" if name == "guest" else PASSWORD
        client = Client(self.broker.url(place), self._login(name), password, self.name, self.patience_s)
        self.clients[number] = client
        self.sessions[number] = Session(number, self.users[name], place)
        return client

    def _channel(self, step: Step) -> tuple[int, Channel]:
        number, channel = int(step.get("client", OWN)), int(step.get("channel", 1))
        self._client(number)
        session = self.sessions[number]
        if channel not in session.channels:
            promise = self.model.open_channel(session, channel)
            self._call(number, channel, commands.Channel.Open(), commands.Channel.OpenOk, promise)
        return number, session.channels[channel]

    def _lost(self, number: int, gone: Gone) -> None:
        """The broker closed a connection. Only an error of the client's is a reason."""
        client = self.clients.pop(number, None)
        session = self.sessions.pop(number, None)
        if client is not None:
            client.abort()
        if session is None:
            return
        if not self.broker.alive():
            raise Broken(f"the broker died:\n{self.broker.log_tail()}")
        if gone.code not in HARD or not any(gone.code in c.closing for c in session.channels.values()):
            raise Broken(f"the connection of client {number} was closed: {gone}")
        self.model.close_session(session)

    # -- requests --------------------------------------------------------------------------------------------

    def _call(
        self, number: int, channel: int, method: pamqp.base.Frame, answers: Any, promise: Promise
    ) -> Any:
        """Send a request, wait for its answer, and let the model judge it. Return the answer, or None if it
        was refused.
        """
        client = self._client(number)
        client.send(channel, method)
        return self._answer(number, channel, method.name, answers, promise)

    def _answer(self, number: int, channel: int, name: str, answers: Any, promise: Promise) -> Any:
        client = self.clients[number]
        arrived = self._await(client, channel, answers)
        if arrived is None:
            code, text = (client.gone.code, str(client.gone)) if client.gone else (0, "")
            if code not in promise.codes:
                raise Broken(f"{name} closed the connection ({text}) where {_words(promise.codes)} is right")
            session = self.sessions.pop(number)
            self.clients.pop(number).abort()
            self.model.close_session(session)
            return None
        self.model.tick(time.monotonic())
        method = arrived.method
        spec = self.sessions[number].channels.get(channel)
        if isinstance(method, commands.Channel.Close) and not isinstance(method, answers):
            code = int(method.reply_code or 0)
            client.send(channel, commands.Channel.CloseOk())
            if spec is not None and OK in promise.codes and code in (404, 506) and self._lease_ended():
                self.model.close_channel(spec)
                return None
            if code not in promise.codes and not (spec and code in spec.closing):
                raise Broken(
                    f"{name} was refused with {code} {method.reply_text} where {_words(promise.codes)} is right"
                )
            if spec is not None:
                self.model.close_channel(spec)
            return None
        if OK not in promise.codes:
            raise Broken(f"{name} was accepted where {_words(promise.codes)} is right")
        promise.effect(
            self._delivered(arrived)
            if isinstance(method, commands.Basic.GetOk)
            else None
            if isinstance(method, commands.Basic.GetEmpty)
            else method
        )
        return method

    def _await(self, client: Client, channel: int, answers: Any) -> Arrived | None:
        deadline = time.monotonic() + self.patience_s
        while True:
            while client.events:
                arrived = client.events.popleft()
                if arrived.channel == channel and isinstance(
                    arrived.method, (answers, commands.Channel.Close)
                ):
                    return arrived
                self._event(client, arrived)
            if client.gone is not None:
                return None
            if time.monotonic() > deadline:
                raise Broken(f"no answer within {self.patience_s} s")
            wait_readable([client], 0.2)

    def _flush(self, number: int) -> None:
        """An answer on a channel comes behind all that the broker has sent before."""
        session = self.sessions.get(number)
        client = self.clients.get(number)
        if session is None or client is None or not session.channels:
            return
        channel = min(session.channels)
        client.send(channel, commands.Channel.Flow(True))
        arrived = self._await(client, channel, commands.Channel.FlowOk)
        if arrived is None:
            raise client.gone or Gone(0)
        if isinstance(arrived.method, commands.Channel.Close):
            self._event(client, arrived)

    # -- events ----------------------------------------------------------------------------------------------

    def _event(self, client: Client, arrived: Arrived) -> None:
        number = next(n for n, each in self.clients.items() if each is client)
        channel = self.sessions[number].channels.get(arrived.channel)
        method = arrived.method
        if channel is None:
            return
        self.model.tick(time.monotonic(), again=True)
        if isinstance(method, commands.Basic.Deliver):
            self.model.on_delivery(channel, self._delivered(arrived))
        elif isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
            nack = isinstance(method, commands.Basic.Nack)
            self.model.on_confirm(channel, int(method.delivery_tag or 0), bool(method.multiple), nack)
        elif isinstance(method, commands.Basic.Return):
            assert arrived.properties is not None
            self.model.on_return(
                channel, int(method.reply_code or 0), int(arrived.properties.message_id or -1)
            )
        elif isinstance(method, commands.Basic.Cancel):
            # Its reason may be an answer that comes later.
            self.cancels.append((channel, str(method.consumer_tag)))
        elif isinstance(method, commands.Channel.Close):
            client.send(arrived.channel, commands.Channel.CloseOk())
            if method.reply_code not in channel.closing:
                raise Broken(f"channel closed with {method.reply_code} {method.reply_text}")
            channel.closing.clear()
            self.model.close_channel(channel)
        elif not isinstance(method, commands.Channel.CloseOk):
            raise Broken(f"unexpected {method.name}")

    @staticmethod
    def _delivered(arrived: Arrived) -> Delivered:
        method, properties = arrived.method, arrived.properties
        assert isinstance(method, commands.Basic.Deliver | commands.Basic.GetOk) and properties is not None
        return Delivered(
            int(method.delivery_tag or 0),
            int(properties.message_id or -1),
            bool(method.redelivered),
            str(method.exchange),
            str(method.routing_key),
            dict(properties.headers or {}),
            len(arrived.body),
            str(method.consumer_tag) if isinstance(method, commands.Basic.Deliver) else "",
            int(method.message_count or 0) if isinstance(method, commands.Basic.GetOk) else 0,
        )

    def _settle(self) -> None:
        """Wait until all has come that has to come, and judge what else came."""
        deadline = time.monotonic() + self.patience_s
        while True:
            self._handle_events()
            self.model.tick(time.monotonic())
            owed = self._owed()
            if not owed:
                break
            if time.monotonic() > deadline:
                raise Broken(f"not within {self.patience_s} s: {owed[0]} (and {len(owed) - 1} more)")
            wait_readable(self.clients.values(), 0.02)
        for number, session in list(self.sessions.items()):
            if any(c.consumers or c.readers for c in session.channels.values()):
                try:
                    self._flush(number)
                except Gone as gone:
                    self._lost(number, gone)
        self._handle_events()
        self.model.settle_step()

    def _handle_events(self) -> None:
        for number, client in list(self.clients.items()):
            client.read()
            while client.events:
                self._event(client, client.events.popleft())
            if client.gone is not None:
                self._lost(number, client.gone)
        cancels, self.cancels = self.cancels, []
        for channel, tag in cancels:
            self.model.on_cancel(channel, tag)

    def _owed(self) -> list[str]:
        owed = list(self.model.owed())
        for number, session in self.sessions.items():
            for channel in session.channels.values():
                owed += [
                    f"client {number}: confirm of {p.message.number}"
                    for p in channel.unconfirmed.values()
                    if not self._held_back(p)
                ]
                owed += [f"client {number}: return of {p.message.number}" for p in channel.returns]
                owed += [
                    f"client {number}: close of channel {channel.number} with {channel.closing}"
                    for _ in channel.closing
                ]
        return owed

    def _held_back(self, publishing: Any) -> bool:
        return any(not queue.reachable for queue, _ in publishing.copies)

    # -- steps: topology -------------------------------------------------------------------------------------

    def _do_declare(self, step: Step) -> None:
        number, channel = self._channel(step)
        arguments = dict(step.get("arguments", {}))
        shape = {name: step.get(name, name == "durable") for name in ("durable", "exclusive", "auto_delete")}
        promise = self.model.declare_queue(channel, step["queue"], step["kind"], arguments=arguments, **shape)
        table = arguments | {"x-queue-type": step["kind"]}
        method = commands.Queue.Declare(queue=step["queue"], arguments=table, **shape)
        self._call(number, channel.number, method, commands.Queue.DeclareOk, promise)

    def _do_count(self, step: Step) -> None:
        number, channel = self._channel(step)
        promise = self.model.declare_queue(channel, step["queue"], "", passive=True)
        method = commands.Queue.Declare(queue=step["queue"], passive=True)
        self._call(number, channel.number, method, commands.Queue.DeclareOk, promise)

    def _do_delete(self, step: Step) -> None:
        number, channel = self._channel(step)
        conditions = {name: step.get(name, False) for name in ("if_unused", "if_empty")}
        promise = self.model.delete_queue(channel, step["queue"], **conditions)
        self._call(
            number,
            channel.number,
            commands.Queue.Delete(queue=step["queue"], **conditions),
            commands.Queue.DeleteOk,
            promise,
        )

    def _do_purge(self, step: Step) -> None:
        number, channel = self._channel(step)
        promise = self.model.purge(channel, step["queue"])
        self._call(
            number, channel.number, commands.Queue.Purge(queue=step["queue"]), commands.Queue.PurgeOk, promise
        )

    def _do_exchange(self, step: Step) -> None:
        number, channel = self._channel(step)
        shape = {name: step.get(name, name == "durable") for name in ("durable", "auto_delete", "internal")}
        arguments = dict(step.get("arguments", {}))
        promise = self.model.declare_exchange(
            channel, step["exchange"], step["kind"], arguments=arguments, **shape
        )
        method = commands.Exchange.Declare(
            exchange=step["exchange"], exchange_type=step["kind"], arguments=arguments, **shape
        )
        self._call(number, channel.number, method, commands.Exchange.DeclareOk, promise)

    def _do_delete_exchange(self, step: Step) -> None:
        number, channel = self._channel(step)
        unused = step.get("if_unused", False)
        promise = self.model.delete_exchange(channel, step["exchange"], if_unused=unused)
        method = commands.Exchange.Delete(exchange=step["exchange"], if_unused=unused)
        self._call(number, channel.number, method, commands.Exchange.DeleteOk, promise)

    def _do_bind(self, step: Step) -> None:
        self._binding(step, self.model.bind, commands.Queue.Bind, commands.Exchange.Bind)

    def _do_unbind(self, step: Step) -> None:
        self._binding(step, self.model.unbind, commands.Queue.Unbind, commands.Exchange.Unbind)

    def _binding(
        self, step: Step, ask: Callable[[Channel, Binding], Promise], queue: Any, exchange: Any
    ) -> None:
        number, channel = self._channel(step)
        arguments = dict(step.get("arguments", {}))
        kind = "exchange" if step.get("to_exchange") else "queue"
        binding = Binding(
            step["source"], kind, step["destination"], step["key"], tuple(sorted(arguments.items()))
        )
        promise = ask(channel, binding)
        common = {"routing_key": step["key"], "arguments": arguments}
        if kind == "queue":
            method = queue(queue=step["destination"], exchange=step["source"], **common)
            answer: Any = (commands.Queue.BindOk, commands.Queue.UnbindOk)
        else:
            method = exchange(destination=step["destination"], source=step["source"], **common)
            answer = (commands.Exchange.BindOk, commands.Exchange.UnbindOk)
        self._call(number, channel.number, method, answer, promise)

    # -- steps: messages -------------------------------------------------------------------------------------

    def _do_publish(self, step: Step) -> None:
        number, channel = self._channel(step)
        client = self.clients[number]
        data, sent = [], []
        for each in step["messages"]:
            message = _message(step, each)
            self.model.publish(
                channel, message, mandatory=step.get("mandatory", False), awaited=step.get("wait", True)
            )
            sent += list(channel.unconfirmed.values())[-1:]
            properties = commands.Basic.Properties(
                message_id=str(message.number),
                delivery_mode=2 if message.persistent else 1,
                priority=message.priority,
                expiration=None if message.expiration_ms is None else str(message.expiration_ms),
                headers=message.headers or None,
            )
            data.append(
                publish_frames(
                    channel.number,
                    message.exchange,
                    message.key,
                    message.body,
                    properties,
                    mandatory=step.get("mandatory", False),
                )
            )
            if channel.closing:
                break
        client.write(b"".join(data))
        if not channel.closing and not channel.transactional and not channel.confirming:
            self._flush(number)
            if self.model.broker.prompt:
                self.model.now = time.monotonic()
                for queue in self.model.queues.values():
                    if isinstance(queue, Queue):
                        for copy in queue.copies:
                            if copy.sent == self.model.step:
                                queue.arrived(copy)
                    else:
                        for entry in queue.entries:
                            if entry.arrived is None and entry.presence is Presence.COMING:
                                entry.arrived = self.model.step

    def _do_large(self, step: Step) -> None:
        """Many messages, to queues in turn."""
        number, channel = self._channel(step)
        data = []
        for at in range(step["count"]):
            message = Message(step["number"] + at, 20, "", step["keys"][at % len(step["keys"])])
            self.model.publish(channel, message)
            properties = commands.Basic.Properties(message_id=str(message.number), delivery_mode=2)
            data.append(
                publish_frames(channel.number, "", message.key, message.body, properties, mandatory=False)
            )
        self.clients[number].write(b"".join(data))
        if not channel.transactional:
            self._flush(number)

    def _do_qos(self, step: Step) -> None:
        number, channel = self._channel(step)
        promise = self.model.qos(channel, step["count"], step.get("global", False))
        method = commands.Basic.Qos(prefetch_count=step["count"], global_=step.get("global", False))
        self._call(number, channel.number, method, commands.Basic.QosOk, promise)

    def _do_consume(self, step: Step) -> None:
        number, channel = self._channel(step)
        arguments = dict(step.get("arguments", {}))
        flags = {"no_ack": step.get("no_ack", False), "exclusive": step.get("exclusive", False)}
        promise = self.model.consume(channel, step["queue"], step["tag"], arguments=arguments, **flags)
        method = commands.Basic.Consume(
            queue=step["queue"], consumer_tag=step["tag"], arguments=arguments, **flags
        )
        self._call(number, channel.number, method, commands.Basic.ConsumeOk, promise)

    def _do_cancel(self, step: Step) -> None:
        number, channel = self._channel(step)
        promise = self.model.cancel(channel, step["tag"])
        self._call(
            number,
            channel.number,
            commands.Basic.Cancel(consumer_tag=step["tag"]),
            commands.Basic.CancelOk,
            promise,
        )

    def _do_get(self, step: Step) -> None:
        for _ in range(step.get("count", 1)):
            number, channel = self._channel(step)
            no_ack = step.get("no_ack", False)
            promise = self.model.get(channel, step["queue"], no_ack=no_ack)
            method = commands.Basic.Get(queue=step["queue"], no_ack=no_ack)
            answer = self._call(
                number, channel.number, method, (commands.Basic.GetOk, commands.Basic.GetEmpty), promise
            )
            if not isinstance(answer, commands.Basic.GetOk):
                return

    def _do_settle(self, step: Step) -> None:
        number, channel = self._channel(step)
        tags = sorted(channel.unacked)
        chosen = (
            (tags[-step["count"] :] if step.get("newest") else tags[: step["count"]])
            if step.get("count")
            else tags
        )
        if not chosen:
            return
        multiple = step.get("multiple", False)
        for tag in [chosen[-1]] if multiple else chosen:
            self.model.settle(channel, step["how"], tag, multiple)
            if step["how"] == "ack":
                method: pamqp.base.Frame = commands.Basic.Ack(tag, multiple)
            elif multiple:
                method = commands.Basic.Nack(tag, multiple, step["how"] == "requeue")
            else:
                method = commands.Basic.Reject(tag, step["how"] == "requeue")
            self.clients[number].send(channel.number, method)
        self._flush(number)

    def _do_unknown_tag(self, step: Step) -> None:
        number, channel = self._channel(step)
        self.model.settle(channel, "ack", 1 << 40, False)
        self.clients[number].send(channel.number, commands.Basic.Ack(1 << 40, False))

    def _do_recover(self, step: Step) -> None:
        number, channel = self._channel(step)
        if channel.transactional:
            return
        promise = self.model.recover(channel)
        self._call(number, channel.number, commands.Basic.Recover(True), commands.Basic.RecoverOk, promise)

    def _do_confirm(self, step: Step) -> None:
        number, channel = self._channel(step)
        self._call(
            number,
            channel.number,
            commands.Confirm.Select(),
            commands.Confirm.SelectOk,
            self.model.select(channel, "confirm"),
        )

    def _do_tx(self, step: Step) -> None:
        number, channel = self._channel(step)
        self._call(
            number,
            channel.number,
            commands.Tx.Select(),
            commands.Tx.SelectOk,
            self.model.select(channel, "tx"),
        )

    def _do_rollback(self, step: Step) -> None:
        number, channel = self._channel(step)
        self._call(
            number,
            channel.number,
            commands.Tx.Rollback(),
            commands.Tx.RollbackOk,
            self.model.rollback(channel),
        )

    def _do_commit(self, step: Step) -> None:
        number, channel = self._channel(step)
        watched = step.get("watch")
        before = self._watched(watched)
        promise = self.model.commit(channel)
        self.clients[number].send(channel.number, commands.Tx.Commit())
        counts = [queue.count() for queue in self._queues(watched or [])]
        if (
            watched
            and OK in promise.codes
            and before is not None
            and all(low == high for low, high in counts)
        ):
            after = [low for low, _ in counts]
            while not self.clients[number].events and self.clients[number].gone is None:
                self._check_whole(watched, before, self._watched(watched), after)
                wait_readable([self.clients[number]], 0)
        self._answer(number, channel.number, "Tx.Commit", commands.Tx.CommitOk, promise)

    def _check_whole(
        self, names: list[str], before: list[int], now: list[int] | None, after: list[int]
    ) -> None:
        """What a transaction does is seen as a whole: in each queue, and on a single node in all of them. The
        queues were asked in this order, so a later one may have it before an earlier one was asked.
        """
        if now is None:
            return
        told = f"{names} had {before}, then {now}, and will have {after}"
        new = False
        for was, found, will in zip(before, now, after, strict=True):
            if was == will:
                continue
            if found not in (was, will) or (new and found == was and self.model.broker.nodes == 1):
                raise Broken(f"a part of a transaction was seen: {told}")
            new = found == will

    def _queues(self, names: list[str]) -> list[Queue]:
        return [queue for name in names if isinstance(queue := self.model.queues.get(name), Queue)]

    def _watched(self, names: list[str] | None) -> list[int] | None:
        """Count messages of queues, the last one first: what a transaction puts there must come together."""
        if (
            not names
            or len(self._queues(names)) != len(names)
            or any(q.consumers for q in self._queues(names))
        ):
            return None
        number, channel = self._channel({"client": OWN, "channel": 2})
        client = self.clients[number]
        counts = []
        for name in names:
            client.send(channel.number, commands.Queue.Declare(queue=name, passive=True))
            arrived = self._await(client, channel.number, commands.Queue.DeclareOk)
            if arrived is None or not isinstance(arrived.method, commands.Queue.DeclareOk):
                if arrived is not None:
                    client.send(channel.number, commands.Channel.CloseOk())
                    self.model.close_channel(channel)
                return None
            counts.append(int(arrived.method.message_count or 0))
        return counts

    def _do_close(self, step: Step) -> None:
        """A client closes a channel, or its connection, or just goes."""
        number = step["client"]
        session, client = self.sessions.get(number), self.clients.get(number)
        if session is None or client is None:
            return
        how = step["how"]
        if how == "channel":
            channel = session.channels.get(step.get("channel", 1))
            if channel is None:
                return
            client.send(channel.number, commands.Channel.Close(200, "bye", 0, 0))
            self._await(client, channel.number, commands.Channel.CloseOk)
            self.model.close_channel(channel)
            return
        if how == "close":
            client.close()
        else:
            client.abort()
        del self.clients[number], self.sessions[number]
        self.model.lose_session(session, certain=how == "close" and self.model.broker.prompt)

    # -- steps: operators ------------------------------------------------------------------------------------

    def _do_policy(self, step: Step) -> None:
        policy = Policy(
            step["name"], step["pattern"], step["apply_to"], step.get("priority", 0), step["definition"]
        )
        operator = step.get("operator", False)
        body = {
            "pattern": policy.pattern,
            "definition": policy.definition,
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        self.broker.api(
            "PUT", brokers.path("operator-policies" if operator else "policies", self.name, policy.name), body
        )
        self.model.now = time.monotonic()
        self.model.set_policy(policy, operator=operator)

    def _do_clear_policy(self, step: Step) -> None:
        with contextlib.suppress(brokers.Refused):
            self.broker.api("DELETE", brokers.path("policies", self.name, step["name"]))
        self.model.clear_policy(step["name"])

    def _do_permissions(self, step: Step) -> None:
        user = self.users.get(step["user"])
        if user is None or user.name == "guest":
            return
        user.permissions = tuple(step["permissions"])
        self.broker.api(
            "PUT", brokers.path("permissions", self.name, self._login(user.name)), _permissions(user)
        )

    def _do_limit(self, step: Step) -> None:
        self.broker.api(
            "PUT", brokers.path("vhost-limits", self.name, "max-queues"), {"value": step["queues"]}
        )
        self.model.queues_max = step["queues"]

    def _do_wait(self, step: Step) -> None:
        """Let time pass, and look at what comes."""
        ends = time.monotonic() + step["ms"] / 1000
        while (left := ends - time.monotonic()) > 0:
            wait_readable(self.clients.values(), left)
            self._handle_events()
            self.model.tick(time.monotonic())

    # -- steps: faults ---------------------------------------------------------------------------------------

    def _do_fault(self, step: Step) -> None:
        kind, node = step["kind"], step.get("node", "n1")
        if kind not in self.broker.faults or (self.hit and kind not in ("transfer", "entry")):
            self.skipped += 1
            return
        if self.model.broker.nodes == 1:
            self._strike_alone(kind, node, step)
        else:
            self._strike(kind, node, step)

    def _strike_alone(self, kind: str, node: str, step: Step) -> None:
        if kind == "entry":
            self._strike_one(step["queue"])
            return
        if kind in ("kill", "restart"):
            if step.get("vouch") or kind == "restart":
                self._vouch()
            for client in self.clients.values():
                client.read()
            self._handle_events()
        self.model.sent_at = time.monotonic()
        self.broker.fault(kind, node, step)
        if kind in ("kill", "restart"):
            for client in self.clients.values():
                client.abort()
            sessions = list(self.sessions.values())
            self.clients.clear()
            self.sessions.clear()
            self.model.now = time.monotonic()
            self.model.crashed(sessions)

    def _strike_one(self, name: str) -> None:
        """A queue fails when it gets a message, and starts again from what is stored."""
        queue = self.model.queues.get(name)
        if not isinstance(queue, Queue) or queue.owner or not queue.durable or queue.kind == "stream-group":
            self.skipped += 1
            return
        self._leave([queue])
        self._settle()
        if self.model.queues.get(name) is not queue:
            # Its last consumer was one of these.
            return
        number, channel = self._channel({"client": OWN, "channel": 9})
        self.broker.plant(name, "n1")
        # Its process looks at the file every few ms; until then messages are taken.
        until = time.monotonic() + PLANTED_S
        while time.monotonic() < until:
            trigger = Message(TRIGGERS + self.model.ordinal, 1, "", name)
            for _, copy in self.model._enqueue(channel, trigger, {name}, False).copies:
                copy.presence = Presence.MAYBE
            properties = commands.Basic.Properties(message_id=str(trigger.number), delivery_mode=2)
            frames = publish_frames(channel.number, "", name, trigger.body, properties, mandatory=False)
            self.clients[number].write(frames)
            self._flush(number)
        queue.crash()
        self._await_queue(name)

    def _await_end(self, name: str) -> None:
        """An auto-delete queue goes with its last consumer, soon."""
        deadline = time.monotonic() + self.patience_s
        while name not in self.model.queues:
            number, channel = self._channel({"client": OWN, "channel": 3})
            client = self.clients[number]
            client.send(channel.number, commands.Queue.Declare(queue=name, passive=True))
            arrived = self._await(client, channel.number, commands.Queue.DeclareOk)
            if arrived is None or not isinstance(arrived.method, commands.Queue.DeclareOk):
                client.send(channel.number, commands.Channel.CloseOk())
                self.model.close_channel(channel)
                return
            if time.monotonic() > deadline:
                raise Broken(f"{name} is there {self.patience_s} s after its last consumer left")
            time.sleep(0.02)

    def _await_queue(self, name: str) -> None:
        deadline = time.monotonic() + self.patience_s
        while True:
            number, channel = self._channel({"client": OWN, "channel": 3})
            client = self.clients[number]
            client.send(channel.number, commands.Queue.Declare(queue=name, passive=True))
            arrived = self._await(client, channel.number, commands.Queue.DeclareOk)
            if arrived is not None and isinstance(arrived.method, commands.Queue.DeclareOk):
                return
            if arrived is not None:
                client.send(channel.number, commands.Channel.CloseOk())
                self.model.close_channel(channel)
            if time.monotonic() > deadline:
                raise Broken(f"{name} is not back {self.patience_s} s after its failure")
            time.sleep(0.05)

    def _vouch(self) -> None:
        """An answer to a declare says that all before it is on the disk."""
        number, channel = self._channel({"client": OWN})
        for name, queue in list(self.model.queues.items()):
            if isinstance(queue, Queue) and not queue.owner and queue.certain and queue.reachable:
                self._do_count({"op": "count", "client": OWN, "queue": name})
        self.model.vouched()

    def _strike(self, kind: str, node: str, step: Step) -> None:
        """A fault of one of several nodes. Clients of the others go on; those of this one come back when it
        is over.
        """
        if kind in ("transfer", "entry"):
            self._strike_queue(kind, node, step)
            return
        self._vouch()
        local = [
            q
            for q in self.model.queues.values()
            if isinstance(q, Queue) and q.kind == "classic" and q.node == node
        ]
        hits = kind in ("kill", "restart", "freeze", "isolate")
        if kind == "cut" and local:
            self.skipped += 1
            return
        if hits:
            self._leave(local)
        self.broker.fault(kind, node, step)
        self.model.troubled = True
        if not hits:
            return
        self.hit.add(node)
        for number, session in list(self.sessions.items()):
            if session.node == node:
                self.clients.pop(number).abort()
                del self.sessions[number]
                self.model.lose_session(session, certain=False)
        for queue in local:
            queue.reachable = False
            if not queue.durable or queue.owner:
                queue.certain = False
            elif kind in ("kill", "restart"):
                queue.crash()

    def _leave(self, queues: list[Queue]) -> None:
        """Clients of other nodes leave the queues that are on this node only."""
        for session in list(self.sessions.values()):
            for channel in list(session.channels.values()):
                uses = [h.queue for h in channel.unacked.values()] + [
                    c.queue for c in channel.consumers.values()
                ]
                uses += [queue for p in channel.unconfirmed.values() for queue, _ in p.copies]
                if any(queue in queues for queue in uses):
                    self._do_close(
                        {"op": "close", "client": session.client, "channel": channel.number, "how": "channel"}
                    )

    def _strike_queue(self, kind: str, node: str, step: Step) -> None:
        queue = self.model.queues.get(step["queue"])
        if queue is None or queue.kind == "classic" or self.hit:
            return
        if kind == "transfer":
            with contextlib.suppress(brokers.Refused):
                self.broker.api(
                    "PUT", brokers.path("cluster", "queues", self.name, queue.name, "leader"), {"node": node}
                )
        else:
            self.broker.plant(queue.name, node)
            if isinstance(queue, Queue):
                queue.shaken = True

    def _do_heal(self, step: Step) -> None:
        if self.model.broker.nodes == 1 or not self.model.troubled:
            self.broker.heal()
            return
        self.broker.heal()
        self.hit.clear()
        for queue in self.model.queues.values():
            if isinstance(queue, Queue):
                queue.reachable = True
        self.model.troubled = False

    # -- what nobody knows without asking --------------------------------------------------------------------

    def _probe(self) -> None:
        """Ask whether queues still exist of which the model does not know it."""
        while self.model.vanishing and not self.hit:
            self._await_end(self.model.vanishing.pop())
        for queue in list(self.model.queues.values()):
            if not isinstance(queue, Queue) or self.hit:
                continue
            if queue.lease is not None and time.monotonic() >= queue.lease[0] - SOON_S:
                self._outlast(queue)
            if not queue.certain and queue.owner is None and self.model.queues.get(queue.name) is queue:
                queue.certain = True
                self._still_there(queue)

    def _lease_ended(self) -> bool:
        """True if a queue has just expired, so that a request found it gone."""
        over = [
            queue
            for queue in self.model.queues.values()
            if isinstance(queue, Queue) and queue.lease is not None and queue.lease[0] <= time.monotonic()
        ]
        # Each of them is looked at: that notes what became of it.
        gone = [queue for queue in over if not self._still_there(queue)]
        return bool(gone)

    def _outlast(self, queue: Queue) -> None:
        """Its lease ends about now: wait for that, so that it does not happen within a step."""
        assert queue.lease is not None
        ends = queue.lease[1]
        # A question just before the end may be answered, and the queue be deleted nevertheless.
        time.sleep(max(0.0, ends + SOON_S - time.monotonic()))
        while self._still_there(queue):
            if queue.lease is None or queue.lease[0] > time.monotonic():
                # The question has renewed it.
                return
            if time.monotonic() > ends + LATE_S:
                raise Broken(f"{queue.name} is there {LATE_S} s after its lease")
            time.sleep(0.02)

    def _still_there(self, queue: Queue) -> bool:
        if queue.owner is not None:
            if time.monotonic() > (queue.lease or (0, 0))[1] + LATE_S:
                self.model.remove_queue(queue)
                return False
            return True
        number, channel = self._channel({"client": OWN, "channel": 3})
        client = self.clients[number]
        self.model.sent_at = time.monotonic()
        client.send(channel.number, commands.Queue.Declare(queue=queue.name, passive=True))
        arrived = self._await(client, channel.number, commands.Queue.DeclareOk)
        self.model.now = time.monotonic()
        if arrived is not None and isinstance(arrived.method, commands.Queue.DeclareOk):
            if queue.kind == "classic":
                queue.used()
            return True
        client.send(channel.number, commands.Channel.CloseOk())
        self.model.close_channel(channel)
        self.model.remove_queue(queue)
        return False

    # -- the end ---------------------------------------------------------------------------------------------

    def _verify(self) -> None:
        self.model.begin_step(time.monotonic())
        self._do_heal({})
        self._settle()
        for number in list(self.sessions):
            if number != OWN:
                self.model.begin_step(time.monotonic())
                self._do_close({"client": number, "how": "close"})
                self._settle()
        self.model.begin_step(time.monotonic())
        self._probe()
        self._settle()
        for _ in range(2):
            for queue in list(self.model.queues.values()):
                if isinstance(queue, Queue) and queue.certain and queue.owner is None:
                    if queue.kind == "stream-group":
                        if self.model.streams_of(queue.arguments["x-stream"]):
                            self._drain_group(queue)
                    else:
                        self._drain(queue)
        for log in list(self.model.queues.values()):
            if isinstance(log, Log):
                self._read_whole(log)

    def _drain(self, queue: Queue) -> None:
        """Get all messages: each that has to be there comes, and no other."""
        deadline = time.monotonic() + self.patience_s
        while True:
            self.model.begin_step(time.monotonic())
            self.model.tick(time.monotonic())
            self._probe()
            if self.model.queues.get(queue.name) is not queue:
                return
            number, channel = self._channel({"client": OWN})
            promise = self.model.get(channel, queue.name, no_ack=True)
            method = commands.Basic.Get(queue=queue.name, no_ack=True)
            answer = self._call(
                number, channel.number, method, (commands.Basic.GetOk, commands.Basic.GetEmpty), promise
            )
            if isinstance(answer, commands.Basic.GetOk):
                deadline = time.monotonic() + self.patience_s
                continue
            self.model.tick(time.monotonic())
            left = [
                copy
                for copy in queue.line()
                if copy.presence is not Presence.MAYBE and not copy.may_have_expired(time.monotonic())
            ]
            if not left:
                return
            if time.monotonic() > deadline:
                raise Broken(f"{queue.name}: {left[0]} is lost (and {len(left) - 1} more)")
            time.sleep(0.02)

    def _drain_group(self, queue: Queue) -> None:
        self.model.begin_step(time.monotonic())
        tag = f"drain-{self.model.step}"
        self._do_qos({"client": OWN, "count": 1000})
        self._do_consume({"client": OWN, "queue": queue.name, "tag": tag})
        self._settle()
        self.model.begin_step(time.monotonic())
        self._do_settle({"client": OWN, "how": "ack", "multiple": True})
        self._settle()
        deadline = time.monotonic() + self.patience_s
        while True:
            self.model.begin_step(time.monotonic())
            count = self._count(queue.name)
            if not count:
                break
            self._do_settle({"client": OWN, "how": "ack", "multiple": True})
            self._settle()
            if time.monotonic() > deadline:
                raise Broken(f"{queue.name} has a lag of {count} after all was acked")
            time.sleep(0.05)
        self._do_cancel({"client": OWN, "tag": tag})

    def _count(self, name: str) -> int:
        number, channel = self._channel({"client": OWN})
        self.clients[number].send(channel.number, commands.Queue.Declare(queue=name, passive=True))
        arrived = self._await(self.clients[number], channel.number, commands.Queue.DeclareOk)
        if arrived is None or not isinstance(arrived.method, commands.Queue.DeclareOk):
            raise Broken(f"{name} is gone")
        return int(arrived.method.message_count or 0)

    def _read_whole(self, log: Log) -> None:
        self.model.begin_step(time.monotonic())
        count = self._count(log.name)
        low, high = log.count()
        if not log.compacts and not low <= count <= high:
            raise Broken(f"{log.name} has {count} messages where {low} to {high} is right")
        number, channel = self._channel({"client": OWN, "channel": 4})
        tag = f"whole-{self.model.step}"
        self._do_qos({"client": OWN, "channel": 4, "count": 60_000})
        self._do_consume(
            {
                "client": OWN,
                "channel": 4,
                "queue": log.name,
                "tag": tag,
                "arguments": {"x-stream-offset": "first"},
            }
        )
        reader = channel.readers.get(tag)
        if reader is None:
            raise Broken(f"{log.name} can't be read")
        deadline = time.monotonic() + self.patience_s
        while count and (not reader.got or reader.got[-1][0] < count - 1) and time.monotonic() < deadline:
            wait_readable(self.clients.values(), 0.05)
            self._handle_events()
        self._settle()
        self._do_cancel({"client": OWN, "channel": 4, "tag": tag})
        log.verify(reader.got)


def _message(step: Step, each: dict[str, Any]) -> Message:
    return Message(
        each["number"],
        each.get("size", 20),
        step["exchange"],
        step["key"],
        each.get("priority"),
        each.get("expiration"),
        each.get("persistent", True),
        dict(each.get("headers", {})),
    )


def _permissions(user: User) -> dict[str, str]:
    configure, write, read = user.permissions
    return {"configure": configure, "write": write, "read": read}


def _words(codes: frozenset[int]) -> str:
    return " or ".join("success" if code == OK else str(code) for code in sorted(codes))
