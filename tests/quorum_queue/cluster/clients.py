"""Clients of the simulated cluster: they publish, consume, get, settle, purge, and go, and remember the
answers.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, cast

from quorum_queue.cluster.queues.member_host import GroupHost
from quorum_queue.machine import versions
from quorum_queue.machine.attributes import ALL, ATTRIBUTES, LEADER, MAJORITY, PRIORITY_ZERO
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import id_of
from quorum_queue.machine.record.states import Found
from quorum_queue.machine.run import Run
from quorum_queue.machine.seal import SEALED, Sealed
from quorum_queue.ports import Got, Refused
from tests.quorum_queue.cluster import levels
from tests.quorum_queue.cluster.ledger import Ledger, group_of_body
from tests.quorum_queue.kinds import in_turns
from tests.turns import Violation

if TYPE_CHECKING:
    from tests.quorum_queue.cluster.broker import SimulatedQueue
    from tests.quorum_queue.cluster.node import SimulatedNode

#: In the key of a client's getter that picks messages, in the place that says whether a getter acks.
PICKS = 2
PRIORITIES = (0, 0, 0, 0, 1, 3, 31, PRIORITY_ZERO)


def message_id_of(body: bytes) -> bytes:
    publisher, number = body.split(b".")[:2]
    return publisher + b"." + number


class Publisher:
    """Publishes to one queue, and waits for answers. See quorum_queue.ports.Origin."""

    def __init__(self, name: str, ledger: Ledger, queue: SimulatedQueue | None = None) -> None:
        self.name = name
        self.ledger = ledger
        self.queue = queue
        #: Confirm levels by number; without one, a message is confirmed when a majority has it.
        self.levels: dict[int, int] = {}
        self.bodies: list[bytes] = [b""]
        self.waiting: dict[int, None] = {}
        self.refusals: list[bytes] = []

    def body(self, padding: int) -> bytes:
        return b"%s.%d.%s" % (self.name.encode(), len(self.bodies), b"x" * padding)

    def confirmed(self, first: int, last: int) -> None:
        for number in self._answered(first, last):
            level = self.levels.get(number, MAJORITY)
            if self.ledger.deleted:
                # The queue is deleted, so the message went nowhere.
                level = MAJORITY
            if level == LEADER and self.bodies[number] not in self.ledger.accepted:
                self._confirmed_by_leader(self.bodies[number])
                continue
            self.ledger.confirmed(self.bodies[number])
            if level == ALL:
                self._confirmed_by_all(self.bodies[number])

    def _confirmed_by_leader(self, body: bytes) -> None:
        """No node has applied the message yet."""
        assert self.queue is not None
        host, nodes = self.queue.host, self._nodes
        group_id = self.queue.queue_id
        # The term is known on the leader's node only; a home on another node may have a newer one by now.
        term = host.group.core.term if isinstance(host, GroupHost) and not host.ended else 0
        environments = [node.environment for node in nodes.values()]
        if term >= levels.newest_term(nodes, group_id) and not levels.is_on_a_disk(
            environments, group_id, body
        ):
            raise self.ledger.fail(f"{body!r} is confirmed by the leader, and is on no disk")
        self.ledger.confirmed_by_leader(body, term)

    def _confirmed_by_all(self, body: bytes) -> None:
        """What a leader tells other nodes is checked when it sends that."""
        assert self.queue is not None
        host = self.queue.host
        self.ledger.note("confirmed by all")
        if isinstance(host, GroupHost) and not host.ended and host.group.is_leader:
            levels.check_reached(host.group, self.ledger.entry_of[body], levels.running(self._nodes))

    @property
    def _nodes(self) -> dict[str, SimulatedNode]:
        assert self.queue is not None
        nodes: Any = self.queue.on.network.nodes
        return cast("dict[str, SimulatedNode]", nodes)

    def refused(self, first: int, last: int) -> None:
        refused = [self.bodies[number] for number in self._answered(first, last)]
        self.refusals += refused
        self.ledger.refused.update(dict.fromkeys(refused))
        self.ledger.note("refused", last - first + 1)

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)

    def _answered(self, first: int, last: int) -> range:
        numbers = range(first, last + 1)
        for number in numbers:
            if number not in self.waiting:
                raise self.ledger.fail(
                    f"publisher {self.name} is answered twice for {number}, or never asked"
                )
            del self.waiting[number]
        return numbers


class Holder:
    """A consumer, or the holder of messages that a client got one by one. See quorum_queue.ports.Sink."""

    def __init__(self, client: Client, queue: SimulatedQueue, key: tuple[Any, ...], *, no_ack: bool) -> None:
        self.client = client
        self.queue = queue
        self.key = key
        self.no_ack = no_ack
        self.attached = self.gone = False
        self.next_id = 0
        self.unacked: dict[int, bytes] = {}

    @property
    def owner(self) -> tuple[Any, ...]:
        node = self.client.node
        host = self.queue.host
        own = host._own if isinstance(host, GroupHost) else (node.name, node.incarnation)
        return (*own, *self.key)

    def failed(self, error: Exception) -> None:
        raise error

    def deliver(self, consumer: Consumer | None, run: Run, first_id: int) -> None:
        ledger = self.queue.declared.ledger
        ledger.received(self.owner, first_id, run)
        if self.gone:
            # A closed channel does the same; messages that were under way are given back.
            return
        may_miss = self.no_ack or ledger.closed
        if first_id < self.next_id or (first_id > self.next_id and not may_miss):
            raise ledger.fail(f"{self.owner} gets delivery {first_id} in the place of {self.next_id}")
        assert run.contents is not None
        self.next_id = first_id + len(run.contents)
        if not self.no_ack:
            self.unacked.update(enumerate(run.contents, first_id))
        ledger.note("received", len(run.contents))


class Client:
    """One session with one channel, at one node."""

    def __init__(
        self, node: SimulatedNode, number: int, random: Random, levels: tuple[int, ...] = (MAJORITY,)
    ) -> None:
        """The client chooses from `levels` of confirmation."""
        self.node = node
        self.number = number
        self.random = random
        #: Of its own, so that what else happens does not depend on it.
        self.waits = Random(f"{node.name} {number}")
        self.picks = Random(f"{node.name} {number} picks")
        self.levels = levels
        self.publishers: dict[str, Publisher] = {}
        self.consumers: list[Holder] = []
        self.getters: dict[tuple[str, int], Holder] = {}
        self.tags = 0
        #: Requests whose answers are still due, by kind.
        self.asked: dict[tuple[str, int], None] = {}

    def queue(self) -> SimulatedQueue:
        return self.random.choice(list(self.node.queues.values()))

    def ask(self, what: str) -> tuple[str, int]:
        self.tags += 1
        self.asked[what, self.tags] = None
        return what, self.tags

    def answer(self, question: tuple[str, int]) -> None:
        if question not in self.asked:
            raise Violation(f"{question} of session {self.number} is answered twice")
        del self.asked[question]

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(self, queue: SimulatedQueue) -> str:
        random = self.random
        publisher = self.publishers.get(queue.name)
        if publisher is None or publisher.ledger is not queue.declared.ledger:
            # A queue that was declared anew is a different queue.
            again = "" if publisher is None else f"/{queue.queue_id}"
            publisher = Publisher(f"p{self.number}{queue.name}{again}", queue.declared.ledger, queue)
            self.publishers[queue.name] = publisher
        first = len(publisher.bodies)
        level = random.choice(self.levels)
        attributes = ATTRIBUTES[level](priority=random.choice(PRIORITIES), persistent=random.random() < 0.8)
        contents: list[bytes] = []
        for _ in range(random.choice((1, 1, 2, 3, 9))):
            body = publisher.body(random.choice((0, 10, 40, 150)))
            if queue.host.settings.deduplicates and publisher.refusals and random.random() < 0.5:
                body = publisher.refusals.pop(0)
                queue.declared.ledger.republished[body] = None
            if body in contents:
                continue
            publisher.waiting[len(publisher.bodies)] = None
            publisher.levels[len(publisher.bodies)] = level
            publisher.bodies.append(body)
            queue.declared.ledger.published[body] = None
            contents.append(body)
        run = Run(range(len(contents)), contents, b"head", attributes)
        if queue.host.settings.group_header:
            run.heads = [b"\x01e\x01k" + group_of_body(body) for body in contents]
        if self.waits.random() < 0.15:
            run.waits_until = self.waits.choice((1, 20, 200, 1_500))
        elif queue.host.takes_kinds and self.waits.random() < 0.4:
            in_turns(run, [attributes._replace(priority=other) for other in self.waits.sample(PRIORITIES, 2)])
        ids: tuple[Any, ...] = ()
        verb = "enqueue"
        if queue.host.settings.deduplicates:
            verb, ids = "enqueue_once", ([id_of(body) for body in contents],)
        if queue.host.records:
            # What stands before the padding is different in each.
            verb, ids = "enqueue_known", (list(map(message_id_of, contents)), *ids)
        queue.host.submit((verb, run, publisher, first, *ids))
        return f"publishes {first} to {first + len(contents) - 1} as {publisher.name}"

    # -- consuming -------------------------------------------------------------------------------------------

    def consume(self, queue: SimulatedQueue, *, prefetch: int | None = None) -> str:
        random = self.random
        question = self.ask("consume")
        no_ack = random.random() < 0.15 and prefetch is None
        holder = Holder(self, queue, (self.number, 1, f"c{self.tags}", self.tags), no_ack=no_ack)
        consumer = Consumer(
            holder.key,
            no_ack=no_ack,
            prefetch=random.choice((0, 1, 2, 5)) if prefetch is None else prefetch,
            priority=random.choice((0, 0, 0, 1)),
            exclusive=random.random() < 0.05 and prefetch is None,
            sink=holder,
            channel=self.number,
        )
        self.consumers.append(holder)

        def attached(refused: str | None) -> None:
            self.answer(question)
            holder.attached = refused is None
            if refused is not None and holder in self.consumers:
                self.consumers.remove(holder)
                holder.gone = True

        queue.host.attach(consumer, attached)
        return f"consumes from {queue.name} as {holder.key}"

    def pick(self, queue: SimulatedQueue) -> str | None:
        """Take a message that waits; None if this node knows of none."""
        machine = queue.host.replica.machine if isinstance(queue.host, GroupHost) else None
        if machine is None or not machine.delayed.count or machine.version < versions.CANCELS:
            return None
        due_ms, run = self.picks.choice(list(machine.delayed.items()))
        position = self.picks.choice(run.seqs)
        holder = self.getters.get((queue.name, PICKS))
        if holder is None:
            key = (self.number, 1, None, PICKS)
            holder = self.getters[queue.name, PICKS] = Holder(self, queue, key, no_ack=False)
        consumer = Consumer(holder.key, sink=holder, position=position, due_ms=due_ms)
        self.ask_for_one(holder, consumer, self.ask("get"))
        return f"picks {position} out of {queue.name}"

    def get(self, queue: SimulatedQueue) -> str:
        if self.picks.random() < 0.4:
            picked = self.pick(queue)
            if picked is not None:
                return picked
        no_ack = self.random.random() < 0.3
        holder = self.getters.get((queue.name, no_ack))
        if holder is None:
            key = (self.number, 1, None, no_ack)
            holder = self.getters[queue.name, no_ack] = Holder(self, queue, key, no_ack=no_ack)
        self.ask_for_one(holder, Consumer(holder.key, no_ack=no_ack, sink=holder), self.ask("get"))
        return f"gets from {queue.name}"

    def ask_for_one(self, holder: Holder, consumer: Consumer, question: tuple[str, int]) -> None:
        def got(found: Got | Refused | None) -> None:
            if isinstance(found, Got):
                holder.deliver(consumer, found.run, found.first_id)
            self.answer(question)

        holder.queue.host.get(consumer, got)

    def holders(self) -> list[Holder]:
        return [*self.consumers, *self.getters.values()]

    def settle(self, holder: Holder, verb: str, count: int, *, oldest: bool = True) -> str:
        """Settle a few of the deliveries that this client has not settled yet."""
        ids = list(holder.unacked)
        chosen = ids[:count] if oldest else [self.random.choice(ids)]
        ledger = holder.queue.declared.ledger
        for number in chosen:
            del holder.unacked[number]
            ledger.said[verb, holder.owner, number] = None
        command: tuple[Any, ...] = (verb, holder.key, chosen[0], chosen[-1])
        known = ledger.machine.version >= versions.RETRY_WAITS
        if known and verb in ("return", "fail") and self.picks.random() < 0.5:
            command = ("retry", *command[1:], self.picks.choice((0, 5, 500)), verb == "fail")
        holder.queue.host.submit(command)
        return f"{verb}s {chosen} of {holder.key} on {holder.queue.name}"

    def purge(self, queue: SimulatedQueue) -> str:
        question = self.ask("purge")
        queue.host.purge(lambda count: self.answer(question))
        return f"purges {queue.name}"

    def delete_if(self, queue: SimulatedQueue, condition: int) -> str:
        """Delete the queue if it is empty, or unused: the answer must be right at some moment between
        question and answer.
        """
        question = self.ask("delete")
        declared, ledger = queue.declared, queue.declared.ledger
        began = ledger.index
        judged = ledger.machine.version >= versions.SEALS

        def answered(found: Sealed | Refused) -> None:
            self.answer(question)
            if not isinstance(found, Sealed) or found.outcome != SEALED:
                ledger.note("conditional deletes refused")
                return
            ledger.note("conditional deletes")
            if judged:
                ledger.deleted_if(condition, began)
            if queue.on.alive and not queue.deleted:
                queue.on.deletions[declared] = None

        queue.host.seal(condition, answered)
        return f"deletes {queue.name} if {condition}"

    def count(self, queue: SimulatedQueue) -> str:
        """Count the messages, after everything that any client has had an answer to."""
        question = self.ask("count")
        ledger = queue.declared.ledger
        began = ledger.index

        host = queue.host

        def caught_up(known: bool) -> None:
            self.answer(question)
            if known:
                ledger.counted(host.replica.applied, began)

        if isinstance(host, GroupHost) and not host.ended:
            host.group.catch_up(caught_up)
        else:
            host.catch_up(lambda *why: self.answer(question))
        return f"counts {queue.name}"

    def look(self, queue: SimulatedQueue, random: Random) -> str:
        """Ask what became of a message that somebody has published to the queue, or of one that nobody
        has.
        """
        question = self.ask("look")
        ledger, host = queue.declared.ledger, queue.host
        published = list(ledger.published)
        body = random.choice(published) if published and random.random() < 0.9 else b"nobody.1."
        began = ledger.index

        def answered(found: Found | Refused) -> None:
            self.answer(question)
            if isinstance(found, Refused):
                ledger.note("looks without an answer")
                return
            applied = host.replica.applied if isinstance(host, GroupHost) else -1
            ledger.looked(body, found, applied, began)

        host.message_status(message_id_of(body), answered)
        return f"looks for {body!r} in {queue.name}"

    def touch(self, queue: SimulatedQueue) -> str:
        question = self.ask("barrier")

        def done(refused: Refused | None = None) -> None:
            self.answer(question)

        queue.host.barrier(done)
        return f"asks for {queue.name}"

    def pause(self, holder: Holder, paused: bool) -> str:
        holder.queue.host.submit(("pause", holder.key, paused))
        return f"{'stops' if paused else 'resumes'} {holder.key} on {holder.queue.name}"

    def cancel(self, holder: Holder) -> str:
        """Cancel the consumer, which keeps the messages that it holds."""
        self.consumers.remove(holder)
        holder.attached = False
        self.getters[f"was {holder.key}", False] = holder
        holder.queue.host.submit(("detach", holder.key, False))
        return f"cancels {holder.key} on {holder.queue.name}"

    def close(self) -> str:
        """Do what the close of a channel does: see amqp_server.channel.channel."""
        for holder in self.holders():
            host = holder.queue.host
            while holder.unacked:
                self.settle(holder, "fail", 1)
            if holder in self.consumers:
                host.pending.insert(0, ("detach", holder.key, False))
            host.submit(("detach", holder.key, True))
            holder.gone = True
        self.consumers.clear()
        self.getters.clear()
        self.node.clients.remove(self)
        return "ends"

    def consumer_lost(self, key: tuple[Any, ...]) -> None:
        for holder in [holder for holder in self.consumers if holder.key == key]:
            self.consumers.remove(holder)
            holder.gone = True

    def consumers_lost(self, queue: SimulatedQueue) -> None:
        """The link to the queue's home broke, or the queue was deleted."""
        for holder in self.holders():
            if holder.queue is queue:
                holder.unacked.clear()
        for holder in [holder for holder in self.consumers if holder.queue is queue and holder.attached]:
            self.consumers.remove(holder)
            holder.gone = True
        for kind in [kind for kind, holder in self.getters.items() if holder.queue is queue]:
            del self.getters[kind]

    # -- chance ----------------------------------------------------------------------------------------------

    def act(self) -> str:
        """Do one thing at random."""
        random, queue = self.random, self.queue()
        action = random.random()
        if self.asked and action < 0.98:
            return "waits for an answer"
        holding = [holder for holder in self.holders() if holder.unacked]
        if action < 0.40:
            return self.publish(queue)
        if action < 0.75 and holding:
            return self._settle_some(random.choice(holding))
        if action < 0.85 and len(self.consumers) < 4:
            return self.consume(queue)
        if action < 0.92:
            return self.get(queue)
        if action < 0.93:
            return self.purge(queue)
        if action < 0.94:
            return self.touch(queue)
        if action < 0.96 and self.consumers:
            return self.pause(random.choice(self.consumers), random.random() < 0.4)
        if action < 0.98 and self.consumers:
            return self.cancel(random.choice(self.consumers))
        if action > 0.99:
            return self.close()
        return "waits"

    def _settle_some(self, holder: Holder) -> str:
        random = self.random
        verb = random.choice(("settle", "settle", "settle", "settle", "return", "fail", "discard"))
        return self.settle(holder, verb, random.choice((1, 1, 2, 10)), oldest=random.random() < 0.6)
