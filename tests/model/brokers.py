"""The brokers that programs run against: mqd on one node or on three, or any broker behind a URL."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from amqp_server.cluster.membership.machines import machines
from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import free_ports
from quorum_queue.machine import versions
from tests.cluster import disks, releases, shifted_clock
from tests.cluster import planted as planted_entries
from tests.cluster.mqd import PURE, TROUBLED, MqdCluster
from tests.cluster.nodes import wait_for
from tests.model import damage
from tests.model.spec.state import Broker
from tests.reliability.node import Node

PASSWORD = "secret"
#: Names of offsets that a stream keeps, and runs of unacked messages that a group keeps for a partition.
NAMES_MAX, GAPS_MAX = 2, 16
#: So that compaction and retention have several segments in programs of some dozens of messages.
#: Segments are small, and written at once: else no program would be long enough for compaction and retention.
OPTIONS = (
    *("--stream-segment-bytes-min", "1000", "--stream-flush-ms", "50"),
    *("--stream-names-max", str(NAMES_MAX), "--group-gaps-max", str(GAPS_MAX)),
)
#: The data directory of a single node is a file system of its own, where it can be mounted. It has so many
#: bytes, and there is an alarm if fewer than these are free.
DISK_BYTES, FLOOR_BYTES = 192 << 20, 8 << 20
#: Share of the memory above which there is an alarm: at once, and as usual.
ALARMING, USUAL = "0.0000001", "0.6"


class Refused(Exception):
    """The management API answered with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


def request(url: str, method: str, path: str, body: Any = None) -> Any:
    parts = urlsplit(url)
    login = base64.b64encode(f"{parts.username or 'guest'}:{parts.password or 'guest'}".encode()).decode()
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=PATIENCE_S)
    try:
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise Refused(answer.status, text.decode(errors="replace")[:300])
    return json.loads(text) if text and text.strip().startswith((b"{", b"[")) else None


class Operated(Protocol):
    """A broker as programs see it."""

    product: str
    names: Sequence[str]
    #: Faults that can be had here.
    faults: frozenset[str]
    alarms: frozenset[str]

    def url(self, node: str) -> str: ...
    def api(self, method: str, path: str, body: Any = None) -> Any: ...
    def taken_for_granted(self) -> Broker: ...
    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None: ...
    def plant(self, queue: str, node: str, when: str = "") -> None: ...
    def other_end(self, node: str) -> str: ...
    def raise_alarm(self, kind: str, node: str) -> None: ...
    def end_alarm(self, kind: str, node: str) -> None: ...
    def alarmed(self) -> bool: ...
    def has_been_upgraded(self) -> bool: ...
    def failed(self, vhost: str, node: str) -> list[str]: ...
    def heal(self) -> None: ...
    def lost(self, vhost: str, stream: str) -> set[int]: ...
    def alive(self) -> bool: ...
    def log_tail(self) -> str: ...
    def close(self) -> None: ...


def as_old(present: Broker) -> Broker:
    """The last release, or a cluster in which some nodes are of it: where it does other than the present
    version, both are right.
    """
    return replace(present, old=True, exact_counts=False, expires_anywhere=None, slack_s=1.0)


def path(*parts: str) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


@cache
def _planted(interpreter: str) -> frozenset[str]:
    """A failure is planted in the class of a queue's host, which is not possible where that is compiled."""
    command = [interpreter, "-P", "-c", "from amqp_server.build import BUILD; print(BUILD)"]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return frozenset({"entry"} if built == "pure" else ())


class MqdNode:
    """mqd alone, on one data directory."""

    product = "mqd"
    names: Sequence[str] = ("n1",)

    def __init__(
        self,
        program: Sequence[str] = TROUBLED,
        environment: dict[str, str] | None = None,
        options: Sequence[str] = (),
        *,
        old: bool = False,
        pure: bool = False,
        workers: int = 1,
    ) -> None:
        program = PURE if pure else program
        self._old = old
        #: The last release has some as well, and does not say so much about them.
        self._workers = 1 if old else workers
        self._home = tempfile.TemporaryDirectory(prefix="mqd-model-", ignore_cleanup_errors=True)
        place = Path(self._home.name)
        self._mounted = _mount(place / "data")
        self.faults = frozenset({"kill", "restart", "freeze", "clock", "damage"}) | _planted(program[0])
        self.alarms = frozenset({"memory", *(("disk", "full disk") if self._mounted else ())})
        if old:
            self.faults, self.alarms = frozenset({"upgrade"}), frozenset()
        shifted_clock.set_clock(place / "clock", 0)
        planted_entries.plant(place / "plant", "", 0)
        self._amqp, self._http = free_ports(2)
        self._node = Node(
            place,
            *("--amqp", f"127.0.0.1:{self._amqp}", "--http", f"127.0.0.1:{self._http}"),
            *("--disk-free-min-bytes", str(FLOOR_BYTES), *(() if old else OPTIONS), *options),
            *(("--workers", str(self._workers)) if self._workers > 1 else ()),
        )
        self._present = list(program)
        self._node.program = releases.program(releases.WHEELS[-1]) if old else self._present
        self._node.environment = {
            shifted_clock.VARIABLE: str(place / "clock"),
            planted_entries.VARIABLE: str(place / "plant"),
            **(environment or {}),
        }
        self._clock_s = 0.0
        self._node.start()

    def url(self, node: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._node.port}/"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return request(f"http://guest:guest@127.0.0.1:{self._node.http}", method, path, body)

    def taken_for_granted(self) -> Broker:
        present = Broker(names_max=NAMES_MAX, gaps_max=GAPS_MAX)
        if self._workers > 1:
            # To clients they are nodes of a cluster, none of which fails alone.
            present = replace(present, nodes=self._workers, prompt=False, slack_s=1.0)
        return as_old(present) if self._old else present

    def has_been_upgraded(self) -> bool:
        return not self._old

    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None:
        if kind == "kill":
            self._node.kill()
            self._node.start()
        elif kind in ("restart", "upgrade", "damage"):
            code = self._node.stop()
            assert code == 0, f"mqd ended with {code}"
            if kind == "damage":
                damage.strike(self._node.data, detail["what"], detail["chance"])
            if kind == "upgrade" and self._old:
                self._old, self._node.program = False, self._present
                self._node.add_options(*OPTIONS)
            self._node.start()
        elif kind == "freeze":
            pids = self._node.pids()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(detail.get("seconds", 0.3))
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        elif kind == "clock":
            self._clock_s = detail.get("by_s", 3600) if not self._clock_s else 0
            shifted_clock.set_clock(Path(self._home.name) / "clock", self._clock_s)

    def plant(self, queue: str, node: str, when: str = "") -> None:
        planted_entries.plant(Path(self._home.name) / "plant", queue, 1 if queue else 0, when)

    def other_end(self, node: str) -> str:
        raise AssertionError("a single node has no links")

    def alarmed(self) -> bool:
        return _alarmed(self.api)

    def failed(self, vhost: str, node: str) -> list[str]:
        return [each["name"] for each in self.api("GET", path("failed-queues", vhost))]

    def raise_alarm(self, kind: str, node: str) -> None:
        if kind == "memory":
            self._node.mqctl("set_vm_memory_high_watermark", ALARMING)
            wait_for("the alarm", self.alarmed)
            return
        disks.fill(self._node.data)
        if kind == "disk":
            # There is room, but less than there should be.
            with (self._node.data / disks.BALLAST).open("ab") as ballast:
                ballast.truncate(max(0, ballast.tell() - FLOOR_BYTES // 2))
            wait_for("the alarm", self.alarmed)

    def end_alarm(self, kind: str, node: str) -> None:
        if kind == "memory":
            self._node.mqctl("set_vm_memory_high_watermark", USUAL)
        else:
            disks.empty(self._node.data)
        wait_for("the end of the alarm", lambda: not self.alarmed())

    def heal(self) -> None:
        self.plant("", "n1")
        if self._clock_s:
            self.fault("clock", "n1", {})

    def lost(self, vhost: str, stream: str) -> set[int]:
        return damage.lost(self._node.log(), vhost, stream)

    def alive(self) -> bool:
        return self._node.running

    def log_tail(self) -> str:
        return self._node.log()[-3000:]

    def close(self) -> None:
        self._node.kill()
        if self._mounted and subprocess.run(["umount", str(self._node.data)], capture_output=True).returncode:
            # A process may still hold a file.
            subprocess.run(["umount", "-l", str(self._node.data)], check=True)
        self._home.cleanup()


def _alarmed(api: Callable[[str, str], Any]) -> bool:
    try:
        api("GET", "/api/health/checks/alarms")
    except Refused as refused:
        return refused.status == 503
    return False


def _mount(place: Path) -> bool:
    """Make a small file system, if that is possible here."""
    place.mkdir()
    if os.geteuid() != 0 or sys.platform != "linux":
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True).returncode == 0


class MqdNodes:
    """mqd on three nodes."""

    product = "mqd"
    alarms = frozenset({"memory"})

    def __init__(
        self,
        program: Sequence[str] = TROUBLED,
        environment: dict[str, str] | None = None,
        *,
        old: bool = False,
        pure: bool = False,
        workers: int | None = None,
    ) -> None:
        program = PURE if pure else program
        self.faults = frozenset(
            {"kill", "restart", "freeze", "stall", "cut", "isolate", "transfer", "clock", "move", "damage"}
        ) | _planted(program[0])
        if old:
            self.faults, self.alarms = frozenset({"upgrade"}), frozenset()
        begins_as = releases.program(releases.WHEELS[-1]) if old else program
        self.cluster = MqdCluster(
            ("n1", "n2", "n3"),
            *(() if old else OPTIONS),
            program=begins_as,
            # The last release has none in a cluster.
            workers=1 if old else workers,
        )
        self._present = list(program)
        #: Nodes that run the last release.
        self._old = set(self.cluster.names) if old else set()
        for node in self.cluster._nodes.values():
            node.environment |= environment or {}
        self.names: Sequence[str] = self.cluster.names
        try:
            self.cluster.start()
        except BaseException:
            self.cluster.close()
            raise
        self._troubles: list[tuple[str, str]] = []
        self._stalls: threading.Thread | None = None

    def url(self, node: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.cluster.port(node)}/"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        hit = {node for _, node in self._troubles}
        node = next(name for name in self.names if name not in hit)
        return request(f"http://guest:guest@127.0.0.1:{self.cluster._nodes[node].http}", method, path, body)

    def taken_for_granted(self) -> Broker:
        present = Broker(nodes=3, prompt=False, slack_s=1.0, names_max=NAMES_MAX, gaps_max=GAPS_MAX)
        return as_old(present) if self._old else present

    def has_been_upgraded(self) -> bool:
        """Wait until they do what the present version can do, if none is left that can't."""
        if self._old:
            return False
        wait_for(
            "the version is raised",
            lambda: all(
                self.cluster.status(name)["machine_version"] == versions.NEWEST for name in self.names
            ),
        )
        return True

    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None:
        from tests.cluster.links import isolate, sever

        cluster = self.cluster
        if kind == "kill":
            cluster.kill(node)
        elif kind == "restart":
            cluster.stop(node)
        elif kind == "upgrade":
            cluster.stop(node)
            if node in self._old:
                self._old.discard(node)
                cluster.run_as(node, self._present)
                cluster._nodes[node].add_options(*OPTIONS)
        elif kind == "freeze":
            cluster.freeze(node)
        elif kind == "stall":
            self._stalls = threading.Thread(target=self._stall, args=(node, detail["stalls"]), daemon=True)
            self._stalls.start()
        elif kind == "isolate":
            isolate(cluster.links, node, cluster.names, hold=True)
        elif kind == "cut":
            sever(cluster.links, node, self.other_end(node), hold=True)
        elif kind == "clock":
            cluster.set_clock(node, detail.get("by_s", 3600))
        elif kind == "move":
            cluster.mqctl(node, "cluster", "shrink", node)
        elif kind == "damage":
            if detail.get("orderly"):
                cluster.stop(node)
            else:
                cluster.kill(node)
            for what in (detail["what"], "message"):
                # Not each node has files of each kind.
                if damage.strike(cluster.data(node), what, detail["chance"]) is not None:
                    break
        if kind not in ("transfer", "entry"):
            self._troubles.append((kind, node))

    def _stall(self, node: str, stalls: list[tuple[float, float]]) -> None:
        """The node stands still and goes on again, while the program does so, too."""
        for stands_s, goes_on_s in stalls:
            self.cluster.freeze(node)
            time.sleep(stands_s)
            self.cluster.thaw(node)
            time.sleep(goes_on_s)

    def transfer(self, vhost: str, queue: str, node: str) -> None:
        self.cluster.mqctl(node, "cluster", "transfer-leader", "--vhost", vhost, queue, node)

    def plant(self, queue: str, node: str, when: str = "") -> None:
        planted_entries.plant(self.cluster._directory / node / "plant", queue, 1 if queue else 0, when)

    def alarmed(self) -> bool:
        return any(
            _alarmed(partial(request, f"http://guest:guest@127.0.0.1:{node.http}"))
            for node in self.cluster._nodes.values()
        )

    def failed(self, vhost: str, node: str) -> list[str]:
        """Queues of which the copy on this node is stopped."""
        url = f"http://guest:guest@127.0.0.1:{self.cluster._nodes[node].http}"
        return [each["name"] for each in request(url, "GET", path("failed-queues", vhost))]

    def other_end(self, node: str) -> str:
        """The node to which a link is cut."""
        return next(name for name in self.names if name != node)

    def raise_alarm(self, kind: str, node: str) -> None:
        self.cluster.mqctl(node, "set_vm_memory_high_watermark", ALARMING)
        wait_for("the alarm", self.alarmed)

    def end_alarm(self, kind: str, node: str) -> None:
        self.cluster.mqctl(node, "set_vm_memory_high_watermark", USUAL)
        wait_for("the end of the alarm", lambda: not self.alarmed())

    def heal(self) -> None:
        from tests.cluster.links import isolate, sever

        cluster = self.cluster
        for node in self.names:
            self.plant("", node)
        troubles, self._troubles = self._troubles, []
        for kind, node in troubles:
            if kind in ("kill", "restart", "upgrade"):
                cluster.restart(node)
            elif kind == "damage":
                damage.start(cluster, node)
            elif kind == "move":
                cluster.mqctl(node, "cluster", "grow", node)
            elif kind == "freeze":
                cluster.thaw(node)
            elif kind == "stall" and self._stalls is not None:
                self._stalls.join()
            elif kind == "isolate":
                isolate(cluster.links, node, cluster.names)
            elif kind == "cut":
                sever(cluster.links, node, next(name for name in self.names if name != node))
            elif kind == "clock":
                cluster.set_clock(node, 0)
        if troubles:
            wait_for("all nodes see each other", cluster._formed)
        for _, node in (each for each in troubles if each[0] == "move"):
            wait_for(f"{node} is a member again", partial(self._is_member, node))

    def _is_member(self, node: str) -> bool:
        queues = self.api("GET", "/api/cluster/queues")
        return all(node in machines(queue["members"]) for queue in queues)

    def lost(self, vhost: str, stream: str) -> set[int]:
        """The others put back what one node has lost."""
        return set()

    def alive(self) -> bool:
        return all(node.running for node in self.cluster._nodes.values())

    def log_tail(self) -> str:
        return "\n".join(f"-- {name}\n{self.cluster.log(name)[-1500:]}" for name in self.names)

    def close(self) -> None:
        if self._stalls is not None:
            self._stalls.join()
        self.cluster.close()


class Foreign:
    """Any broker behind a URL; no faults."""

    names: Sequence[str] = ("n1",)
    faults: frozenset[str] = frozenset()
    alarms: frozenset[str] = frozenset()

    def __init__(self, amqp_url: str, http_url: str) -> None:
        from conformance_tests.broker import recognise

        self._amqp, self._http = amqp_url, http_url
        product, version = recognise(amqp_url)
        self.product = f"{product}-{version}".lower()

    def url(self, node: str) -> str:
        return self._amqp

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return request(self._http, method, path, body)

    def taken_for_granted(self) -> Broker:
        limit = None if self.product.startswith("rabbitmq-3") else 20
        return Broker(
            prompt=False, exact_counts=False, expires_anywhere=False, slack_s=0.5, delivery_limit=limit
        )

    def fault(self, kind: str, node: str, detail: dict[str, Any]) -> None:
        raise AssertionError("no faults here")

    def plant(self, queue: str, node: str, when: str = "") -> None:
        raise AssertionError("nothing is planted here")

    def other_end(self, node: str) -> str:
        raise AssertionError("no faults here")

    def alarmed(self) -> bool:
        return False

    def has_been_upgraded(self) -> bool:
        return True

    def failed(self, vhost: str, node: str) -> list[str]:
        return []

    def raise_alarm(self, kind: str, node: str) -> None:
        raise AssertionError("no alarms here")

    def end_alarm(self, kind: str, node: str) -> None:
        raise AssertionError("no alarms here")

    def heal(self) -> None:
        pass

    def lost(self, vhost: str, stream: str) -> set[int]:
        return set()

    def alive(self) -> bool:
        return True

    def log_tail(self) -> str:
        return ""

    def close(self) -> None:
        pass
