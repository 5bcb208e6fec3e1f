"""Steps that publish, consume and settle."""

from __future__ import annotations

import json
import time

import pamqp.base
from pamqp import commands

from tests.model.client import Gone, publish_frames, wait_readable
from tests.model.judging.declaring import Declaring
from tests.model.judging.requests import OWN, message_of
from tests.model.programs import Step
from tests.model.spec.channels import Channel
from tests.model.spec.messages import Message, Presence
from tests.model.spec.promises import PRECONDITION_FAILED, Broken
from tests.model.spec.publishing import RETRY
from tests.model.spec.queues import Queue

#: Requests to this name of the default exchange cancel messages that wait.
CANCEL = "amq.mqd.cancel"


class Messages(Declaring):
    def _do_publish(self, step: Step) -> None:
        number, channel = self._channel(step)
        client = self.clients[number]
        data = []
        for each in step["messages"]:
            message = message_of(step, each)
            self.model.publish(
                channel, message, mandatory=step.get("mandatory", False), awaited=step.get("wait", True)
            )
            data.append(frames_of(channel.number, message, mandatory=step.get("mandatory", False)))
            if channel.closing:
                break
        client.write(b"".join(data))
        self._arrived(number, channel)
        if channel.transactional and channel.producer is not None and not channel.closing:
            self._end_earlier_starts(channel)

    def _end_earlier_starts(self, channel: Channel) -> None:
        """What earlier starts of a producer have left open is rolled back, and their channels are closed."""
        for number, session in self.sessions.items():
            for other in list(session.channels.values()):
                if other is channel or not (other.tx_publishes or other.tx_settles):
                    continue
                _, perhaps = self.model.epochs.shut_out(other)
                if not perhaps:
                    continue
                if self.hit or channel.may_close or not channel.is_later_than(other):
                    other.may_close.add(PRECONDITION_FAILED)
                    continue
                other.closing.add(PRECONDITION_FAILED)
                # What comes back may be delivered to others as soon as it is closed.
                client = self.clients[number]
                arrived = self._await(client, other.number, commands.Channel.Close)
                if arrived is not None:
                    self._event(client, arrived)

    def _arrived(self, number: int, channel: Channel) -> None:
        """Without confirms, an answer behind the publishes says that they are there."""
        if channel.transactional and channel.producer is not None:
            # Whether it is shut out is known behind an answer.
            self._flush(number)
        if channel.closing or channel.transactional or channel.confirming:
            return
        self._flush(number)
        if not self.model.broker.prompt:
            return
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
        """Many messages, to queues in turn. Each is read by itself: in one read they would be one part."""
        number, channel = self._channel(step)
        for at in range(step["count"]):
            message = Message(step["number"] + at, 20, "", step["keys"][at % len(step["keys"])])
            # Together they may take longer than some messages live.
            self.model.sent_at = time.monotonic()
            self.model.tick(self.model.sent_at, again=True)
            self.model.publish(channel, message)
            self.clients[number].write(frames_of(channel.number, message))
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
        # Every second one, for example.
        chosen = chosen[:: step.get("every", 1)]
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

    def _do_retry(self, step: Step) -> None:
        number, channel = self._channel(step)
        tags = sorted(channel.unacked)
        for tag in (tags[-step["count"] :] if step.get("newest") else tags[: step["count"]]) or step.get(
            "unknown", ()
        ):
            self.model.retry(channel, tag, step["delay"], failed=step["failed"])
            headers = {"x-delivery-tag": tag, "x-delay": step["delay"], "x-failed": step["failed"]}
            properties = commands.Basic.Properties(headers=headers)
            frames = publish_frames(channel.number, RETRY, "", b"", properties, mandatory=False)
            self.clients[number].write(frames)
            if channel.closing:
                return
        self._flush(number)

    def _do_cancel_waiting(self, step: Step) -> None:
        """A client takes back a message that waits, or one that does not, by its message-id."""
        queue = self.model.queues.get(step["queue"])
        if not isinstance(queue, Queue) or self.hit or queue.shaken or queue.owner or self.model.broker.old:
            self.skipped += 1
            return
        waiting = [copy.message.number for copy in queue.waiting()]
        there = [copy.message.number for copy in queue.copies]
        numbers = waiting if waiting and not step["late"] else there
        if not numbers:
            return
        number, channel = self._channel({"client": OWN, "channel": 10})
        client, chosen = self.clients[number], numbers[step["which"] % len(numbers)]
        client.send(channel.number, commands.Confirm.Select())
        self._await(client, channel.number, commands.Confirm.SelectOk)
        right, gone = queue.cancel(chosen)
        body = json.dumps({"queue": queue.name, "message_id": str(chosen)}).encode()
        properties = commands.Basic.Properties()
        client.write(publish_frames(channel.number, "", CANCEL, body, properties, mandatory=False))
        arrived = self._await(client, channel.number, (commands.Basic.Ack, commands.Basic.Nack))
        if arrived is None:
            raise client.gone or Gone(0)
        self.model.tick(time.monotonic())
        answer = "ack" if isinstance(arrived.method, commands.Basic.Ack) else "nack"
        if answer not in right:
            raise Broken(f"{queue.name}: the cancel of message {chosen} got {answer} where {right} is right")
        if answer == "ack":
            queue.cancelled(gone)

    def _do_stuck(self, step: Step) -> None:
        """A consumer holds what it has for longer than it may."""
        number, channel = self._channel(step)
        consumer = channel.consumers.get(step["tag"])
        if consumer is None or consumer.timeout_ms is None or not consumer.held or self.hit:
            return
        client = self.clients[number]
        deadline = time.monotonic() + self.patience_s
        # What it gives back comes to others: its own end is looked at first.
        while consumer.tag in channel.consumers and (channel, consumer.tag) not in self.cancels:
            if time.monotonic() > deadline:
                raise Broken(
                    f"{consumer.tag} is not cancelled, and has a timeout of {consumer.timeout_ms} ms"
                )
            wait_readable([client], 0.2)
            while client.events:
                self._event(client, client.events.popleft())
            if client.gone is not None:
                raise client.gone
        self.model.tick(time.monotonic())

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
            # Before the answer: what it held may come to another channel first.
            self.model.close_channel(channel)
            client.send(channel.number, commands.Channel.Close(200, "bye", 0, 0))
            self._await(client, channel.number, commands.Channel.CloseOk)
            return
        if how == "close":
            client.close()
        else:
            client.abort()
        del self.clients[number], self.sessions[number]
        self.model.lose_session(session, certain=how == "close" and self.model.broker.prompt)


def frames_of(channel: int, message: Message, *, mandatory: bool = False) -> bytes:
    properties = commands.Basic.Properties(
        message_id=str(message.number),
        delivery_mode=2 if message.persistent else 1,
        priority=message.priority,
        expiration=None if message.expiration_ms is None else str(message.expiration_ms),
        headers=message.headers or None,
    )
    return publish_frames(
        channel, message.exchange, message.key, message.body, properties, mandatory=mandatory
    )
