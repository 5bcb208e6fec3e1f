"""Steps of clients: they publish, consume, settle, ask."""

from __future__ import annotations

import random
from typing import Any

from tests.model.pairs import Row
from tests.model.programs import Step
from tests.model.spec.routing import CHOOSING

SHORT_MS, LONG_MS = 150, 600_000
LEASE_MS = 700
#: A consumer may hold a message for so long: longer than the steps before it is waited for.
STUCK_MS = 500
CHAINED = "x2"
#: Messages of a large transaction: mqd commits more than 256 parts in several turns.
LARGE = 300


class Clients:
    def __init__(self, seed: int, row: Row, nodes: int) -> None:
        self.chance = random.Random(seed)
        self.row, self.nodes, self.seed = row, nodes, seed
        self.steps: list[Step] = []
        self.number = 0
        self.tags = 0
        self.consuming: list[tuple[int, str]] = []
        #: The queue that clients consume from, and what they publish to.
        self.queue = "q0"
        self.kind = row["kind"]
        self.log = self.kind in ("stream", "group")
        #: The queue that a fault of one queue hits.
        self.hit = ("s-0" if row["exchange"] == "super" else "s") if self.log else "q0"

    def _any_queue(self) -> str:
        """Type of a queue beside the main one. A damaged node may lose classic queues."""
        return "quorum" if self.row["fault"] == "damage" else self.chance.choice(["classic", "quorum"])

    def add(self, op: str, **step: Any) -> None:
        self.steps.append({"op": op, **step})

    def _message(self) -> dict[str, Any]:
        self.number += 1
        row, chance = self.row, self.chance
        message: dict[str, Any] = {"number": self.number, "size": chance.choice([0, 10, 20, 20, 40, 60, 90])}
        if row["bytes"] != "none" and chance.random() < 0.1:
            # More than the queue may have.
            message["size"] = 120
        message["persistent"] = {"persistent": True, "transient": False}.get(
            row["messages"], chance.random() < 0.5
        )
        if row["priority"] != "none":
            message["priority"] = chance.choice([None, 0, 1, 5, 9])
        if row["ttl"] == "message" and chance.random() < 0.6:
            message["expiration"] = chance.choice([0, SHORT_MS, SHORT_MS, LONG_MS])
        headers: dict[str, Any] = {}
        if row["exchange"] == "headers":
            headers["h"] = chance.choice(["1", "2", "3"])
        if row["deduplication"] == "yes" and chance.random() < 0.7:
            headers["x-deduplication-id"] = f"id{chance.randrange(8)}"
        if row["groups"] == "yes" and chance.random() < 0.85:
            headers["x-group-id"] = chance.choice(["ann", "ann", "ben", "zoë"])
        if row["delay"] == "message" and chance.random() < 0.6:
            headers["x-delay"] = chance.choice([0, SHORT_MS, SHORT_MS, 3 * SHORT_MS])
        if row["compaction"] == "yes":
            headers["x-stream-key"] = f"key{chance.randrange(3)}"
            message["size"] = 0 if chance.random() < 0.3 else 100
        elif row["kind"] == "stream":
            headers["x-stream-filter-value"] = chance.choice(["f1", "f2"])
        if row["retention"] == "yes":
            message["size"] = 100
        if row["level"] != "none" and chance.random() < 0.5:
            headers["x-confirm"] = row["level"]
        if chance.random() < 0.05 and row["exchange"] not in CHOOSING:
            headers["CC"] = ["q1"]
        return message | ({"headers": headers} if headers else {})

    def _target(self) -> tuple[str, str]:
        kind = self.row["exchange"]
        if kind == "super":
            return "s", f"key{self.chance.randrange(4)}"
        if kind == "default" or self.chance.random() < 0.15:
            name = {"stream": self.queue, "group": "s"}.get(self.kind, "q0")
            return "", self.chance.choice([name, name, name, name, "q1", "nowhere"])
        if kind in CHOOSING:
            return "x", self.chance.choice(["a", "b", "c", "d"])
        if kind == "topic":
            return "x", self.chance.choice(["k.a", "k.a.b", "z.a", "k"])
        return "x", self.chance.choice(["k", "k", "k", "k2", "none"])

    def _publish(self) -> None:
        row = self.row
        exchange, key = self._target()
        client, channel = self.chance.choice([(0, 1), (0, 1), (0, 1), (1, 2), (0, 2)])
        if row["publish"] == "large tx" and channel == 1 and self.chance.random() < 0.2:
            self._large_transaction()
            return
        count = self.chance.choice([1, 1, 2, 3, 5, 8])
        messages = [self._message() for _ in range(count)]
        mandatory = row["mandatory"] == "yes" and self.chance.random() < 0.5
        self.add(
            "publish",
            client=client,
            channel=channel,
            exchange=exchange,
            key=key,
            messages=messages,
            mandatory=mandatory,
            wait=True,
        )
        if row["publish"] in ("tx", "large tx") and (client, channel) == (0, 1):
            if self.chance.random() < 0.75:
                self.add("commit", client=0)
            elif self.chance.random() < 0.7:
                self.add("rollback", client=0)

    def _large_transaction(self) -> None:
        """Many parts, so that a broker may need several turns for them."""
        if self.chance.random() < 0.5:
            # Nobody else uses these, so they are watched meanwhile.
            queues = ["t1", "t2"]
            for queue in queues:
                kind = self.chance.choice(["classic", "quorum"])
                self.add("declare", client=0, channel=8, queue=queue, kind=kind)
        else:
            log = "s-0" if self.row["exchange"] == "super" else "s"
            queues = ["q1", log if self.log else self.queue]
        self.add("large", client=0, keys=queues, number=self.number + 1, count=LARGE)
        self.number += LARGE
        self.add("commit", client=0, watch=queues)
        for queue in queues:
            if queue in ("t1", "t2"):
                self.add("delete", client=0, channel=8, queue=queue)
            elif queue == "q1" or not self.log:
                self.add("purge", client=0, channel=8, queue=queue)

    def _consume(self) -> None:
        row = self.row
        if row["consume"] == "get" and not self.log:
            self._get()
            return
        client, channel = self.chance.choice([1, 1, 2, 0]), self.chance.choice([5, 6])
        self.tags += 1
        tag = f"c{self.tags}"
        count = {"prefetch 1": 1, "prefetch 3": 3, "global": 3}.get(
            row["consume"], self.chance.choice([0, 2, 10])
        )
        if self.kind == "stream":
            count = count or 10
        self.add(
            "qos",
            client=client,
            channel=channel,
            count=count,
            **({"global": True} if row["consume"] == "global" and self.kind == "classic" else {}),
        )
        if row["consume"] == "global" and self.log:
            self.steps[-1]["global"] = False
        step: dict[str, Any] = {
            "client": client,
            "channel": channel,
            "queue": self.queue if self.chance.random() < 0.85 else "q1",
            "tag": tag,
        }
        if self.kind == "stream" and step["queue"] == self.queue:
            offset = self.chance.choice(["first", "first", "next", "last", 0, 2])
            step["arguments"] = {"x-stream-offset": offset}
            if row["consume"] == "by name":
                step["arguments"] = {
                    "x-stream-offset": "committed",
                    "x-group": self.chance.choice(["ann", "ann", "ann", "bob", "bob", "cid"]),
                    "x-stream-offset-default": "first",
                }
                if self.chance.random() < 0.2:
                    step["arguments"]["x-stream-batches"] = True
                self.consuming.append((client, tag))
                self.add("consume", **step)
                return
            batched = row["consume"] == "batches" and self.chance.random() < 0.8
            if batched:
                step["arguments"]["x-stream-batches"] = True
            if self.chance.random() < (0.05 if batched else 0.3):
                step["arguments"]["x-stream-filter"] = ["f1"]
            if self.chance.random() < (0.05 if batched else 0.3):
                step["arguments"]["x-stream-timestamps"] = True
        elif row["consume"] == "no-ack":
            step["no_ack"] = True
        elif row["consume"] == "exclusive" and self.chance.random() < 0.5:
            step["exclusive"] = True
        elif row["consume"] == "priorities":
            step["arguments"] = {"x-priority": self.chance.choice([0, 1, 5])}
        if row["consume"] == "batches" and step["queue"] != self.queue and self.chance.random() < 0.3:
            # Only streams have them.
            step["arguments"] = {"x-stream-batches": True}
        self.consuming.append((client, tag))
        self.add("consume", **step)

    def _cancel(self) -> None:
        for step in reversed(self.steps):
            if step["op"] == "consume":
                self.add("cancel", client=step["client"], channel=step.get("channel", 1), tag=step["tag"])
                return

    def _settle(self) -> None:
        how = self.row["settle"]
        client, channel = self.chance.choice([1, 1, 2, 0]), self.chance.choice([5, 6, 1])
        if how in ("close", "abort") and self.chance.random() < 0.3:
            self.add("close", client=client, how=self.chance.choice(["channel", how]), channel=channel)
            return
        if how == "retry" and self.chance.random() < 0.8:
            self._return_later(client, channel)
            return
        if how == "recover" and self.chance.random() < 0.4:
            self.add("recover", client=client, channel=channel)
            return
        chosen = {"requeue": "requeue", "discard": "discard"}.get(how, "ack")
        if self.chance.random() < 0.3:
            chosen = self.chance.choice(["ack", "ack", "requeue", "discard"])
        multiple = how == "multiple" or self.chance.random() < 0.2
        self.add(
            "settle",
            client=client,
            channel=channel,
            how=chosen,
            multiple=multiple,
            count=self.chance.choice([0, 1, 1, 2, 3]),
            newest=self.chance.random() < 0.2,
        )

    def _return_later(self, client: int, channel: int) -> None:
        """Deliveries come again when the consumer says."""
        self.add(
            "retry",
            client=client,
            channel=channel,
            count=self.chance.choice([1, 1, 2, 3]),
            newest=self.chance.random() < 0.2,
            delay=self.chance.choice([0, SHORT_MS, SHORT_MS, 3 * SHORT_MS]),
            failed=self.chance.random() < 0.6,
            **({"unknown": [1 << 40]} if self.chance.random() < 0.1 else {}),
        )

    def _get(self) -> None:
        if self.log:
            return
        queue = self.chance.choice([self.queue, self.queue, "q1", "dead"])
        if queue == "dead" and not any(s.get("queue") == "dead" for s in self.steps):
            queue = "q1"
        self.add(
            "get",
            client=self.chance.choice([1, 1, 0, 2]),
            channel=5,
            queue=queue,
            count=self.chance.choice([1, 2, 4]),
            no_ack=self.chance.random() < 0.2,
        )

    def _count(self) -> None:
        self.add(
            "count",
            client=self.chance.randrange(3),
            channel=7,
            queue=self.chance.choice([self.queue, self.queue, "q1"]),
        )

    def _wait(self) -> None:
        if self.row["ttl"] in ("queue", "message", "zero") or self.row["policy"] == "ttl":
            self.add("wait", ms=SHORT_MS + 60)
        elif self.row["expires"] == "short" or self.row["policy"] == "expires":
            self.add("wait", ms=self.chance.choice([200, LEASE_MS + 100]))
        elif self.row["delay"] != "none" or self.row["settle"] == "retry":
            self.add("wait", ms=SHORT_MS + 60)
        else:
            self.add("wait", ms=10)

    def _bind_or_not(self) -> None:
        bound = [step for step in self.steps if step["op"] == "bind" and step["source"] == "x"]
        if bound and self.chance.random() < 0.5:
            step = self.chance.choice(bound)
            self.add("unbind", **{name: value for name, value in step.items() if name != "op"})
            self._again()
        elif any(step.get("exchange") == "x" for step in self.steps):
            self._bind(self.chance.choice(["q1", self.queue if self.kind != "group" else "s"]))

    def _binding(self) -> dict[str, Any]:
        if self.row["exchange"] in CHOOSING:
            return {"key": self.chance.choice(["1", "2"])}
        if self.row["exchange"] == "topic":
            return {"key": self.chance.choice(["k.#", "*.a", "#", "k.*", "k.a.b"])}
        if self.row["exchange"] == "headers":
            return {
                "key": "",
                "arguments": {
                    "x-match": self.chance.choice(["all", "any"]),
                    "h": self.chance.choice(["1", "2"]),
                },
            }
        return {"key": self.chance.choice(["k", "k", "k2"])}

    def _bind(self, queue: str, client: int = 0) -> None:
        self.add("bind", client=client, source="x", destination=queue, **self._binding())

    def _again(self) -> None:
        """What was published before is published once more, with the same frame."""
        for step in reversed(self.steps):
            if step["op"] == "publish" and step["exchange"] == "x":
                self.add(**(step | {"messages": [self._message() for _ in range(2)]}))
                return
