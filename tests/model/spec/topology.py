"""Queues, exchanges and bindings: who may declare, bind and delete them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.spec import settings
from tests.model.spec.channels import Channel, Session
from tests.model.spec.letters import Letters
from tests.model.spec.messages import Copy, Presence
from tests.model.spec.promises import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    OK,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    Broken,
    Promise,
    refused,
    success,
)
from tests.model.spec.queues import LATE_S, Queue
from tests.model.spec.routing import PREDECLARED, TYPES, Binding, Exchange
from tests.model.spec.streams import Log

#: How queues of types are refused that the last release does not know.
UNKNOWN_KIND = frozenset({PRECONDITION_FAILED, NOT_IMPLEMENTED})


@dataclass(eq=False)
class Topology(Letters):
    def declare_queue(
        self,
        channel: Channel,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Promise:
        arguments = arguments or {}
        user = channel.session.user
        queue = self.queues.get(name)
        if passive:
            if queue is None:
                return refused(NOT_FOUND)
            if self.locked(queue, channel.session):
                return refused(RESOURCE_LOCKED)
            return self._existing(queue, passive=True)
        dlx = arguments.get("x-dead-letter-exchange")
        codes = set()
        if not user.may("configure", name):
            codes.add(ACCESS_REFUSED)
        if dlx is not None and not (user.may("read", name) and user.may("write", dlx)):
            codes.add(ACCESS_REFUSED)
        if kind == "stream-group" and not all(
            user.may("read", each) for each in self.streams_of(arguments["x-stream"])
        ):
            codes.add(ACCESS_REFUSED)
        if queue is None and settings.invalid(kind, arguments):
            codes.add(PRECONDITION_FAILED)
        if self.broker.old and kind in ("stream", "stream-group"):
            codes.update(UNKNOWN_KIND)
        if kind != "classic" and (not durable or exclusive or auto_delete):
            codes.add(PRECONDITION_FAILED)
        if kind == "stream-group" and not self.streams_of(arguments["x-stream"]):
            there = arguments["x-stream"] in self.exchanges
            codes.add(PRECONDITION_FAILED if there else NOT_FOUND)
        if queue is not None:
            if self.locked(queue, channel.session):
                codes.add(RESOURCE_LOCKED)
            elif not self._equivalent(queue, channel, kind, (durable, exclusive, auto_delete), arguments):
                codes.add(PRECONDITION_FAILED)
        elif self.queues_max is not None and len(self.queues) >= self.queues_max:
            codes.add(PRECONDITION_FAILED)
        if codes:
            return Promise(frozenset(codes))
        if queue is not None:
            return self._existing(queue, passive=False)

        def declared(_: Any) -> None:
            owner = channel.session if exclusive else None
            self._add_queue(name, kind, durable, arguments, auto_delete, owner, channel.session)

        return success(declared)

    def _add_queue(
        self,
        name: str,
        kind: str,
        durable: bool,
        arguments: dict[str, Any],
        auto_delete: bool,
        owner: Session | None,
        session: Session,
    ) -> None:
        if kind == "stream":
            self.queues[name] = Log(self, name, arguments, node=session.node)
            return
        queue = Queue(
            self, name, kind, durable, arguments, auto_delete, owner, session.node, session.user.name
        )
        queue.settings = self._settings(queue)
        queue.used()
        self.queues[name] = queue
        if kind == "stream-group" and arguments.get("x-stream-offset") == "first":
            for stream in self.streams_of(arguments["x-stream"]):
                log = self.queues[stream]
                assert isinstance(log, Log)
                for entry in log.entries:
                    self._into_group(queue, log, entry)

    def _equivalent(
        self,
        queue: Queue | Log,
        channel: Channel,
        kind: str,
        shape: tuple[bool, bool, bool],
        arguments: dict[str, Any],
    ) -> bool:
        """True if a second declaration repeats the first one, but for what this kind does not have."""
        asked = {k: v for k, v in arguments.items() if k not in settings.UNSUPPORTED[queue.kind]}
        return (queue.kind, queue.arguments, self._shape(queue, channel)) == (kind, asked, shape)

    def _shape(self, queue: Queue | Log, channel: Channel) -> tuple[bool, bool, bool]:
        if isinstance(queue, Log):
            return True, False, False
        return queue.durable, queue.owner is not None, queue.auto_delete

    def _existing(self, queue: Queue | Log, *, passive: bool) -> Promise:
        def declared(answer: Any) -> None:
            low, high = queue.count()
            count = int(answer.message_count)
            if isinstance(queue, Queue) and queue.kind == "stream-group":
                low = 0
                high = sum(not copy.gone for copy in queue.copies) + sum(
                    not copy.safe for copy in queue.copies if copy.gone
                )
            if not self.broker.exact_counts:
                low, high = 0, len(queue.entries if isinstance(queue, Log) else queue.copies + queue.past)
            if not low <= count <= high and not (
                isinstance(queue, Log) and (queue.compacts or queue.retains)
            ):
                right = str(low) if low == high else f"{low} to {high}"
                raise Broken(f"{queue.name} has {count} messages where {right} is right")
            if isinstance(queue, Queue):
                # On several nodes, nobody hears when the end of a channel has come to the queue.
                leaves = self.broker.nodes > 1 and queue.lost_one_at >= self.step - 1
                if (
                    int(answer.consumer_count) != len(queue.consumers)
                    and not queue.shaken
                    and not leaves
                    and not queue.single_active
                    and self.broker.exact_counts
                ):
                    raise Broken(
                        f"{queue.name} has {answer.consumer_count} consumers where {len(queue.consumers)} is right"
                    )
                if not passive or queue.kind == "classic":
                    queue.used()

        return success(declared)

    def delete_queue(
        self, channel: Channel, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> Promise:
        queue = self.queues.get(name)
        if queue is None:
            if not channel.session.user.may("configure", name):
                return refused(ACCESS_REFUSED)
            return success()
        if not channel.session.user.may("configure", name):
            return refused(ACCESS_REFUSED)
        if self.locked(queue, channel.session):
            return refused(RESOURCE_LOCKED)
        if isinstance(queue, Log) and queue.super_stream:
            return refused(PRECONDITION_FAILED, ACCESS_REFUSED)
        far = self.broker.nodes > 1
        if queue.protected and if_unused and isinstance(queue, Log) and far:
            # The node that is asked may not have heard of it, and has another reason.
            return refused(RESOURCE_LOCKED, NOT_IMPLEMENTED)
        if queue.protected:
            return refused(RESOURCE_LOCKED)
        codes = {OK}
        used = bool(queue.consumers) if isinstance(queue, Queue) else any(not r.over for r in queue.readers)
        if if_unused and isinstance(queue, Log) and far:
            codes = {NOT_IMPLEMENTED}
        elif if_unused and used:
            codes = {PRECONDITION_FAILED}
        elif if_empty:
            low, high = queue.count()
            if isinstance(queue, Queue) and queue.kind == "stream-group":
                # As of any queue, what members hold does not count, nor does what retention deletes.
                surely = [copy for copy in queue.copies if queue.certainly_ready(copy)]
                low = 0 if queue.racing else sum(self._is_kept(copy) for copy in surely)
                high = sum(not copy.gone or not copy.safe for copy in queue.copies)
            elif isinstance(queue, Queue):
                low += len(queue.surely_waiting())
                high += len(queue.waiting())
            if low:
                codes = {PRECONDITION_FAILED}
            elif high:
                codes = {OK, PRECONDITION_FAILED}
        return Promise(frozenset(codes), lambda answer: self._deleted(queue, answer))

    def _deleted(self, queue: Queue | Log, answer: Any) -> None:
        self._check_number(queue, answer, "deleted")
        self.remove_queue(queue)

    def _check_number(self, queue: Queue | Log, answer: Any, what: str) -> None:
        low, high = queue.count()
        if isinstance(queue, Log) or queue.kind == "stream-group" or self.broker.old:
            return
        high += len(queue.waiting())
        if what == "purged":
            low += len(queue.surely_waiting())
        if not low <= int(answer.message_count) <= high:
            raise Broken(
                f"{queue.name} was {what} with {answer.message_count} messages where {low} to {high} is right"
            )

    def remove_queue(self, queue: Queue | Log) -> None:
        if self.queues.get(queue.name) is not queue:
            return
        del self.queues[queue.name]
        for binding in [b for b in self.bindings if (b.kind, b.destination) == ("queue", queue.name)]:
            self._unbind(binding)
        if isinstance(queue, Log):
            for reader in queue.readers:
                reader.over = True
                if reader.channel.readers.pop(reader.tag, None) is not None:
                    reader.channel.ended_readers[reader.tag] = (reader, self.step)
            self._leave_groups(queue)
            return
        for consumer in list(queue.consumers):
            consumer.channel.consumers.pop(consumer.tag, None)
            consumer.channel.ended[consumer.tag] = consumer
        queue.consumers.clear()
        # Another node takes it away a moment later.
        ends = self.now if self.broker.prompt else self.now + LATE_S
        for copy in (*queue.copies, *queue.past):
            # What expired just now may still have been in the queue, as are letters that their queues have
            # not confirmed.
            late = copy.expiry is not None and self.now < copy.expiry[1] + LATE_S
            # The last release leaves it behind one that has not expired, and it goes with the queue, whose
            # lease may end while the node stops.
            late = late or (copy.old and copy.expiry is not None and queue.lease is not None)
            if late or queue.settings.dead_letter_strategy == "at-least-once":
                for letter in copy.letters:
                    if letter.arrived is None and letter.presence is Presence.COMING:
                        letter.presence = Presence.MAYBE
        for copy in queue.copies:
            if (copy.ready or copy.waits) and copy.may_have_expired(ends):
                # It may have been dead-lettered before; what waits expires, too.
                self.dead_letter(queue, copy, "expired", certain=False)
            copy.leave(self.step)

    def _leave_groups(self, log: Log) -> None:
        """A stream is gone: members of groups over it are cancelled, unless there are other partitions."""
        for group in self.queues.values():
            if isinstance(group, Queue) and group.kind == "stream-group":
                for copy in group.copies:
                    if copy.lane == log.name:
                        copy.leave(self.step)
                if not self.streams_of(group.arguments["x-stream"]):
                    for consumer in group.consumers:
                        consumer.channel.consumers.pop(consumer.tag, None)
                    group.consumers.clear()

    def purge(self, channel: Channel, name: str) -> Promise:
        queue = self.queues.get(name)
        if not channel.session.user.may("read", name):
            return refused(ACCESS_REFUSED)
        if queue is None:
            return refused(NOT_FOUND)
        if self.locked(queue, channel.session):
            return refused(RESOURCE_LOCKED)
        if isinstance(queue, Log):
            return refused(NOT_IMPLEMENTED)

        def purged(answer: Any) -> None:
            self._check_number(queue, answer, "purged")
            for copy in queue.line() + queue.waiting():
                late = copy.arrived is None and copy.presence is not Presence.SURE
                if self._in_its_stream(queue, copy) and not (late and self.broker.nodes > 1):
                    copy.leave(self.step)
                else:
                    # Not in the stream before it is synced, so a group may not have skipped it; or is on its
                    # way from another node.
                    copy.presence = Presence.MAYBE

        return success(purged)

    def _is_kept(self, copy: Copy) -> bool:
        log = self.queues.get(copy.lane)
        return not isinstance(log, Log) or not log.retains

    def _in_its_stream(self, queue: Queue, copy: Copy) -> bool:
        log = self.queues.get(copy.lane)
        if queue.kind != "stream-group" or not isinstance(log, Log):
            return True
        return any(e.message is copy.message and e.presence is Presence.SURE for e in log.entries)

    def declare_exchange(
        self,
        channel: Channel,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Promise:
        arguments = arguments or {}
        user = channel.session.user
        exchange = self.exchanges.get(name)
        if passive:
            return success() if exchange is not None else refused(NOT_FOUND)
        alternate = arguments.get("alternate-exchange")
        partitions = [f"{name}-{i}" for i in range(arguments.get("x-partitions", 0))]
        codes = set()
        if kind not in TYPES:
            codes.add(COMMAND_INVALID)
        if not user.may("configure", name) or name == "":
            codes.add(ACCESS_REFUSED)
        if alternate and not (user.may("read", name) and user.may("write", alternate)):
            codes.add(ACCESS_REFUSED)
        if any(not user.may("configure", each) for each in partitions):
            codes.add(ACCESS_REFUSED)
        if exchange is not None:
            same = (
                exchange.kind,
                exchange.durable,
                exchange.auto_delete,
                exchange.internal,
                exchange.arguments,
            )
            if same != (kind, durable, auto_delete, internal, arguments):
                codes.add(PRECONDITION_FAILED)
        elif name.startswith("amq."):
            codes.add(ACCESS_REFUSED)
        else:
            if any(each in self.queues for each in partitions):
                codes.add(PRECONDITION_FAILED)
            if (
                partitions
                and self.queues_max is not None
                and len(self.queues) + len(partitions) > self.queues_max
            ):
                codes.add(PRECONDITION_FAILED)
        if codes:
            return Promise(frozenset(codes))

        def declared(_: Any) -> None:
            if name in self.exchanges:
                return
            new = self.exchanges[name] = Exchange(
                name, kind, durable, auto_delete, internal, arguments, partitions=partitions
            )
            policy = settings.chosen(self.policies, "exchange", name)
            new.alternate_by_policy = policy.get("alternate-exchange")
            for partition in partitions:
                own = {k: v for k, v in arguments.items() if k != "x-partitions"}
                self.queues[partition] = Log(self, partition, own, super_stream=name)

        return success(declared)

    def delete_exchange(self, channel: Channel, name: str, *, if_unused: bool = False) -> Promise:
        if name in PREDECLARED or name.startswith("amq.") or not channel.session.user.may("configure", name):
            return refused(ACCESS_REFUSED)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return success()
        used = any(name == b.source for b in self.bindings)
        if if_unused and (used or exchange.partitions):
            return refused(PRECONDITION_FAILED)
        return success(lambda _: self._remove_exchange(exchange))

    def _remove_exchange(self, exchange: Exchange) -> None:
        self.exchanges.pop(exchange.name, None)
        for partition in exchange.partitions:
            if partition in self.queues:
                self.remove_queue(self.queues[partition])
        for binding in list(self.bindings):
            if binding.source == exchange.name:
                self.bindings.remove(binding)
            elif (binding.kind, binding.destination) == ("exchange", exchange.name):
                self._unbind(binding)

    def bind(self, channel: Channel, binding: Binding) -> Promise:
        codes = self._binding_codes(channel, binding)
        if binding.kind == "queue" and not channel.session.user.may("read", binding.destination):
            exchange = self.exchanges.get(binding.source)
            if (
                exchange is not None
                and exchange.kind == "x-super-stream"
                and isinstance(self.queues.get(binding.destination), Log)
                and any(
                    isinstance(group, Queue)
                    and group.kind == "stream-group"
                    and group.arguments["x-stream"] == binding.source
                    for group in self.queues.values()
                )
            ):
                # Its members would read it for this user.
                codes.add(ACCESS_REFUSED)
        if binding.kind == "queue" and not codes:
            queue = self.queues[binding.destination]
            if queue.kind == "stream-group":
                codes.update({PRECONDITION_FAILED, ACCESS_REFUSED, NOT_IMPLEMENTED})
        if codes:
            return Promise(frozenset(codes))

        def bound(_: Any) -> None:
            if binding not in self.bindings:
                self.bindings.append(binding)
                self.exchanges[binding.source].chosen = {}
                self.binders[binding.source, binding.destination] = channel.session.user.name
                self._into_groups(binding)

        return success(bound)

    def _into_groups(self, binding: Binding) -> None:
        """Groups read a partition that is added later from its first message on."""
        log = self.queues.get(binding.destination)
        if not isinstance(log, Log) or self.exchanges[binding.source].kind != "x-super-stream":
            return
        for group in self.queues.values():
            if not isinstance(group, Queue) or group.kind != "stream-group":
                continue
            if group.arguments["x-stream"] == binding.source:
                for entry in log.entries:
                    self._into_group(group, log, entry)

    def _binding_codes(self, channel: Channel, binding: Binding) -> set[int]:
        user = channel.session.user
        codes = set()
        if not user.may("write", binding.destination) or not user.may("read", binding.source):
            codes.add(ACCESS_REFUSED)
        if binding.source == "" or (binding.kind == "exchange" and binding.destination == ""):
            codes.add(ACCESS_REFUSED)
        elif binding.source not in self.exchanges:
            codes.add(NOT_FOUND)
        there = self.queues if binding.kind == "queue" else self.exchanges
        if binding.destination not in there:
            codes.add(NOT_FOUND)
        elif binding.kind == "queue" and self.locked(self.queues[binding.destination], channel.session):
            codes.add(RESOURCE_LOCKED)
        if binding.source in self.exchanges and self.exchanges[binding.source].partitions:
            codes.update({PRECONDITION_FAILED, ACCESS_REFUSED})
        return codes

    def unbind(self, channel: Channel, binding: Binding) -> Promise:
        codes = self._binding_codes(channel, binding)
        if NOT_FOUND in codes:
            # Unbinding what does not exist is no error.
            codes = codes - {NOT_FOUND} or {OK}
        if codes and codes != {OK}:
            return Promise(frozenset(codes | ({OK} if binding not in self.bindings else set())))
        return success(lambda _: self._unbind(binding))

    def _unbind(self, binding: Binding) -> None:
        if binding not in self.bindings:
            return
        self.bindings.remove(binding)
        source = self.exchanges.get(binding.source)
        if source is not None:
            source.chosen = {}
        if (
            source is not None
            and source.auto_delete
            and not any(b.source == source.name for b in self.bindings)
        ):
            self._remove_exchange(source)
