"""What happens at one moment of a program, such as a fault."""

from __future__ import annotations

import random
from typing import Any

from tests.model import damage
from tests.model.drawing.clients import LEASE_MS, SHORT_MS, STUCK_MS
from tests.model.drawing.declarations import Declarations
from tests.model.programs import Step

#: Messages of a group that stay unacked, each between acked ones: more than GAPS_MAX of the brokers.
SCATTERED = 20


class Moments(Declarations):
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
        if row["consume"] == "by name":
            out.append((self.chance.randint(0, count), self._names))
        if row["retention"] == "yes":
            out.append((self.chance.randint(0, count), self._much))
        if self.kind == "group" and row["compaction"] == row["retention"] == "no":
            at = random.Random(f"scattered {self.seed}").randint(0, count)
            out.append((at, self._scattered))
        if row["timeout"] == "consumer" and not self.log:
            out += [(self.chance.randint(0, count), self._stuck) for _ in range(2)]
        if row["producer"] == "epochs":
            out += [(self.chance.randint(0, count), self._producers) for _ in range(3)]
        if row["dead-letter"] == "retry":
            # Before consumers take what has to come back.
            out.append((0, self._retry))
        if row["delay"] == "message" and not self.log:
            out += [(self.chance.randint(0, count), self._cancel_waiting) for _ in range(2)]
        if row["limit"] != "none":
            out.append((self.chance.randint(0, count // 2), self._limit))
        if row["pause"] != "none":
            at = self.chance.randint(0, count)
            out.append((at, lambda: self.add("pause", queue="q0", what=row["pause"])))
            if self.chance.random() < 0.6:
                later = self.chance.randint(at, count)
                out.append((later, lambda: self.add("resume", queue="q0", what=row["pause"])))
        out += self._protection(count)
        return sorted(out, key=lambda pair: -pair[0])

    def _protection(self, count: int) -> list[tuple[int, Any]]:
        """An operator protects a queue that would end, or that somebody deletes. Its chance is its own, so
        that all other programs stay the same.
        """
        chance, row = random.Random(f"protected {self.seed}"), self.row
        ends = row["deletion"] in ("queue", "if-empty", "if-unused") or row["life"] == "auto-delete"
        ends = ends or row["expires"] == "short" or row["policy"] == "expires"
        never = row["life"] == "exclusive" or row["fault"] == "upgrade" or row["exchange"] == "super"
        if not ends or never or chance.random() < 0.5:
            return []
        queue = self.queue if self.kind == "stream" else "q0"
        at = chance.randint(0, count)
        out: list[tuple[int, Any]] = [(at, lambda: self.add("protect", queue=queue, protected=True))]
        if chance.random() < 0.7:
            later = chance.randint(at, count)
            out.append((later, lambda: self.add("protect", queue=queue, protected=False)))
        return out

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
            if self.row["priority"] != "none":
                # Not in the order in which they have to come after a restart.
                for message, priority in zip(messages, (1, 5, 0), strict=True):
                    message["priority"] = priority
            self.add(
                "publish", client=1, channel=2, exchange="", key=self.queue, messages=messages, wait=True
            )

    def _alarm(self, kind: str) -> None:
        key = "s" if self.kind == "group" else self.queue
        meanwhile = [
            {"op": "settle", "client": 2, "channel": channel, "how": "ack", "multiple": True}
            for channel in (5, 6)
        ]
        self.add(
            "alarm",
            kind=kind,
            client=1,
            channel=2,
            exchange="",
            key=key,
            messages=[self._message() for _ in range(2)],
            meanwhile=meanwhile,
        )

    def _cancel_waiting(self) -> None:
        """Some messages wait, and one of them, or one that does not wait, is cancelled by its id."""
        waits = [self._message() for _ in range(2)]
        for message in waits:
            message["headers"] = message.get("headers", {}) | {"x-delay": 4 * SHORT_MS}
        self.add("publish", client=0, channel=2, exchange="", key="q0", messages=waits, wait=True)
        late, which = self.chance.random() < 0.2, self.chance.randrange(4)
        self.add("cancel_waiting", queue="q0", which=which, late=late)

    def _stuck(self) -> None:
        """A consumer holds messages for too long, while another one may wait, and acks them then."""
        chance = self.chance
        self.tags += 2
        tags = [f"c{self.tags - 1}", f"c{self.tags}"]
        held: Step = {"x-consumer-timeout": STUCK_MS}
        if self.row["consume"] == "priorities":
            held["x-priority"] = chance.choice([0, 5])
        self.add("qos", client=1, channel=14, count=chance.choice([1, 3]))
        self.add("consume", client=1, channel=14, queue=self.queue, tag=tags[0], arguments=held)
        other = chance.choice([0, 2])
        waits = chance.random() < 0.7
        if waits:
            self.add("qos", client=other, channel=15, count=chance.choice([1, 10]))
            self.add("consume", client=other, channel=15, queue=self.queue, tag=tags[1])
        messages = [self._message() for _ in range(3)]
        self.add("publish", client=0, channel=2, exchange="", key=self.queue, messages=messages, wait=True)
        self.add("stuck", client=1, channel=14, tag=tags[0])
        if chance.random() < 0.5:
            self.add("settle", client=1, channel=14, how=chance.choice(["ack", "requeue"]), count=2)
        if waits and chance.random() < 0.7:
            self.add("settle", client=other, channel=15, how="ack", multiple=True, count=0)
        self.add("close", client=1, how="channel", channel=14)

    def _producers(self) -> None:
        """A program starts again while its predecessor has an open transaction, and may be the later one."""
        chance, first = self.chance, self.chance.randrange(2)
        name = chance.choice(["billing", "billing", "mail"])
        starts: list[tuple[int, int]] = [(first, chance.randrange(4)), (1 - first, chance.randrange(6))]
        queue = "s" if self.kind == "group" else self.queue
        for client, epoch in starts:
            self.add("tx", client=client, channel=13)
            if not self.log and chance.random() < 0.5:
                self.add("get", client=client, channel=13, queue=chance.choice([queue, "q1"]), count=1)
                self.add("settle", client=client, channel=13, how="ack", multiple=False, count=1)
            self._as_producer(client, chance.choice([queue, "q1"]), name, epoch)
        ends = [starts[0], starts[1], chance.choice(starts)]
        chance.shuffle(ends)
        for client, epoch in ends:
            if chance.random() < 0.3:
                self._as_producer(client, queue, name, epoch + chance.choice([-1, 0, 0, 1]))
            self.add(chance.choice(["commit", "commit", "commit", "rollback"]), client=client, channel=13)

    def _as_producer(self, client: int, queue: str, name: str, epoch: int) -> None:
        messages = [self._message() for _ in range(2)]
        for message in messages:
            message["headers"] = message.get("headers", {}) | {"x-producer": name, "x-producer-epoch": epoch}
        self.add("publish", client=client, channel=13, exchange="", key=queue, messages=messages, wait=True)

    def _much(self) -> None:
        """More than a stream with retention keeps."""
        for _ in range(4):
            messages = [self._message() for _ in range(10)]
            self.add("publish", client=0, channel=2, exchange="", key="s", messages=messages, wait=True)

    def _scattered(self) -> None:
        """The member of a group of its own acks every second message, so that its partition has more gaps
        than the group keeps: it gets nothing new until it has acked some, or has given them back.
        """
        chance = random.Random(f"scattered acks {self.seed}")
        log = "s-0" if self.row["exchange"] == "super" else "s"
        member: Step = {"client": chance.choice([0, 1]), "channel": 16}

        def joins() -> None:
            self.tags += 1
            self.add("qos", **member, count=0)
            self.add("consume", **member, queue="gaps", tag=f"c{self.tags}")

        def publish(count: int) -> None:
            messages = [self._plain() for _ in range(count)]
            self.add("publish", client=0, channel=2, exchange="", key=log, messages=messages, wait=True)

        arguments = {"x-stream": log, "x-stream-offset": chance.choice(["first", "next"])}
        self.add("declare", client=0, channel=3, queue="gaps", kind="stream-group", arguments=arguments)
        joins()
        publish(2 * SCATTERED)
        self.add("settle", **member, how="ack", count=0, every=2)
        publish(3)
        self.add("wait", ms=60)
        end = chance.choice(["ack", "ack", "requeue", "channel", "cancel", "node"])
        if end == "requeue":
            self.add("settle", **member, how="requeue", multiple=True, count=0)
            self.add("wait", ms=60)
        elif end == "channel":
            self.add("close", client=member["client"], how="channel", channel=member["channel"])
            joins()
        elif end == "cancel":
            self.add("cancel", **member, tag=f"c{self.tags}")
            joins()
        elif end == "node" and self.nodes == 1 and self.row["fault"] in ("kill", "restart"):
            self.add("fault", kind=self.row["fault"], node="n1", vouch=True, queue=self.hit, by_s=0)
            joins()
        publish(1)
        self.add("wait", ms=60)
        if chance.random() < 0.8:
            self.add("settle", **member, how="ack", multiple=True, count=0)

    def _plain(self) -> dict[str, Any]:
        self.number += 1
        return {"number": self.number, "size": 10, "persistent": True}

    def _retry(self) -> None:
        """A message is rejected, comes back from the dead-letter exchange, and is rejected again."""
        messages = [self._message() | {"expiration": None} for _ in range(2)]
        self.add("publish", client=0, channel=2, exchange="", key="q0", messages=messages, wait=True)
        for _ in range(3):
            self.add("get", client=1, channel=8, queue="q0", count=4)
            self.add("settle", client=1, channel=8, how="discard", multiple=True, count=0)
        self.add("get", client=1, channel=8, queue="dead", count=4)

    def _fault(self) -> None:
        kind = self.row["fault"]
        if kind in ("memory", "disk", "full disk"):
            self._alarm(kind)
            return
        self._before_fault()
        if kind == "upgrade":
            self._upgrade()
            return
        # At least once may be twice if the node is killed before the disk knows that a letter left its queue.
        vouch = kind != "kill at once" or self.row["dead-letter"] == "at-least-once"
        kind = kind.removesuffix(" at once")
        node = self.chance.choice(["n1", "n2", "n3"]) if self.nodes > 1 else "n1"
        when: dict[str, Any] = {}
        if kind == "entry":
            # At least once may be twice if the queue fails before it knows that its letters have been taken.
            late = self.row["dead-letter"] != "at-least-once" and self.chance.random() < 0.5
            when = {"when": "after" if late else "before"}
        elif kind == "damage":
            what: tuple[str, ...] = damage.KINDS if self.nodes > 1 else damage.ALONE
            if self.nodes == 1 and self.chance.random() < 0.7:
                what = ("segment",)
            when = {"what": self.chance.choice(what), "chance": self.chance.randrange(1 << 30)}
            when["orderly"] = self.chance.random() < 0.5
        elif kind == "stall":
            when = {"stalls": [self._stall() for _ in range(self.chance.choice([1, 1, 2, 3]))]}
        by_s = self.chance.choice([-7200, 7200])
        self.add("fault", kind=kind, node=node, vouch=vouch, queue=self.hit, by_s=by_s, **when)
        if self.nodes > 1:
            for _ in range(self.chance.randint(0, 4)):
                self._body_step()()
            if kind not in ("transfer", "entry"):
                self.add("heal")
            if kind in ("damage", "move") and self.chance.random() < 0.5:
                # What this node has is the truth now.
                self.add("fault", kind="transfer", node=node, queue=self.hit)
            if kind == "damage" and self.chance.random() < 0.5:
                other = self.chance.choice([each for each in ("n1", "n2", "n3") if each != node])
                self.add("fault", kind="kill", node=other, vouch=True)
                self._body_step()()
                self.add("heal")
        for _ in range(self.chance.randint(1, 4)):
            self._body_step()()

    def _stall(self) -> list[float]:
        """How long a node stands still, and then goes on before the next stall, s. Links end after 1 s."""
        stands_s = self.chance.choice([self.chance.uniform(0.8, 1.3), self.chance.uniform(0.3, 4.0)])
        return [round(stands_s, 2), self.chance.choice([0.0, 0.1, 1.0])]

    def _upgrade(self) -> None:
        """One node after the other, while clients go on."""
        names = ["n1", "n2", "n3"][: self.nodes]
        for node in self.chance.sample(names, len(names)):
            if self.chance.random() < 0.5:
                self._new()
            self.add("fault", kind="upgrade", node=node, vouch=True, queue="q0")
            if self.nodes > 1:
                for _ in range(self.chance.randint(0, 3)):
                    self._body_step()()
                self.add("heal")
            for _ in range(self.chance.randint(1, 3)):
                self._body_step()()
        self._new()

    def _new(self) -> None:
        """What is refused until all nodes have been upgraded, and works from then on."""
        client = self.chance.randrange(2)
        for queue, kind, arguments in (
            ("new-s", "stream", {}),
            ("new-g", "stream-group", {"x-stream": "new-s", "x-stream-offset": "first"}),
        ):
            self.add("declare", client=client, channel=3, queue=queue, kind=kind, arguments=arguments)
        messages = [self._message() for _ in range(2)]
        self.add("publish", client=client, channel=2, exchange="", key="new-s", messages=messages, wait=True)
        self.add("pause", queue="q0", what="deliveries")
        self.add("resume", queue="q0", what="deliveries")

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
            bound = [s for s in self.steps if s["op"] == "bind" and s["source"] == "x"]
            for step in bound[:2]:
                self._unbound(step)
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
        reads = self.row["permission"] == "no read" and self.kind == "stream"
        read: Step = {
            "client": 2,
            "channel": 12,
            "queue": self.queue,
            "arguments": {"x-stream-offset": "next"},
        }
        if reads:
            # Who could read it may not read it any more.
            self.add("qos", client=2, channel=12, count=10)
            self.add("consume", tag="u2", **read)
            self.add("cancel", client=2, channel=12, tag="u2")
        self.add("permissions", user="u", permissions=patterns[self.row["permission"]])
        if reads:
            self.add("consume", tag="u3", **read)
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

    def _unbound(self, bind: Step) -> None:
        """What a client has published before is published again, with the same frames, at once and later."""
        key = {"#": "k", "k.#": "k", "*.a": "k.a", "k.*": "k.a"}.get(bind["key"], bind["key"])
        publish: Step = {"exchange": "x", "key": key or "k", "wait": True}
        clients = [(1, 2), (0, 2)]
        for client, channel in clients * 2:
            self.add("publish", client=client, channel=channel, messages=[self._message()], **publish)
        self.add("unbind", **{name: value for name, value in bind.items() if name != "op"})
        for client, channel in clients * 2:
            self.add("publish", client=client, channel=channel, messages=[self._message()], **publish)

    def _connections(self) -> None:
        """One more than there may be, before and after another one is closed."""
        self.add("limit", what="connections", value=self.chance.choice([0, 1]))
        for client in (3, 4):
            self.add("connect", client=client)
        self.add("close", client=self.chance.choice([1, 2, 3]), how="close")
        for client in (3, 4):
            self.add("connect", client=client)
        self.add("limit", what="connections", value=-1)

    def _limit(self) -> None:
        if self.row["limit"] == "connections":
            self._connections()
            return
        if self.row["limit"] == "channels":
            self.add("limit", what="channels", user="u", value=self.chance.choice([1, 2]))
            for channel in (5, 6, 7):
                self.add("count", client=2, channel=channel, queue="q1")
            return
        self.add("limit", what="queues", value=self.chance.randint(3, 5))
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

    def _names(self) -> None:
        """Two readers get on by their names, and there is no room for a third name."""
        self._publish()
        for name in ("ann", "bob", "cid"):
            self.tags += 1
            arguments = {
                "x-stream-offset": "committed",
                "x-group": name,
                "x-stream-offset-default": "first",
            }
            tag = f"c{self.tags}"
            self.add("qos", client=1, channel=11, count=10)
            self.add("consume", client=1, channel=11, queue=self.queue, tag=tag, arguments=arguments)
            self.add("wait", ms=30)
            self.add("settle", client=1, channel=11, how="ack", multiple=True, count=0)
            self.add("cancel", client=1, channel=11, tag=tag)

    def _compacted(self) -> None:
        """A key is deleted, and enough comes after that for a pass over full segments."""
        keyed = [self._message() | {"headers": {"x-stream-key": "gone"}, "size": size} for size in (100, 0)]
        for message in keyed:
            self.add("publish", client=0, channel=2, exchange="", key="s", messages=[message])
            filler = [self._message() | {"size": 100} for _ in range(12)]
            self.add("publish", client=0, channel=2, exchange="", key="s", messages=filler)
            if message is keyed[0] and self.chance.random() < 0.5:
                # A pass before the key is deleted.
                self.add("wait", ms=1_300)
        # A pass that removes the tombstone comes when it has been alone for a second.
        for _ in range(2):
            self.add("wait", ms=1_300)
            filler = [self._message() | {"size": 100} for _ in range(12)]
            self.add("publish", client=0, channel=2, exchange="", key="s", messages=filler)
        self.add("wait", ms=700)
