"""Faults: of a single node, of one of several, of one queue."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from pamqp import commands

from tests.model import brokers
from tests.model.client import Client, Gone, wait_readable
from tests.model.judging.messages import frames_of
from tests.model.judging.requests import OWN, message_of
from tests.model.judging.transactions import Transactions
from tests.model.programs import Step
from tests.model.spec.messages import Message, Presence
from tests.model.spec.promises import NOT_FOUND, Broken
from tests.model.spec.queues import Queue
from tests.model.spec.streams import Log

#: How long a full disk is looked at.
FULL_S = 0.5
#: Longer than an alarm lasts, with the time until the node looks at its disk again.
ALARM_S = 10.0
#: First number of the messages that a queue is to fail at.
TRIGGERS = 1_000_000


class Faults(Transactions):
    def _do_fault(self, step: Step) -> None:
        kind, node = step["kind"], step.get("node", "n1")
        if kind not in self.broker.faults or (self.hit and kind not in ("transfer", "entry")):
            self.skipped += 1
            return
        if len(self.broker.names) == 1:
            self._strike_alone(kind, node, step)
        else:
            self._strike(kind, node, step)

    def _do_alarm(self, step: Step) -> None:
        """What is published while there is an alarm comes after it, and consumers go on meanwhile."""
        kind = step["kind"]
        number, channel = self._channel(step)
        if kind not in self.broker.alarms or self.hit or channel.transactional or self._may_end_soon():
            self.skipped += 1
            return
        client, place = self.clients[number], self._place(number)
        self.broker.raise_alarm(kind, place)
        try:
            self._handle_events()
            began = time.monotonic()
            messages = [message_of(step, each) for each in step["messages"]]
            if kind == "full disk":
                # The rest of a page may have room for them.
                for message in messages:
                    self.model.publish(channel, message)
            client.write(b"".join(frames_of(channel.number, message) for message in messages))
            if kind == "full disk":
                # There is an alarm as soon as something can't be written, if these need more room at all.
                ends = time.monotonic() + FULL_S
                while not self.broker.alarmed() and time.monotonic() < ends:
                    client.read()
            else:
                self._await_blocked(client, True)
            if kind != "full disk" and any(
                isinstance(arrived.method, commands.Basic.Ack) for arrived in client.events
            ):
                raise Broken("a message was confirmed during the alarm")
            for each in step["meanwhile"]:
                if each["client"] == number or self._out_of_reach(each):
                    continue
                try:
                    getattr(self, "_do_" + each["op"])(each)
                except Gone as gone:
                    self._lost(each["client"], gone)
            if kind != "full disk":
                self._do_count({"client": OWN, "queue": step["key"]})
        finally:
            self.broker.end_alarm(kind, place)
        self.model.sent_at = began
        for message in messages if kind != "full disk" else ():
            self.model.publish(channel, message)
        self._await_blocked(client, False)
        self._arrived(number, channel)

    def _may_end_soon(self) -> bool:
        """True if the lease of a queue may end during the alarm: nobody knows whether it is there when the
        messages come.
        """
        leases = [queue.lease for queue in self.model.queues.values() if isinstance(queue, Queue)]
        ends = time.monotonic() + ALARM_S
        return any(lease is not None and lease[0] < ends for lease in leases)

    def _await_blocked(self, client: Client, blocked: bool) -> None:
        deadline = time.monotonic() + self.patience_s
        while client.blocked is not blocked:
            if client.gone is not None:
                raise client.gone
            if time.monotonic() > deadline:
                raise Broken(f"connection.{'' if blocked else 'un'}blocked does not come")
            wait_readable([client], 0.1)

    def _strike_alone(self, kind: str, node: str, step: Step) -> None:
        if kind == "entry":
            self._strike_one(step["queue"], node, step.get("when", ""))
            return
        ends = kind in ("kill", "restart", "upgrade", "damage")
        if ends:
            if step.get("vouch") or kind != "kill":
                self._vouch()
            for client in self.clients.values():
                client.read()
            self._handle_events()
        self.model.sent_at = time.monotonic()
        self.broker.fault(kind, node, step)
        if ends:
            for client in self.clients.values():
                client.abort()
            sessions = list(self.sessions.values())
            self.clients.clear()
            self.sessions.clear()
            self.model.now = time.monotonic()
            self.model.crashed(sessions, orderly=kind != "kill")
        if kind == "damage":
            self.model.damaged(segments=step["what"].startswith("segment"))
        self._note_upgrade()

    def _note_upgrade(self) -> None:
        if self.model.broker.old and self.broker.has_been_upgraded():
            self.model.upgraded(self.broker.taken_for_granted())

    def _strike_one(self, name: str, node: str, when: str) -> None:
        """A queue fails when it gets a message, and starts again from what is stored: one that only this node
        has.
        """
        queue = self.model.queues.get(name)
        if queue is None or (
            isinstance(queue, Queue)
            and (queue.owner or not queue.durable or queue.kind == "stream-group" or not queue.certain)
        ):
            self.skipped += 1
            return
        self._leave([queue])
        self._settle()
        if self.model.queues.get(name) is not queue:
            # Its last consumer was one of these.
            return
        self._vouch()
        self.broker.plant(f"{self.name}/{name}", node, when)
        # Its process looks at the file every few ms; until then messages are taken.
        self._until("it has not failed", lambda: self._trigger(queue) or isinstance(self._look(name), int))
        self.broker.plant("", node)
        queue.crash()
        if isinstance(queue, Queue):
            # Waits end meanwhile, and nothing is dropped.
            queue.reachable = False
        self._await_queue(queue)
        if isinstance(queue, Queue):
            queue.reachable = True

    def _await_queue(self, queue: Queue | Log) -> None:
        name = queue.name
        deadline = time.monotonic() + self.patience_s
        while True:
            found = self._look(name)
            if not isinstance(found, int):
                return
            if found == NOT_FOUND:
                if isinstance(queue, Log):
                    raise Broken(f"{name} is gone after its failure")
                self.model.remove_queue(queue)
                if queue.lease is None or time.monotonic() < queue.lease[0]:
                    raise Broken(f"{name} is gone after its failure")
                return
            if time.monotonic() > deadline:
                raise Broken(f"{name} is not back {self.patience_s} s after its failure")
            time.sleep(0.05)

    def _vouch(self) -> None:
        """An answer to a declare says that all before it is on the disk."""
        number, channel = self._channel({"client": OWN})
        for name, queue in list(self.model.queues.items()):
            if isinstance(queue, Log) or (not queue.owner and queue.certain and queue.reachable):
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
        ends = {node, self.broker.other_end(node)} if kind == "cut" else {node}
        local = [
            q
            for q in self.model.queues.values()
            if isinstance(q, Queue) and q.kind == "classic" and q.node in ends
        ]
        if kind == "damage" and any(queue.durable for queue in local):
            # They are nowhere else.
            self.skipped += 1
            return
        if kind == "move":
            self._move(node, step)
            return
        hits = kind in ("kill", "restart", "upgrade", "freeze", "stall", "isolate", "damage")
        if hits or kind == "cut":
            self._leave(local)
        self.broker.fault(kind, node, step)
        self.model.troubled = True
        if not hits:
            for queue in local if kind == "cut" else ():
                queue.reachable = False
            return
        self.hit.add(node)
        lost = kind in ("kill", "restart", "upgrade", "damage")
        for each in self.model.queues.values():
            if isinstance(each, Queue) and each.owner is not None and each.owner.node == node:
                # It goes as soon as the node is back, whoever it belongs to.
                each.owner, each.lost_with_node = None, True
        for number, session in list(self.sessions.items()):
            if session.node == node:
                self.clients.pop(number).abort()
                del self.sessions[number]
                self.model.lose_session(session, certain=False)
        for queue in local:
            queue.reachable = False
            if not queue.durable or queue.lost_with_node:
                queue.certain = False
                queue.lost_with_node = queue.lost_with_node or lost
            elif lost:
                queue.crash()
        if lost:
            self.model.letters_lost()

    def _move(self, node: str, step: Step) -> None:
        """All members leave this node, and come back. Messages that consumers of this node hold go back to
        their queues; those of the other nodes notice nothing, nor do readers of streams on any node.
        """
        self._leave_at(node)
        self.broker.fault("move", node, step)
        self.model.troubled, self.moved_from = True, node

    def _leave_at(self, node: str) -> None:
        queues = [q for q in self.model.queues.values() if isinstance(q, Queue) and q.kind != "classic"]
        self._leave(queues, node)
        self._settle()

    def _leave(self, queues: Sequence[Queue | Log], node: str = "") -> None:
        """Clients leave these queues: those of this node, or of all nodes."""
        for session in list(self.sessions.values()):
            if node and session.node != node:
                continue
            for channel in list(session.channels.values()):
                uses: list[Queue | Log] = [h.queue for h in channel.unacked.values()] + [
                    c.queue for c in channel.consumers.values()
                ]
                uses += [reader.log for reader in channel.readers.values()]
                for publishing in channel.unconfirmed.values():
                    uses += [*(queue for queue, _ in publishing.copies), *publishing.logs]
                if any(queue in queues for queue in uses):
                    self._do_close(
                        {"op": "close", "client": session.client, "channel": channel.number, "how": "channel"}
                    )
                    # What it held comes to the next one first.
                    self._settle()
        # A queue whose last consumer was one of these goes: not when its node is back.
        self._await_ends()

    def _strike_queue(self, kind: str, node: str, step: Step) -> None:
        queue = self.model.queues.get(step["queue"])
        if queue is None or self.hit or not queue.certain:
            self.skipped += 1
            return
        if kind == "entry" and queue.kind == "classic":
            self._strike_one(queue.name, queue.node, step.get("when", ""))
            return
        if kind == "entry":
            self._fail_member(queue, node, step.get("when", ""))
            return
        if queue.kind == "classic":
            self.skipped += 1
            return
        with contextlib.suppress(brokers.Refused):
            self.broker.api(
                "PUT", brokers.path("cluster", "queues", self.name, queue.name, "leader"), {"node": node}
            )

    def _fail_member(self, queue: Queue | Log, node: str, when: str) -> None:
        """The copy of a queue on this node fails at a message, and starts again from what is stored."""
        if isinstance(queue, Queue):
            self._leave([queue])
            queue.shaken = True
        self._settle()
        self._vouch()
        if self.model.queues.get(queue.name) is not queue:
            return
        self.broker.plant(f"{self.name}/{queue.name}", node, when)
        self._until("it has not failed", lambda: self._trigger(queue) or self._has_failed(queue, node))
        self.broker.plant("", node)
        self._until("it is not back", lambda: not self._has_failed(queue, node))
        queue.failed_at = self.model.step

    def _has_failed(self, queue: Queue | Log, node: str) -> bool:
        return queue.name in self.broker.failed(self.name, node)

    def _trigger(self, queue: Queue | Log) -> bool:
        number, channel = self._channel({"client": OWN, "channel": 9})
        trigger = Message(TRIGGERS + self.model.ordinal, 1, "", queue.name)
        self.model._enqueue(channel, trigger, {queue.name}, False)
        # Which of them is lost is not known, nor which was refused.
        for each in self.model.queues.values():
            for copy in each.copies if isinstance(each, Queue) else each.entries:
                if copy.message.number == trigger.number:
                    copy.presence = Presence.MAYBE
        self.clients[number].write(frames_of(channel.number, trigger))
        self._flush(number)
        return False

    def _until(self, otherwise: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.patience_s
        while not done():
            if time.monotonic() > deadline:
                raise Broken(f"after {self.patience_s} s {otherwise}")
            time.sleep(0.02)

    def _do_heal(self, step: Step) -> None:
        if len(self.broker.names) == 1 or not self.model.troubled:
            self.broker.heal()
            return
        if self.moved_from:
            self._leave_at(self.moved_from)
            self.moved_from = ""
        self.broker.heal()
        # What has expired meanwhile went to queues that were out of reach.
        self.model.tick(time.monotonic())
        self.hit.clear()
        for queue in list(self.model.queues.values()):
            if isinstance(queue, Queue):
                queue.reachable = True
                queue.heard_late()
                if queue.lost_with_node:
                    self.model.remove_queue(queue)
        self.model.troubled = False
        self._note_upgrade()
