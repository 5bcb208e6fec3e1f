"""Clients, what they ask, and what comes to them."""

from __future__ import annotations

import time
from typing import Any

import pamqp.base
from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.model import batches
from tests.model.brokers import PASSWORD, Operated
from tests.model.client import Arrived, Client, Gone, wait_readable
from tests.model.programs import Program, Step
from tests.model.spec.channels import Channel, Delivered, Session, User
from tests.model.spec.messages import Message
from tests.model.spec.promises import (
    HARD,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    RESOURCE_ERROR,
    Broken,
    Promise,
)
from tests.model.spec.queues import Queue
from tests.model.spec.vhost import Vhost

#: Number of the client that the judge has for itself.
OWN = -1


class Requests:
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
        #: Node that all members of replicated queues have left.
        self.moved_from = ""
        self.at = -1
        #: Steps that were left out, since what they need was out of reach.
        self.skipped = 0

    def _login(self, user: str) -> str:
        return "guest" if user == "guest" else f"{self.name}-{user}"

    def _place(self, client: int) -> str:
        if client == OWN:
            return next(name for name in self.broker.names if name not in self.hit)
        place = self.program.places[client % len(self.program.places)]
        return place if place in self.broker.names else self.broker.names[0]

    def _client(self, number: int) -> Client:
        client = self.clients.get(number)
        if client is not None and client.gone is None:
            return client
        if client is not None:
            self._lost(number, client.gone or Gone(0))
        name = "guest" if number == OWN else self.program.users[number % len(self.program.users)]
        place = self._place(number)
        password = "guest" if name == "guest" else PASSWORD
        limit = self.model.connections_max
        full = limit is not None and len(self.sessions) >= limit
        try:
            client = Client(self.broker.url(place), self._login(name), password, self.name, self.patience_s)
        except Gone as gone:
            if not full and self.model.broker.nodes == 1:
                raise Broken(f"client {number} may not connect: {gone}") from None
            raise
        if full and self.model.broker.nodes == 1:
            raise Broken(f"client {number} may connect, and {len(self.sessions)} of {limit} are there")
        self.clients[number] = client
        if self.model.broker.nodes > len(self.broker.names) == 1:
            # Which of its processes has the client is not known: perhaps each client is at another one.
            place = f"{place}, client {number}"
        self.sessions[number] = Session(number, self.users[name], place)
        return client

    def _channel(self, step: Step) -> tuple[int, Channel]:
        number, channel = int(step.get("client", OWN)), int(step.get("channel", 1))
        self._client(number)
        session = self.sessions[number]
        if channel not in session.channels:
            open_now = sum(len(s.channels) for s in self.sessions.values() if s.user is session.user)
            promise = self.model.open_channel(session, channel, open_now)
            self._call(number, channel, commands.Channel.Open(), commands.Channel.OpenOk, promise)
            if channel not in session.channels:
                raise Gone(NOT_ALLOWED)
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
            if spec is not None and code in (NOT_FOUND, RESOURCE_ERROR) and self._lease_ended():
                self.model.close_channel(spec)
                return None
            if code not in promise.codes and not (spec and code in spec.closing | spec.may_close):
                raise Broken(
                    f"{name} was refused with {code} {method.reply_text} where {_words(promise.codes)} is right"
                )
            promise.refusal(method)
            if spec is not None:
                self.model.close_channel(spec)
            return None
        if OK not in promise.codes and not self._lease_ended():
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

    def _event(self, client: Client, arrived: Arrived) -> None:
        number = next(n for n, each in self.clients.items() if each is client)
        channel = self.sessions[number].channels.get(arrived.channel)
        method = arrived.method
        if channel is None:
            return
        self.model.tick(time.monotonic(), again=True)
        if isinstance(method, commands.Basic.Deliver) and _is_batch(arrived):
            assert arrived.properties is not None
            stored = [(each.offset, each.number) for each in batches.decoded(arrived.body)]
            tag, headers = int(method.delivery_tag or 0), dict(arrived.properties.headers or {})
            self.model.on_batch(channel, tag, str(method.consumer_tag), headers, stored)
        elif isinstance(method, commands.Basic.Deliver):
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
            cancelled = str(method.consumer_tag)
            if self.model.is_stuck(channel, cancelled):
                # What it gives back comes to others next.
                self.model.on_cancel(channel, cancelled)
            else:
                # Its reason may be an answer that comes later.
                self.cancels.append((channel, cancelled))
        elif isinstance(method, commands.Channel.Close):
            client.send(arrived.channel, commands.Channel.CloseOk())
            if method.reply_code not in channel.closing | channel.may_close:
                raise Broken(f"channel closed with {method.reply_code} {method.reply_text}")
            channel.closing.clear()
            self.model.channel_closed(channel)
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

    def _out_of_reach(self, step: Step) -> bool:
        if "client" in step and step["client"] >= 0 and self._place(step["client"]) in self.hit:
            return True
        name = step.get("queue") or (step.get("destination") if step["op"] == "bind" else None)
        if self.hit and self._may_find_vanishing(step, name):
            return True
        if name is not None:
            return self._is_out_of_reach(name)
        if step["op"] == "large":
            return any(self._is_out_of_reach(each) for each in step["keys"])
        if step["op"] == "publish":
            # With CC and BCC.
            messages = [message_of(step, each) for each in step["messages"]]
            return any(
                self._is_out_of_reach(n)
                for each in messages
                for n in self.model._route(step["exchange"], each.keys, each.headers)
            )
        return False

    def _is_out_of_reach(self, name: str) -> bool:
        queue = self.model.queues.get(name)
        return isinstance(queue, Queue) and not (queue.certain and queue.reachable)

    def _may_find_vanishing(self, step: Step, name: str | None) -> bool:
        """True if the step may still find a queue that goes when the others miss the node of its client."""
        vanishing = self.model.vanishing
        if vanishing and step["op"] == "publish" and step["exchange"]:
            # Its exchange may have a binding to the queue.
            return True
        return any(each in vanishing for each in (name, step.get("key"), *step.get("keys", ())))

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

    def _still_there(self, queue: Queue) -> bool:
        if self._look(queue.name) != NOT_FOUND:
            return True
        self.model.remove_queue(queue)
        return False

    def _await_ends(self) -> None:
        while self.model.vanishing:
            self._await_end(self.model.vanishing.pop())

    def _await_end(self, name: str) -> None:
        """A queue goes with its last consumer, its client or its node, soon."""
        deadline = time.monotonic() + self.patience_s
        while name not in self.model.queues:
            if self._look(name) == NOT_FOUND:
                return
            if time.monotonic() > deadline:
                raise Broken(f"{name} is there {self.patience_s} s after its end")
            time.sleep(0.02)

    def _look(
        self, name: str, channel: int = 3, arguments: dict[str, Any] | None = None
    ) -> commands.Queue.DeclareOk | int:
        """Ask for a queue, whether it is there or not. Return the answer, or the code of the refusal."""
        number, spec = self._channel({"client": OWN, "channel": channel})
        client = self.clients[number]
        self.model.sent_at = time.monotonic()
        client.send(channel, commands.Queue.Declare(queue=name, passive=True, arguments=arguments))
        arrived = self._await(client, channel, commands.Queue.DeclareOk)
        self.model.now = time.monotonic()
        if arrived is None:
            raise Broken(f"a passive declare of {name} closed the connection: {client.gone}")
        if isinstance(arrived.method, commands.Queue.DeclareOk):
            queue = self.model.queues.get(name)
            if isinstance(queue, Queue) and queue.kind == "classic":
                queue.used()
            return arrived.method
        assert isinstance(arrived.method, commands.Channel.Close)
        client.send(channel, commands.Channel.CloseOk())
        self.model.close_channel(spec)
        return int(arrived.method.reply_code or 0)


def _is_batch(arrived: Arrived) -> bool:
    return arrived.properties is not None and arrived.properties.content_type == batches.CONTENT_TYPE


def _words(codes: frozenset[int]) -> str:
    return " or ".join("success" if code == OK else str(code) for code in sorted(codes))


def message_of(step: Step, each: dict[str, Any]) -> Message:
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
