"""The end of a program: all queues are drained, and all streams are read."""

from __future__ import annotations

import time

from pamqp import commands

from tests.model.client import wait_readable
from tests.model.judging.doubts import Doubts
from tests.model.judging.requests import OWN
from tests.model.spec.messages import Presence
from tests.model.spec.promises import PRECONDITION_FAILED, Broken
from tests.model.spec.queues import Queue
from tests.model.spec.streams import Log


class Verification(Doubts):
    def _verify(self) -> None:
        self.model.begin_step(time.monotonic())
        self._do_heal({})
        self._do_limit({"what": "connections", "value": -1})
        for queue in list(self.model.queues.values()):
            if isinstance(queue, Queue):
                for what in ("deliveries", "publishes"):
                    if getattr(queue, f"{what}_paused"):
                        self._do_resume({"queue": queue.name, "what": what})
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
        for choice in self.model.choices:
            if not choice.taken and self.model.must_be_somewhere(choice):
                raise Broken(
                    f"{choice.message} is in none of the queues of which its exchange had to choose one"
                )

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
                for copy in queue.line() + queue.waiting()
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

    def _count(self, name: str, offset: int | None = None) -> int:
        """Count the messages of a queue, or those of a stream from an offset on."""
        found = self._look(name, 1, {} if offset is None else {"x-stream-offset": offset})
        if isinstance(found, int):
            raise Broken(f"{name} is gone")
        return int(found.message_count or 0)

    def _read_whole(self, log: Log) -> None:
        self.model.begin_step(time.monotonic())
        count = self._count(log.name)
        low, high = log.count()
        damaged = log.before_damage is not None
        if not (log.compacts or log.retains or damaged) and not low <= count <= high:
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

        def all_there() -> bool:
            if not (log.compacts or damaged):
                return len(reader.got) >= count
            if damaged:
                log.lost = self.broker.lost(self.name, log.name)
                after = reader.got[-1][0] + 1 if reader.got else 0
                if log.retains and self._look(log.name, 1, {"x-stream-offset": after}) == PRECONDITION_FAILED:
                    # Retention has deleted that offset, and there are later ones.
                    return False
                return set(range(after, after + self._count(log.name, after))) <= log.lost
            # A count has the gaps of compaction.
            return bool(reader.got) and not self._count(log.name, reader.got[-1][0] + 1)

        while not all_there() and time.monotonic() < deadline:
            wait_readable(self.clients.values(), 0.05)
            self._handle_events()
        self._settle()
        self._do_cancel({"client": OWN, "channel": 4, "tag": tag})
        log.verify(reader.got)
