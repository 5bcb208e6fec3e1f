"""A storm of short stalls: a node, or one of its workers, stands still, often for as long as others wait.

Meanwhile clients of all nodes go on with a little of everything. After each stall everything is judged while
it is idle: an idle group, or a client that waits, gets nothing more by accident.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pika

from tests.cluster.flows import Flow, kinds, left
from tests.cluster.mqd import HOST, ApiFailed, MqdCluster
from tests.cluster.nodes import wait_for

ROUNDS = 12
#: `cluster_dead_ms` with the default options, and how far around it most stalls end, s.
DEAD_S = 1.0
AROUND_S = (-0.2, 0.3)
LONG_S = (0.3, 4.0)
#: How soon everything has to work after a stall, s.
SOON_S = 10.0
#: A queue keeps a part of a transaction that nobody decides about for `tx_decision_ms`, s.
DECIDED_S = 10.0 + SOON_S
#: A request may wait for the leader that the others elect, and for the node that stood still.
ANSWER_MAX_S = 20.0
#: A wait that is told, s, and how much of what it was for.
TOLD_S = 2.0
TOLD_CHARS = 600
DECLARED = 3
LEASE_MS = 2_500


class Request:
    """One request in a thread of its own; the node it goes to may stand still."""

    def __init__(self, what: str, node: str, ask: Callable[[], object]) -> None:
        self.what, self.node = what, node
        self.began, self.took_s, self.failure = time.monotonic(), 0.0, ""
        self._ask = ask
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001  it is judged by the storm
            self.failure = f"{type(error).__name__}: {error}"
        self.took_s = time.monotonic() - self.began

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()


class StallStorm:
    def __init__(self, cluster: MqdCluster, seed: int) -> None:
        self.cluster, self.random = cluster, Random(seed)
        self.failures: list[str] = []
        self.prefix = f"stalls {seed} "
        self.flows = [
            Flow(cluster, self, self.prefix, name, kind, self.random.choice(cluster.names))
            for name, kind in kinds(self.prefix).items()
        ]
        self.requests: list[Request] = []
        #: Number of the last thing that was declared.
        self.number = 0
        #: Names that all nodes must know, or must not, with their paths.
        self.there: dict[str, bool] = {}
        #: Paths of queues that are there for sure, and were declared in an earlier round.
        self.deletable: list[str] = []
        #: When queues with a lease were declared, by path.
        self.leases: dict[str, float] = {}

    def fail(self, text: str) -> None:
        if text not in self.failures:
            self.failures.append(text)
            print(f"    {text}", flush=True)

    def down(self, name: str, since: float) -> bool:
        """See tests.cluster.load.Judge: a node that stands still drops no clients."""
        return False

    # -- requests --------------------------------------------------------------------------------------------

    def http(self, method: str, node: str, path: str, body: Any = None) -> int:
        status, text = self.cluster.ask(method, node, path, body, ANSWER_MAX_S)
        if status >= 400 and status != 404:
            raise AssertionError(f"{method} {path}: {status} {text!r}")
        return status

    def amqp(self, node: str, do: Callable[[Any], object]) -> None:
        where = pika.ConnectionParameters(
            HOST, self.cluster.port(node), heartbeat=0, socket_timeout=ANSWER_MAX_S,
            stack_timeout=ANSWER_MAX_S, blocked_connection_timeout=ANSWER_MAX_S,
        )  # fmt: skip
        connection = pika.BlockingConnection(where)
        try:
            do(connection.channel())
        finally:
            with suppress(pika.exceptions.AMQPError):
                connection.close()

    def ask(self, what: str, node: str, ask: Callable[[], object]) -> None:
        self.requests.append(Request(what, node, ask))

    def some_requests(self, node: str) -> None:
        """Changes of what is declared, asked of one node."""
        random = self.random
        self.number += 1
        name = f"{self.prefix}x{self.number}"
        path = f"/api/queues/%2F/{quote(name, safe='')}"
        match random.randrange(9):
            case 0 | 1 | 2:
                kind = random.choice(("classic", "quorum", "stream"))
                arguments = {"x-queue-type": kind}
                deleted = random.random() < 0.4

                def declare(channel: Any) -> None:
                    channel.queue_declare(name, durable=True, arguments=arguments)
                    channel.queue_bind(name, "amq.direct", name)
                    if deleted:
                        if random.random() < 0.5 and kind != "stream":
                            channel.queue_delete(name, if_empty=True)
                        else:
                            channel.queue_delete(name)

                self.there[path] = not deleted
                self.ask(f"declare {kind} {deleted=}", node, lambda: self.amqp(node, declare))
            case 3:
                self.there[path] = True
                self.ask("PUT queue", node, lambda: self.http("PUT", node, path, {"durable": True}))
            case 4:
                user = f"/api/users/user-{self.number}"
                permission = f"/api/permissions/%2F/user-{self.number}"
                self.there[user] = self.there[permission] = True

                def put_user() -> None:
                    self.http("PUT", node, user, {"password": "secret", "tags": ""})
                    self.http("PUT", node, permission, {"configure": "", "write": ".*", "read": ".*"})

                self.ask("PUT user and permission", node, put_user)
            case 5:
                exchange = f"/api/exchanges/%2F/{quote(name, safe='')}"
                self.there[exchange] = True
                self.ask(
                    "declare exchange", node,
                    lambda: self.amqp(node, lambda channel: channel.exchange_declare(name, "topic", durable=True)),
                )  # fmt: skip
            case 6:
                found = random.choice(self.deletable or [""])
                if found:
                    self.deletable.remove(found)
                    self.there[found] = False
                    self.ask("DELETE queue", node, lambda: self.http("DELETE", node, found))
            case 7:
                self.lease(node, name, path)
            case _:
                self.ask("GET queues", node, lambda: self.http("GET", node, "/api/queues"))

    def lease(self, node: str, name: str, path: str) -> None:
        kind = self.random.choice(("classic", "quorum"))
        arguments = {"x-queue-type": kind, "x-expires": LEASE_MS}

        def declare(channel: Any) -> None:
            channel.queue_declare(name, durable=True, arguments=arguments)
            self.leases[path] = time.monotonic()

        self.ask(f"declare {kind} with a lease", node, lambda: self.amqp(node, declare))

    # -- the stalls ------------------------------------------------------------------------------------------

    def seconds(self) -> float:
        if self.random.random() < 0.7:
            return DEAD_S + self.random.uniform(*AROUND_S)
        return self.random.uniform(*LONG_S)

    @contextmanager
    def stalled(self, node: str) -> Iterator[None]:
        """A node stands still, or one of its processes."""
        pids = self.cluster._nodes[node].pids()
        if self.random.random() < 0.6:
            pids = [self.random.choice(pids)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def one_round(self, number: int) -> None:
        random, names = self.random, self.cluster.names
        stalls = []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            node, seconds = random.choice(names), self.seconds()
            stalls.append(f"{node} {seconds:.2f}")
            if random.random() < 0.5:
                self.publish_some(0.3)
            with self.stalled(node):
                began = time.monotonic()
                others = [name for name in names if name != node]
                for _ in range(random.randrange(DECLARED + 1)):
                    self.some_requests(random.choice(others))
                if random.random() < 0.6:
                    self.some_requests(node)
                self.publish_some(0.6)
                time.sleep(max(0.0, began + seconds - time.monotonic()))
            time.sleep(random.choice((0.0, 0.0, 0.05, 0.3, 1.0)))
        if random.random() < 0.3:
            self.publish_some(0.4)
        woken = time.monotonic()
        try:
            self.judge(woken)
        except AssertionError as error:
            self.fail(f"round {number}, {stalls}: {error}")
            raise
        finally:
            slow = [f"{r.what} at {r.node}: {r.took_s:.1f} s {r.failure}" for r in self.requests if r.failure]
            print(
                f"    round {number}: {stalls}: all well {time.monotonic() - woken:.1f} s later {slow}",
                flush=True,
            )
            self.requests.clear()
        self.deletable = [path for path, there in self.there.items() if there and "/queues/" in path]

    def publish_some(self, share: float) -> None:
        for flow in self.flows:
            if self.random.random() < share:
                flow.put(self.random.choice(self.cluster.names), self.random.choice((1, 1, 2, 5)))

    # -- the judge -------------------------------------------------------------------------------------------

    def judge(self, woken: float) -> None:
        def soon(what: str, found: Callable[[], list[str]], within_s: float = SOON_S) -> None:
            last: list[str] = []

            def over() -> bool:
                if now := found():
                    last[:] = now
                return not now

            took_s = wait_for(what, over, within_s, lambda: str(last)[:TOLD_CHARS])
            if last and took_s > TOLD_S:
                print(f"    {what} after {took_s:.1f} s: {str(last)[:TOLD_CHARS]}", flush=True)

        soon("clients are answered", lambda: [f"{r.what} at {r.node}" for r in self.requests if r.waits])
        for request in self.requests:
            if request.failure:
                self.fail(f"{request.what} at {request.node}: {request.failure}")
        for flow in self.flows:
            if flow.kind.lossy:
                flow.forgive()
                flow.put(self.random.choice(self.cluster.names), 1)
        soon("messages arrive", lambda: left(self.flows))
        soon("transactions are whole", lambda: [text for flow in self.flows for text in flow.halves()])
        soon("all nodes know the same", self.different)
        soon("no transaction is left", self.undecided, DECIDED_S)
        soon("replicas are equal", self.unequal)
        soon("leases end", self.outlived)
        for name in self.cluster.names:
            if "Traceback" in self.cluster.log(name):
                self.fail(f"there is a traceback in the log of {name}")

    def different(self) -> list[str]:
        return [
            f"{path} at {node} is {status}"
            for path, there in list(self.there.items())[-40:]
            for node in self.cluster.names
            if ((status := self.http("GET", node, path)) == 200) is not there
        ]

    def outlived(self) -> list[str]:
        """Queues that are there though their leases are over. A new leader begins them anew."""
        found = []
        for path, since in list(self.leases.items()):
            if time.monotonic() - since > LEASE_MS / 1000:
                there = [node for node in self.cluster.names if self.http("GET", node, path) != 404]
                if there:
                    found.append(f"{path} at {there}")
                else:
                    del self.leases[path]
        return found

    def undecided(self) -> list[str]:
        found = []
        for node in self.cluster.names:
            told = self.cluster._api("GET", node, "/api/transactions")
            found += [f"{node}: {row}" for row in told if row.get("state") != "open"]
        return found

    def unequal(self) -> list[str]:
        """Groups of which members have not applied the same, or have not applied all of their log."""
        cluster = self.cluster
        found = []
        try:
            topologies = {node: cluster.status(node)["topology"] for node in cluster.names}
            if len({(one["applied"], one["leader"]) for one in topologies.values()}) > 1:
                found.append(f"topology: {topologies}")
            for flow in self.flows:
                for name, arguments in zip(flow.queues, flow.kind.queues.values(), strict=True):
                    if "x-queue-type" in arguments:
                        told = [cluster.queue(node, name) for node in cluster.names]
                        ends = {(one["applied"], one["digest"], one["leader"]) for one in told}
                        behind = [one for one in told if one["applied"] != one["last_index"]]
                        if len(ends) > 1 or behind:
                            found.append(f"{name}: {told}")
        except ApiFailed as error:
            found.append(str(error))
        return found

    def run(self, rounds: int) -> None:
        for flow in self.flows:
            flow.start()
        for number in range(rounds):
            self.one_round(number)
        for flow in self.flows:
            flow.end()

    def stop(self) -> None:
        """Nothing that clients see from now on is judged."""
        for flow in self.flows:
            flow.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="where to keep the nodes' logs if something was wrong")
    chosen = parser.parse_args()
    # The nodes end with this program, however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for seed in chosen.seeds:
        with MqdCluster(workers=chosen.workers) as cluster:
            storm = StallStorm(cluster, seed)
            print(f"seed {seed}", flush=True)
            try:
                storm.run(chosen.rounds)
            except AssertionError as error:
                storm.fail(str(error))
                storm.stop()
            failed += bool(storm.failures)
            if storm.failures and chosen.logs is not None:
                chosen.logs.mkdir(parents=True, exist_ok=True)
                for name in cluster.names:
                    (chosen.logs / f"{seed}-{name}.log").write_text(cluster.log(name))
    print(f"{len(chosen.seeds)} seeds, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
