"""Nodes that an operator stops hand over the queues that they lead, and get them back after the start."""

from __future__ import annotations

import threading
import time

from tests.amqp_server.cluster.ring import NAMES, PERSISTENT, QUORUM, Ring, publish, take
from tests.reliability.node import wait_until

QUEUES = [f"restart{number}" for number in range(6)]
#: Seconds. Without a handover the queues of a node stand still until it counts as dead and an election is
#: over. A machine with other work is slow, but not that slow.
GAP_MAX_S = 15.0


class Confirming(threading.Thread):
    """Publishes to all queues in turn, one message at a time, and notes when each was confirmed."""

    def __init__(self, ring: Ring, name: str) -> None:
        super().__init__(daemon=True)
        self._ring, self._name = ring, name
        self._stop_asked = threading.Event()
        self.sent = dict.fromkeys(QUEUES, 0)
        self.gaps: list[float] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._ring.channel(self._name) as channel:
                while not self._stop_asked.is_set():
                    for queue in QUEUES:
                        began = time.monotonic()
                        channel.basic_publish("", queue, b"%d" % self.sent[queue], PERSISTENT, mandatory=True)
                        self.sent[queue] += 1
                        self.gaps.append(time.monotonic() - began)
        except Exception as error:  # noqa: BLE001  # the test shows it
            self.error = error

    def __enter__(self) -> Confirming:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join(60)
        assert self.error is None, self.error


def _placed(ring: Ring) -> dict[str, str]:
    return {queue["name"]: queue["leader"] for queue in ring.get("n1", "/api/cluster/queues")}


def test_rolling_restart_under_load(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True, arguments=QUORUM)
    wait_until("all queues are led", lambda: {*_placed(ring).values()} == {*NAMES})
    before = _placed(ring)
    sent = dict.fromkeys(QUEUES, 0)
    for name in NAMES:
        other = NAMES[NAMES.index(name) - 1]
        with Confirming(ring, other) as load:
            wait_until("confirms come", lambda load=load: all(load.sent.values()))
            ring.mqctl(name, "check", "quorum-critical", "--wait", "60")
            assert ring.nodes[name].stop() == 0
            assert "giving up" not in ring.nodes[name].log()
            count = len(load.gaps)
            wait_until(
                "confirms go on without it",
                lambda load=load, count=count: len(load.gaps) > count + 2 * len(QUEUES),
            )
            ring.start(name)
            wait_until("leaders are back", lambda: _placed(ring) == before, state=lambda: str(_placed(ring)))
        print(f"{name}: {len(load.gaps)} confirms, the slowest took {max(load.gaps) * 1000:.0f} ms")
        assert max(load.gaps) < GAP_MAX_S
        for queue in QUEUES:
            sent[queue] += load.sent[queue]
    with ring.channel("n2") as channel:
        for queue in QUEUES:
            assert channel.queue_declare(queue, passive=True).method.message_count == sent[queue]
            channel.queue_delete(queue)


def test_a_node_that_would_be_missed_says_so(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare("critical", durable=True, arguments=QUORUM)
    assert ring.ask("GET", "n1", "/api/health/checks/node-is-quorum-critical") == (200, {"status": "ok"})
    ring.nodes["n2"].kill()
    wait_until(
        "n1 is critical",
        lambda: ring.ask("GET", "n1", "/api/health/checks/node-is-quorum-critical")[0] == 503,
    )
    status, told = ring.ask("GET", "n1", "/api/health/checks/node-is-quorum-critical")
    # The ring has queues of other tests as well.
    assert {"queue 'critical' in vhost '/'", "the topology"} <= set(told["queues"])
    # The node serves all the same, as soon as the two agree on a leader.
    wait_until("n1 is ready", lambda: ring.ask("GET", "n1", "/health/ready")[0] == 200)
    waiting = threading.Thread(
        target=ring.mqctl, args=("n1", "check", "quorum-critical", "--wait", "60"), daemon=True
    )
    waiting.start()
    ring.start("n2")
    waiting.join(60)
    assert not waiting.is_alive()
    with ring.channel("n2") as channel:
        publish(channel, "critical", b"1")
        assert take(channel, "critical", 1) == [b"1"]
        channel.queue_delete("critical")
