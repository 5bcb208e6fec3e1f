"""A durable queue under commands, commits, paging and crashes, against a model of single messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from amqp_server.broker.declared.arguments import parse_queue_arguments
from amqp_server.broker.declared.settings import effective_settings
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Attributes, Run
from tests.quorum_queue.kinds import in_turns
from tests.quorum_queue.node import Publisher, QueueNode, Receiver, resident_bytes


@dataclass
class Sent:
    seq: int
    content: bytes
    persistent: bool
    delivered: bool = False
    attempts: int = 0
    acquired: int = 0
    due_ms: int = 0
    #: True if it waited before it was delivered first.
    waited: bool = False


class QueueOnDisk(RuleBasedStateMachine):
    """`left` are the messages that the queue has now, `durable` the messages that a restart must find, with
    their attempts.
    """

    @initialize(budget=st.sampled_from([0, 100, 1 << 30]), priorities=st.booleans(), quorum=st.booleans(),
                waits=st.booleans(), grouped=st.sampled_from([False, False, True]))  # fmt: skip
    def start(self, budget: int, priorities: bool, quorum: bool, waits: bool, grouped: bool) -> None:
        self.node = QueueNode(budget)
        self.quorum = quorum
        self.grouped = grouped
        self.priority_max = 1 if priorities and not quorum and not grouped else 0
        self.arguments: dict[str, object] = {}
        if quorum:
            self.arguments["x-queue-type"] = "quorum"
        elif self.priority_max:
            self.arguments["x-max-priority"] = 1
        if grouped:
            self.arguments["x-message-groups"] = True
        self.waits_ms = 50 if waits else 0
        if waits:
            self.arguments["x-delayed-retry-type"] = "all"
            self.arguments["x-delayed-retry-min"] = self.waits_ms
            self.arguments["x-delayed-retry-max"] = 2 * self.waits_ms
        parsed = parse_queue_arguments(
            "q", "/", self.arguments, durable=True, exclusive=False, auto_delete=False
        )
        declared = effective_settings(parsed)
        #: What the topology keeps: deliveries and publishes are paused.
        self.paused = (False, False)
        self.host = self.node.host(declared, journalled=True)
        self.publisher = Publisher()
        self.left: dict[int, Sent] = {}
        #: Attempts, returns, and until when it waits (0: it does not).
        self.durable: dict[int, tuple[int, int, int]] = {}
        self.by_content: dict[bytes, Sent] = {}
        self.next_number = 1
        self.acknowledged: set[int] = set()
        self.settled_durably: set[int] = set()
        self.receivers: dict[str, Receiver] = {}
        self.held: dict[str, dict[int, Sent]] = {}
        #: Numbers of messages that were refused, of the present publisher.
        self.refused: set[int] = set()

    @rule(counts=st.lists(st.integers(1, 5), min_size=1, max_size=3), size=st.integers(0, 40),
          persistent=st.booleans(), priority=st.sampled_from([-1, 0, 0, 1, 9, 40]),
          others=st.lists(st.sampled_from([Attributes(), Attributes(priority=1), Attributes(priority=40)]), max_size=2),
          waits_ms=st.sampled_from([0, 0, 0, 30, 100]))  # fmt: skip
    def publish(
        self,
        counts: list[int],
        size: int,
        persistent: bool,
        priority: int,
        others: list[Attributes],
        waits_ms: int,
    ) -> None:
        due_ms = self.node.services.queue_time.now_ms() + waits_ms if waits_ms else 0
        for count in counts:
            first = self.next_number
            self.next_number += count
            contents = [b"%d" % number + b"." * size for number in range(first, first + count)]
            if self.paused[1]:
                run = Run(range(count), contents, b"head", Attributes(persistent=persistent))
                self.host.pending.append(("enqueue", run, self.publisher, first))
                self.refused.update(range(first, first + count))
                continue
            seq = self.host.machine.next_seq + sum(
                len(command[1].seqs) for command in self.host.pending if command[0] == "enqueue"
            )
            for offset, content in enumerate(contents):
                sent = Sent(seq + offset, content, persistent or self.quorum)
                sent.due_ms, sent.waited = due_ms, bool(due_ms)
                self.left[sent.seq] = self.by_content[content] = sent
            run = Run(range(count), contents, b"head", Attributes(persistent=persistent, priority=priority))
            if not waits_ms:
                in_turns(run, others)
            if self.grouped:
                # Exchange, routing key, and the group of some.
                run.heads = [b"\x01e\x01k" + (b"", b"a", b"b")[number % 3] for number in range(count)]
            run.waits_until = waits_ms
            self.host.pending.append(("enqueue", run, self.publisher, first))
        self.turn()

    @rule(key=st.sampled_from(["a", "b"]), prefetch=st.integers(1, 4))
    def attach(self, key: str, prefetch: int) -> None:
        if key in self.host.machine.consumers.by_key:
            self.host.pending.append(("prefetch", key, prefetch))
        else:
            self.receivers[key] = Receiver()
            self.held[key] = {}
            self.host.pending.append(("attach", Consumer(key, prefetch=prefetch, sink=self.receivers[key])))
        self.turn()

    @rule(key=st.sampled_from(["a", "b"]), data=st.data(), verb=st.sampled_from(["settle", "return", "fail", "retry"]),
          own_ms=st.sampled_from([0, 3, 40]), failed=st.booleans())  # fmt: skip
    def settle(self, key: str, data: st.DataObject, verb: str, own_ms: int, failed: bool) -> None:
        """`own_ms`, `failed`: of a return that says itself how long it waits."""
        held = self.held.get(key)
        if not held:
            return
        ids = list(held)
        low = data.draw(st.sampled_from(ids))
        high = data.draw(st.sampled_from(ids[ids.index(low) :]))
        for delivery_id in [delivery_id for delivery_id in ids if low <= delivery_id <= high]:
            sent = held.pop(delivery_id)
            if verb != "settle":
                counted = self.quorum or bool(self.waits_ms) or verb == "retry"
                sent.acquired += self.quorum
                sent.attempts += counted and (failed if verb == "retry" else verb == "fail")
                if verb == "retry":
                    sent.due_ms = own_ms and self.node.services.queue_time.now_ms() + own_ms
                elif self.waits_ms:
                    wait_ms = min(self.waits_ms * max(1, sent.attempts), 2 * self.waits_ms)
                    sent.due_ms = self.node.services.queue_time.now_ms() + wait_ms
            else:
                del self.left[sent.seq]
                # Numbers of messages that never reach the disk are used again.
                if sent.persistent:
                    self.acknowledged.add(sent.seq)
        own = (own_ms, failed) if verb == "retry" else ()
        self.host.pending.append((verb, key, low, high, *own))
        self.turn()

    @rule(deliveries=st.booleans(), publishes=st.booleans())
    def pause(self, deliveries: bool, publishes: bool) -> None:
        self.paused = (deliveries, publishes)
        settings = self.host.machine.settings
        self.host.configure(replace(settings, deliveries_paused=deliveries, publishes_paused=publishes))
        self.turn()

    @rule()
    def page_out(self) -> None:
        self.host.page_out(1 << 30)
        self.check_memory()

    @rule()
    def commit(self) -> None:
        self.node.commit()
        self.durable = {
            sent.seq: (sent.attempts, sent.acquired, sent.due_ms)
            for sent in self.left.values()
            if sent.persistent
        }
        self.settled_durably |= self.acknowledged
        assert self.publisher.confirms == set(range(1, self.next_number)) - self.refused
        assert self.publisher.refusals == self.refused
        self.check_memory()

    @rule()
    def crash(self) -> None:
        self.host = self.node.crash(self.arguments)
        self.publisher = Publisher()
        self.publisher.confirms, self.refused = set(range(1, self.next_number)), set()
        self.receivers, self.held = {}, {}
        by_seq = {sent.seq: sent for sent in self.by_content.values() if sent.seq in self.durable}
        expected = {}
        now_ms = self.node.services.queue_time.now_ms()
        for seq, (attempts, acquired, waits_until_ms) in self.durable.items():
            due_ms = waits_until_ms if waits_until_ms > now_ms else 0
            sent = by_seq[seq]
            least = 1 if self.quorum and sent.delivered and not due_ms else 0
            sent.attempts, sent.acquired, sent.due_ms = max(attempts, least), max(acquired, least), due_ms
            expected[seq] = sent.delivered, sent.attempts, sent.acquired, due_ms
        machine = self.host.machine
        everywhere = [(0, run) for run in machine.ready.runs()] + list(machine.delayed.items())
        found = {
            seq: (run.redelivered, run.attempts, run.acquired, due_ms)
            for due_ms, run in everywhere
            for seq in run.seqs
        }
        for seq, state in found.items():
            passed = self.grouped or (seq in by_seq and by_seq[seq].waited)
            if seq in expected and not expected[seq][0] and passed and state[0]:
                # Others have passed it: it may have been delivered since its wait was over.
                sent = by_seq[seq]
                assert not expected[seq][3]
                sent.delivered = True
                sent.attempts = sent.acquired = int(self.quorum)
                expected[seq] = True, sent.attempts, sent.acquired, 0
        assert found == expected
        assert self.settled_durably.isdisjoint(found)
        self.left = {seq: by_seq[seq] for seq in self.durable}
        self.acknowledged = set(self.settled_durably)
        # Numbers of messages that never reached the disk are used again.
        self.by_content = {sent.content: sent for sent in self.left.values()}
        self.pause(*self.paused)
        self.check_memory()

    @rule(elapsed=st.sampled_from([10, 60, 200]))
    def wait(self, elapsed: int) -> None:
        self.node.clock.now_ms += elapsed
        self.host.wake()
        self.turn()

    def turn(self) -> None:
        self.host.submit()
        now_ms = self.node.services.queue_time.now_ms()
        for sent in self.left.values():
            if sent.due_ms <= now_ms:
                sent.due_ms = 0
        for key, receiver in self.receivers.items():
            for delivery_id, content, redelivered in receiver.received:
                sent = self.by_content[content]
                assert sent.seq in self.left
                assert redelivered == sent.delivered
                assert not sent.due_ms and not self.paused[0]
                sent.delivered = True
                self.held[key][delivery_id] = sent
            assert [seen[0] for seen in receiver.received] == sorted(seen[0] for seen in receiver.received)
            receiver.received.clear()
        ready = [seq for run in self.host.machine.ready.runs() for seq in run.seqs]
        waiting = [seq for _, run in self.host.machine.delayed.items() for seq in run.seqs]
        assert sorted(waiting) == sorted(sent.seq for sent in self.left.values() if sent.due_ms)
        held = [sent.seq for holding in self.held.values() for sent in holding.values()]
        assert sorted(ready + waiting + held) == sorted(self.left)
        self.check_memory()

    def check_memory(self) -> None:
        memory = self.node.services.memory
        assert memory.used == self.host.resident_bytes == resident_bytes(self.host)
        if not self.left:
            assert memory.used == 0


TestQueueOnDisk = QueueOnDisk.TestCase
TestQueueOnDisk.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
