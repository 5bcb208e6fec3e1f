"""Draws a program from a row of choices and a seed."""

from __future__ import annotations

import random
from typing import Any

from tests.model.pairs import Row
from tests.model.programs import Program, Step

SHORT_MS, LONG_MS = 150, 600_000
LEASE_MS = 700
CHAINED = "x2"
#: Messages of a large transaction on one node, and on three.
LARGE = {1: 600, 3: 200}


class Draft:
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

    def add(self, op: str, **step: Any) -> None:
        self.steps.append({"op": op, **step})

    def program(self) -> Program:
        self._set_up()
        body = [self._body_step() for _ in range(self.chance.randint(10, 22))]
        for at, special in self._specials(len(body)):
            body.insert(at, special)
        for make in body:
            make()
        places = {
            "same": ["n1", "n1", "n1"],
            "other": ["n1", "n2", "n2"],
            "each": ["n1", "n2", "n3"],
        }[self.row["asked"]]
        limited = self.row["permission"] != "all"
        return Program(
            self.seed,
            self.nodes,
            self.steps,
            places,
            ["guest", "guest", "u" if limited else "guest"],
            self.row,
        )

    # -- what is there ---------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        row = self.row
        if row["dead-letter"] != "none" or row["policy"] in ("dead-letter",) or self.chance.random() < 0.2:
            self.add(
                "exchange",
                client=0,
                exchange="dlx",
                kind="fanout" if row["dead-letter"] != "key" else "direct",
            )
            kind = self.chance.choice(["classic", "quorum"])
            self.add("declare", client=0, queue="dead", kind=kind)
            self.add("bind", client=0, source="dlx", destination="dead", key="dk")
            if self.chance.random() < 0.4:
                # A cycle.
                self.add("bind", client=0, source="dlx", destination="q0", key="dk")
        if row["exchange"] == "super":
            self.add("exchange", client=0, exchange="s", kind="x-super-stream", arguments={"x-partitions": 2})
        elif self.log:
            arguments: dict[str, Any] = {}
            if row["deduplication"] == "yes":
                arguments["x-deduplication"] = True
            if row["compaction"] == "yes":
                arguments |= {
                    "x-stream-compaction": "header:x-stream-key",
                    "x-stream-max-segment-size-bytes": 1000,
                    "x-stream-tombstone-age": "1s",
                }
            self.add("declare", client=0, queue="s", kind="stream", arguments=arguments)
        self._declare_main()
        self.add(
            "declare",
            client=self.chance.randrange(2),
            queue="q1",
            kind=self.chance.choice(["classic", "quorum"]),
        )
        self._exchanges()
        if row["publish"] in ("confirm", "tx", "large tx"):
            self.add("confirm" if row["publish"] == "confirm" else "tx", client=0)
        if self.chance.random() < 0.3:
            self.add("confirm", client=1, channel=2)
        if row["publish"] == "plain" and self.chance.random() < 0.3:
            self.add("confirm", client=0, channel=2)

    def _declare_main(self) -> None:
        if self.kind == "stream":
            self.queue = "s-0" if self.row["exchange"] == "super" else "s"
            return
        if self.kind == "group":
            self.add(
                "declare",
                client=0,
                queue="q0",
                kind="stream-group",
                arguments={"x-stream": "s", "x-stream-offset": "first"},
            )
            return
        row = self.row
        arguments: dict[str, Any] = {}
        if row["ttl"] in ("queue", "zero", "long"):
            arguments["x-message-ttl"] = {"queue": SHORT_MS, "zero": 0, "long": LONG_MS}[row["ttl"]]
        if row["length"] != "none":
            arguments["x-max-length"] = 3
        if row["bytes"] != "none":
            arguments["x-max-length-bytes"] = 100
        if row["overflow"] != "drop-head" or self.chance.random() < 0.2:
            arguments["x-overflow"] = row["overflow"]
            if row["length"] == row["bytes"] == "none" and row["policy"] not in ("length", "operator"):
                arguments["x-max-length"] = 4
        if row["dead-letter"] != "none":
            arguments["x-dead-letter-exchange"] = "dlx"
        if row["dead-letter"] == "key":
            arguments["x-dead-letter-routing-key"] = "dk"
        if row["dead-letter"] == "at-least-once":
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        if row["priority"] != "none":
            arguments["x-max-priority"] = 5
        if row["single-active"] == "yes":
            arguments["x-single-active-consumer"] = True
        if row["delivery-limit"] != "none":
            arguments["x-delivery-limit"] = 1
        if row["expires"] != "none":
            arguments["x-expires"] = LEASE_MS if row["expires"] == "short" else LONG_MS
        if row["deduplication"] == "yes":
            arguments["x-deduplication"] = True
        life = row["life"]
        owner = 1 if life == "exclusive" else 0
        self.add(
            "declare",
            client=owner,
            queue="q0",
            kind=self.kind,
            arguments=arguments,
            durable=life in ("durable", "auto-delete"),
            exclusive=life == "exclusive",
            auto_delete=life == "auto-delete",
        )
        if self.chance.random() < 0.1:
            # Refused: an argument that this kind does not have, or another value.
            other: dict[str, Any] = dict(
                self.chance.choice(
                    [{"x-max-length": 99}, {"x-max-age": "1D"}, {"x-max-priority": -1}, {"x-message-ttl": -1}]
                )
            )
            self.add("declare", client=0, channel=3, queue="q0", kind=self.kind, arguments=arguments | other)

    def _exchanges(self) -> None:
        kind, target = self.row["exchange"], self.queue
        if self.kind == "group":
            target = "s"
        if kind in ("default", "super"):
            return
        real = {"chain": "direct", "alternate": "direct"}.get(kind, kind)
        alternate = {"alternate-exchange": CHAINED} if kind == "alternate" else {}
        if kind in ("chain", "alternate"):
            self.add("exchange", client=0, exchange=CHAINED, kind="fanout")
            self.add("bind", client=0, source=CHAINED, destination=target, key="")
        self.add(
            "exchange",
            client=0,
            exchange="x",
            kind=real,
            arguments=alternate,
            # Whether it goes with a queue that a restart takes away is not said.
            auto_delete=self.row["life"] == "durable" and self.chance.random() < 0.15,
        )
        if kind == "chain":
            self.add("bind", client=0, source="x", destination=CHAINED, key="k", to_exchange=True)
        elif kind != "alternate":
            self._bind(target)
        if self.chance.random() < 0.6:
            self._bind("q1", client=self.chance.randrange(2))

    def _binding(self) -> dict[str, Any]:
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

    # -- what happens ----------------------------------------------------------------------------------------

    def _body_step(self) -> Any:
        return self.chance.choices(
            [
                self._publish,
                self._consume,
                self._settle,
                self._get,
                self._count,
                self._wait,
                self._bind_or_not,
                self._cancel,
            ],
            [10, 5, 7, 3, 3, 2, 1, 1],
        )[0]

    def _specials(self, count: int) -> list[tuple[int, Any]]:
        """The choices that happen at one moment, such as a fault."""
        out: list[tuple[int, Any]] = []
        row = self.row
        if row["policy"] != "none":
            at = self.chance.randint(0, count)
            out.append((at, self._policy))
            if self.chance.random() < 0.4:
                out.append((self.chance.randint(at, count), lambda: self.add("clear_policy", name="p")))
        if row["deletion"] != "none":
            out.append((self.chance.randint(count // 2, count), self._deletion))
        if row["fault"] != "none":
            at = self.chance.randint(count // 3, count)
            out.append((at, self._fault))
        if row["permission"] != "all":
            out.append((self.chance.randint(0, count // 2), self._permission))
        if row["compaction"] == "yes":
            out.append((self.chance.randint(0, count), self._compacted))
        if row["limit"] != "none":
            out.append((self.chance.randint(0, count // 2), self._limit))
        return sorted(out, key=lambda pair: -pair[0])

    def _before_fault(self) -> None:
        """Messages that wait, and some that are acked: a restart must keep the one and not the other."""
        self._publish()
        if self.log:
            self._consume()
        for client in (1, 2, 0):
            if self.chance.random() < 0.6:
                self.add(
                    "settle",
                    client=client,
                    channel=self.chance.choice([5, 6]),
                    how="ack",
                    multiple=True,
                    count=0,
                )
        if not self.log:
            messages = [self._message() for _ in range(3)]
            self.add(
                "publish", client=1, channel=2, exchange="", key=self.queue, messages=messages, wait=True
            )

    def _again(self) -> None:
        """What was published before is published once more, with the same frame."""
        for step in reversed(self.steps):
            if step["op"] == "publish" and step["exchange"] == "x":
                self.add(**(step | {"messages": [self._message() for _ in range(2)]}))
                return

    def _fault(self) -> None:
        kind = self.row["fault"]
        self._before_fault()
        vouch = kind != "kill at once"
        kind = kind.removesuffix(" at once")
        node = self.chance.choice(["n1", "n2", "n3"]) if self.nodes > 1 else "n1"
        name = "s" if self.log else "q0"
        self.add(
            "fault", kind=kind, node=node, vouch=vouch, queue=name, by_s=self.chance.choice([-7200, 7200])
        )
        if self.nodes > 1:
            for _ in range(self.chance.randint(0, 4)):
                self._body_step()()
            if kind not in ("transfer", "entry"):
                self.add("heal")
        for _ in range(self.chance.randint(1, 4)):
            self._body_step()()

    def _policy(self) -> None:
        chosen = self.row["policy"]
        definitions: dict[str, dict[str, Any]] = {
            "length": {"max-length": 2},
            "ttl": {"message-ttl": SHORT_MS},
            "dead-letter": {"dead-letter-exchange": "dlx"},
            "overflow": {"max-length": 2, "overflow": "reject-publish"},
            "expires": {"expires": LEASE_MS},
            "alternate": {"alternate-exchange": "amq.fanout"},
            "operator": {"max-length": 2},
        }
        definition = definitions[chosen]
        apply_to = "exchanges" if chosen == "alternate" else "queues"
        pattern = "^x" if chosen == "alternate" else "^q"
        if chosen == "alternate":
            self.add("bind", client=0, source="amq.fanout", destination="q1", key="")
        self.add(
            "policy",
            name="p",
            pattern=pattern,
            apply_to=apply_to,
            definition=definition,
            operator=chosen == "operator",
        )

    def _deletion(self) -> None:
        chosen, client = self.row["deletion"], self.chance.randrange(2)
        queue = "q0" if self.kind != "stream" else self.queue
        if chosen == "purge":
            self.add("purge", client=client, queue=queue)
        elif chosen == "exchange":
            name = {"default": "dlx", "super": "s"}.get(self.row["exchange"], "x")
            self.add("delete_exchange", client=client, exchange=name, if_unused=self.chance.random() < 0.3)
        elif chosen == "unbind":
            for step in [s for s in self.steps if s["op"] == "bind"][-2:]:
                self.add("unbind", **{k: v for k, v in step.items() if k != "op"})
            self._again()
        else:
            if self.chance.random() < 0.5:
                self._publish()
            self.add(
                "delete",
                client=client,
                queue=queue,
                if_empty=chosen == "if-empty",
                if_unused=chosen == "if-unused",
            )
            if self.chance.random() < 0.5 and self.kind != "stream":
                self._declare_main()
                self._publish()

    def _permission(self) -> None:
        patterns = {
            "no read": [".*", ".*", "^$"],
            "no write": [".*", "^$", ".*"],
            "no configure": ["^$", ".*", ".*"],
        }
        self.add("permissions", user="u", permissions=patterns[self.row["permission"]])
        queue = self.queue
        steps: list[Step] = [
            {"op": "get", "queue": queue},
            {"op": "publish", "exchange": "", "key": queue, "messages": [self._message()]},
            {
                "op": "declare",
                "queue": "q9",
                "kind": "classic",
                "arguments": {"x-dead-letter-exchange": "amq.fanout"},
            },
            {
                "op": "declare",
                "queue": "g9",
                "kind": "stream-group",
                "arguments": {"x-stream": "s", "x-stream-offset": "first"},
            },
            {"op": "consume", "queue": queue, "tag": "u1"},
            {"op": "purge", "queue": "q1"},
            {"op": "bind", "source": "amq.fanout", "destination": "q1", "key": ""},
            {
                "op": "exchange",
                "exchange": "x9",
                "kind": "fanout",
                "arguments": {"alternate-exchange": "amq.fanout"},
            },
            {"op": "delete", "queue": "q1"},
        ]
        if self.row["permission"] == "no read" and self.row["kind"] == "group":
            self._secret()
        for step in self.chance.sample(steps, 4):
            if step["op"] == "declare" and step["kind"] == "stream-group" and self.kind != "group":
                continue
            self.add(step.pop("op"), client=2, **step)

    def _secret(self) -> None:
        """A user who may not read a stream adds it to a super stream that a group of his reads."""
        self.add("exchange", client=0, exchange="ms", kind="x-super-stream")
        self.add("declare", client=0, queue="ok", kind="stream")
        self.add("declare", client=0, queue="hidden", kind="stream")
        self.add("publish", client=0, channel=2, exchange="", key="hidden", messages=[self._message()])
        self.add("permissions", user="u", permissions=[".*", ".*", "^(ms|ok|g7)$"])
        self.add("bind", client=2, source="ms", destination="ok", key="0")
        self.add(
            "declare",
            client=2,
            queue="g7",
            kind="stream-group",
            arguments={"x-stream": "ms", "x-stream-offset": "first"},
        )
        self.add("bind", client=2, source="ms", destination="hidden", key="1")
        self.add("qos", client=2, channel=9, count=5)
        self.add("consume", client=2, channel=9, queue="g7", tag="secret")
        self.add("wait", ms=200)
        self.add("permissions", user="u", permissions=[".*", ".*", "^$"])

    def _limit(self) -> None:
        self.add("limit", queues=self.chance.randint(3, 5))
        for i in range(3):
            self.add(
                "declare",
                client=0,
                channel=4,
                queue=f"more{i}",
                kind=self.chance.choice(["classic", "quorum", "stream"]),
            )
        self.add(
            "exchange",
            client=0,
            channel=4,
            exchange="ss",
            kind="x-super-stream",
            arguments={"x-partitions": 3},
        )

    def _compacted(self) -> None:
        """A key is deleted, and enough comes after that for a pass over full segments."""
        keyed = [self._message() | {"headers": {"x-stream-key": "gone"}, "size": size} for size in (100, 0)]
        for message in keyed:
            self.add("publish", client=0, channel=2, exchange="", key="s", messages=[message])
            filler = [self._message() | {"size": 100} for _ in range(12)]
            self.add("publish", client=0, channel=2, exchange="", key="s", messages=filler)
        self.add("wait", ms=1_300)
        self.add(
            "publish",
            client=0,
            channel=2,
            exchange="",
            key="s",
            messages=[self._message() | {"size": 100} for _ in range(12)],
        )
        self.add("wait", ms=700)

    def _message(self) -> dict[str, Any]:
        self.number += 1
        row, chance = self.row, self.chance
        message: dict[str, Any] = {"number": self.number, "size": chance.choice([0, 10, 20, 20, 40, 60, 90])}
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
        if row["compaction"] == "yes":
            headers["x-stream-key"] = f"key{chance.randrange(3)}"
            message["size"] = 0 if chance.random() < 0.3 else 100
        elif row["kind"] == "stream":
            headers["x-stream-filter-value"] = chance.choice(["f1", "f2"])
        if chance.random() < 0.05:
            headers["CC"] = ["q1"]
        return message | ({"headers": headers} if headers else {})

    def _target(self) -> tuple[str, str]:
        kind = self.row["exchange"]
        if kind == "super":
            return "s", f"key{self.chance.randrange(4)}"
        if kind == "default" or self.chance.random() < 0.15:
            name = {"stream": self.queue, "group": "s"}.get(self.kind, "q0")
            return "", self.chance.choice([name, name, name, name, "q1", "nowhere"])
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
        queues = (
            ["q1", self.queue] if not self.log else ["q1", "s" if self.row["exchange"] != "super" else "s-0"]
        )
        self.add("large", client=0, keys=queues, number=self.number + 1, count=LARGE[self.nodes])
        self.number += LARGE[self.nodes]
        self.add("commit", client=0, watch=queues)
        self.add("purge", client=0, channel=8, queue="q1")
        if not self.log:
            self.add("purge", client=0, channel=8, queue=self.queue)

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
            if self.chance.random() < 0.3:
                step["arguments"]["x-stream-filter"] = ["f1"]
        elif row["consume"] == "no-ack":
            step["no_ack"] = True
        elif row["consume"] == "exclusive" and self.chance.random() < 0.5:
            step["exclusive"] = True
        elif row["consume"] == "priorities":
            step["arguments"] = {"x-priority": self.chance.choice([0, 1, 5])}
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


def draw(seed: int, row: Row, nodes: int) -> Program:
    return Draft(seed, row, nodes).program()
