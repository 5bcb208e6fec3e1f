"""What there is when a program begins."""

from __future__ import annotations

from typing import Any

from tests.model.drawing.clients import CHAINED, LEASE_MS, LONG_MS, SHORT_MS, Clients


class Declarations(Clients):
    def _set_up(self) -> None:
        row = self.row
        retried = row["dead-letter"] == "retry"
        if row["dead-letter"] != "none" or row["policy"] in ("dead-letter",) or self.chance.random() < 0.2:
            self.add(
                "exchange",
                client=0,
                exchange="dlx",
                kind="fanout" if row["dead-letter"] != "key" else "direct",
            )
            self.add("declare", client=0, queue="dead", kind=self._any_queue())
            self.add("bind", client=0, source="dlx", destination="dead", key="dk")
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
            if row["retention"] == "yes":
                arguments |= {"x-max-length-bytes": 6000, "x-stream-max-segment-size-bytes": 1000}
            self.add("declare", client=0, queue="s", kind="stream", arguments=arguments)
        self._declare_main()
        dies = any(step["op"] == "exchange" and step["exchange"] == "dlx" for step in self.steps)
        cycle = retried or (self.chance.random() < 0.4 and row["fault"] != "upgrade")
        if dies and not self.log and cycle:
            # A cycle.
            self.add("bind", client=int(row["life"] == "exclusive"), source="dlx", destination="q0", key="dk")
        self.add(
            "declare",
            client=self.chance.randrange(2),
            queue="q1",
            kind=self._any_queue(),
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
        if row["groups"] == "yes":
            arguments["x-message-groups"] = True
        if row["delay"] == "message":
            arguments["x-delayed"] = True
        elif row["delay"] != "none":
            kind = {"retry": "all", "failed": "failed"}[row["delay"]]
            arguments |= {"x-delayed-retry-type": kind, "x-delayed-retry-min": SHORT_MS}
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
