"""A virtual host: what clients may do with it, and what they may see then."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.spec import settings
from tests.model.spec.channels import Session
from tests.model.spec.messages import Choice, Copy, Flag, Presence
from tests.model.spec.promises import (
    Broken,
)
from tests.model.spec.publishing import Publishes
from tests.model.spec.queues import Queue
from tests.model.spec.state import Broker
from tests.model.spec.streams import Log


@dataclass(eq=False)
class Vhost(Publishes):
    def lose_session(self, session: Session, *, certain: bool) -> None:
        """A fault, or the client itself, cut the connection: what was on its way is in doubt."""
        self.struck = self.step
        if not certain:
            # The broker may notice it late, and what expires in an exclusive queue dies before.
            for queue in self.queues.values():
                if isinstance(queue, Queue) and queue.owner is session:
                    self.vanishing.append(queue.name)
                    for copy in queue.copies:
                        if copy.expiry is not None and not copy.gone:
                            copy.held = False
                            self.dead_letter(queue, copy, "expired", certain=False)
        returned: list[Copy] = []
        for channel in list(session.channels.values()):
            for publishing in channel.unconfirmed.values():
                for queue, copy in publishing.copies:
                    if copy.arrived is None:
                        copy.presence = Presence.MAYBE
                        queue.shaken = True
                for log in publishing.logs:
                    for entry in log.entries:
                        if entry.message is publishing.message and entry.arrived is None:
                            entry.presence = Presence.MAYBE
            for consumer in channel.consumers.values():
                if not certain and self.broker.nodes > 1:
                    consumer.queue.shaken = True
            returned += [held.copy for held in channel.unacked.values() if held.copy is not None]
        unseen = [] if certain or self.broker.nodes == 1 else self._consumed(session)
        self.close_session(session)
        for queue in unseen:
            # A delivery that was on its way comes back, too.
            self.leave_together(queue)
        for copy in returned:
            if not certain and not copy.gone:
                copy.presence = min(copy.presence, Presence.COMING)
                copy.returns = (max(0, copy.returns[0] - 1), copy.returns[1])

    @staticmethod
    def _consumed(session: Session) -> list[Queue]:
        consumers = [c for channel in session.channels.values() for c in channel.consumers.values()]
        return list(dict.fromkeys(consumer.queue for consumer in consumers))

    def upgraded(self, present: Broker) -> None:
        """All nodes have the present version now."""
        self.broker = present

    def set_policy(self, policy: settings.Policy, *, operator: bool = False) -> None:
        policies = self.operator_policies if operator else self.policies
        policies[:] = [each for each in policies if each.name != policy.name] + [policy]
        self._policies_changed()

    def pause(self, name: str, what: str, *, paused: bool) -> None:
        """An operator pauses or resumes a queue. `what` is deliveries or publishes."""
        queue = self.queues.get(name)
        if isinstance(queue, Queue) and what == "deliveries":
            queue.deliveries_paused, queue.paused_at = paused, self.step
        elif isinstance(queue, Queue):
            queue.publishes_paused = paused

    def protect(self, name: str, *, protected: bool) -> None:
        """An operator protects a queue from deletion, or no longer does: then its lease begins anew."""
        queue = self.queues.get(name)
        if queue is not None:
            queue.protected = protected
        if isinstance(queue, Queue):
            queue.used()

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        policies = self.operator_policies if operator else self.policies
        policies[:] = [each for each in policies if each.name != name]
        self._policies_changed()

    def _policies_changed(self) -> None:
        for exchange in self.exchanges.values():
            policy = settings.chosen(self.policies, "exchange", exchange.name)
            exchange.alternate_by_policy = policy.get("alternate-exchange")
        for queue in list(self.queues.values()):
            if isinstance(queue, Queue) and queue.kind != "stream-group":
                self._expire_under_both(queue)
                before, queue.settings = queue.settings, self._settings(queue)
                if before.expires_ms != queue.settings.expires_ms:
                    queue.used()
                queue.trim()

    def _expire_under_both(self, queue: Queue) -> None:
        """What may expire just now does so under the old policy or under the new one."""
        old, new = queue.settings, self._settings(queue)
        for copy in queue.line():
            if copy.may_have_expired(self.now) and old != new:
                copy.vague = True
                self.dead_letter(queue, copy, "expired", certain=False)
                queue.settings = new
                copy.letters = copy.letters + self._letters(queue, copy, "expired", Presence.MAYBE)
                queue.settings = old

    def owed(self) -> list[str]:
        out: list[str] = []
        for each in self.queues.values():
            out += each.owed()
            if isinstance(each, Queue):
                out += [
                    f"{each.name}: {consumer.tag} may not read all streams, and is a member"
                    for consumer in each.consumers
                    if self.unread_by(consumer.channel.session.user, each)
                ]
        return out

    def settle_step(self) -> None:
        passed_over, self.passed_over = self.passed_over, []
        for queue, better, worse in passed_over:
            # A queue learns late that a consumer of another node has room.
            near = self.broker.nodes == 1 or better.channel.session.node == queue.node
            there = better in queue.consumers and better.spare and worse in queue.consumers
            if near and there and not queue.shaken:
                raise Broken(
                    f"{queue.name}: {worse.tag} got a message while {better.tag}, which has a higher priority, had room"
                )
        for each in self.queues.values():
            if isinstance(each, Queue):
                each.settle_step()

    def must_be_somewhere(self, choice: Choice) -> bool:
        """True if one of the copies has to be there: none was dropped, refused, or lost in a fault."""
        return (
            choice.step > self.struck
            and not choice.refused
            and len(choice.copies) > 1
            and all(
                copy.arrived is not None
                and not (copy.gone or copy.doomed or copy.repeated)
                and not copy.may_have_expired(self.now)
                for copy in choice.copies
            )
        )

    def vouched(self) -> None:
        """All that has happened so far is on the disk."""
        self.epochs.vouched()
        for queue in self.queues.values():
            if isinstance(queue, Queue):
                for copy in (*queue.copies, *queue.past):
                    copy.safe, copy.stored = copy.safe or copy.gone, True
            else:
                for position in queue.names.values():
                    position.safe |= position.acked
                for entry in queue.entries:
                    if entry.presence is Presence.COMING:
                        entry.presence = Presence.SURE
                        entry.arrived = entry.arrived if entry.arrived is not None else self.step

    def damaged(self, *, segments: bool) -> None:
        """A file of the only node was damaged: a segment of a stream, or one that it can do without."""
        for queue in self.queues.values():
            for copy in queue.copies if isinstance(queue, Queue) else ():
                if not copy.gone and copy.flag is Flag.YES:
                    copy.flag = Flag.EITHER
                if not copy.gone and segments and isinstance(self.queues.get(copy.lane), Log):
                    copy.presence = Presence.MAYBE
            if isinstance(queue, Log) and segments:
                queue.damage()

    def crashed(self, sessions: list[Session], *, orderly: bool) -> None:
        """The only node was killed or stopped, and is up again."""
        self.struck = self.step
        self.epochs.crash()
        for queue in self.queues.values():
            if isinstance(queue, Queue):
                for copy in (*queue.copies, *queue.past):
                    if copy.gone and not copy.safe and copy.letters:
                        for letter in copy.letters:
                            letter.source = copy
                            if not letter.safe:
                                letter.presence = Presence.MAYBE
        for queue in self.queues.values():
            if isinstance(queue, Queue):
                for copy in queue.copies:
                    if not copy.message.persistent and copy.may_have_expired(self.now):
                        # Dead-lettered before, its transient letter is lost; but not one in a quorum queue.
                        copy.vague = True
                        if copy.ready or copy.waits or (copy.held and orderly):
                            self.dead_letter(queue, copy, "expired", certain=False)
        held = {}
        for session in sessions:
            for channel in session.channels.values():
                for publishing in channel.unconfirmed.values():
                    for log in publishing.logs:
                        for entry in log.entries:
                            if entry.message is publishing.message and entry.arrived is None:
                                entry.presence = Presence.MAYBE
                for each in [*channel.unacked.values(), *(h for _, _, h in channel.tx_settles)]:
                    if each.copy is not None:
                        each.copy.held = True
                        held[id(each.copy)] = each.copy
            session.channels.clear()
        for queue in list(self.queues.values()):
            if isinstance(queue, Log):
                queue.crash()
            elif not queue.durable or queue.owner is not None:
                queue.consumers.clear()
                # What clients held came back first, if the stop was an orderly one.
                for copy in queue.copies:
                    if copy.held:
                        copy.put_back(self.step)
                queue.trim(certain=False)
                # Its bindings are not there any more, which deletes no exchange.
                self.bindings = [b for b in self.bindings if (b.kind, b.destination) != ("queue", queue.name)]
                for exchange in self.exchanges.values():
                    exchange.chosen = {}
                self.remove_queue(queue)
            else:
                # An orderly stop takes the consumers away first, and such a queue goes with the last one.
                queue.certain = not (queue.auto_delete and queue.consumers) or queue.protected
                for copy in queue.copies:
                    copy.vague = copy.vague or not queue.certain
                for copy in queue.copies if queue.kind == "stream-group" else ():
                    copy.stored = copy.stored or self._in_its_stream(queue, copy)
                # In an orderly stop what clients held comes back first, and may be too much.
                returned = [copy for copy in queue.copies if copy.held]
                for copy in returned:
                    copy.held = False
                queue.trim(certain=False)
                for copy in returned:
                    copy.held = not copy.gone
                again = orderly and bool(queue.consumers)
                queue.crash()
                self.leave_together(queue, again=again)
                for copy in queue.line() if queue.kind == "stream-group" else ():
                    source = self.queues.get(copy.lane)
                    if isinstance(source, Log) and source.may_be_gone(copy.message):
                        copy.presence = Presence.MAYBE
                # What clients held came back, or will, and may have been too much.
                queue.trim(certain=False)
                queue.used()
        self.letters_lost()
        for exchange in list(self.exchanges.values()):
            if not exchange.durable:
                self._remove_exchange(exchange)
