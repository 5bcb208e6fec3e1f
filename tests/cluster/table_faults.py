"""Damage in a compacted stream from which keys are deleted: no deleted key may come back, at no node."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pika

from conformance_tests.patience import PATIENCE_S, patient
from tests.cluster.links import Unsupported
from tests.cluster.logs import STREAM
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.cluster.scene import Scene

TABLE: dict[str, Any] = STREAM | {"x-stream-compaction": "header:key", "x-stream-tombstone-age": "1s"}
KEYS = 30
BODY_BYTES = 400
#: Writes of all keys before and after each damage.
WRITES = 4
#: Time for compaction to remove tombstones, s.
REMOVAL_S = 4.0
END = "end"


class Table:
    """What a reader of the stream has to find, and a client that writes it."""

    def __init__(self, scene: Scene, cluster: MqdCluster) -> None:
        self.scene = scene
        self.cluster = cluster
        self.stream = f"{scene.queues[0]}-deleted"
        self.values: dict[str, bytes] = {}
        #: Keys that were deleted at some time, and the tombstones that the last reader has got.
        self.deleted: set[str] = set()
        self.tombstones: set[str] = set()
        self._number = 0

    def connect(self, node: str) -> pika.BlockingConnection:
        where = pika.ConnectionParameters("127.0.0.1", self.cluster.port(node), heartbeat=0)
        return pika.BlockingConnection(patient(where))

    def declare(self) -> None:
        with closing(self.connect(self.cluster.names[0])) as connection:
            connection.channel().queue_declare(self.stream, durable=True, arguments=TABLE)

    def delete(self) -> None:
        with closing(self.connect(self.cluster.names[0])) as connection:
            connection.channel().queue_delete(self.stream)

    def write(self, count: int) -> None:
        """Write all keys so often; then half of them are deleted."""
        for _ in range(count):
            self._number += 1
            self._put({key: self._body(key) for key in self._keys()})
        self.deleted.update(self._keys()[::2])
        self._put(dict.fromkeys(self._keys()[::2], b""))

    def _keys(self) -> list[str]:
        # A third of them is never written again.
        return [f"key-{self._number // WRITES % 3}-{index}" for index in range(KEYS)]

    def _body(self, key: str) -> bytes:
        return f"{self.stream} {key} {self._number} ".encode().ljust(BODY_BYTES, b".")

    def end(self) -> None:
        self._number += 1
        self._put({END: self._body(END)})

    def _put(self, values: dict[str, bytes]) -> None:
        """Publish until each is confirmed; one that is written twice is the same."""
        left = list(values.items())
        deadline = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, f"{self.stream} takes no messages"
            node = self.scene.random.choice(list(self.cluster.names))
            with suppress(pika.exceptions.AMQPError, OSError), closing(self.connect(node)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                while left:
                    key, value = left[0]
                    properties = pika.BasicProperties(headers={"key": key}, delivery_mode=2)
                    channel.basic_publish("", self.stream, value, properties)
                    del left[0]
                    self.values.pop(key, None)
                    if value:
                        self.values[key] = value

    def read(self, node: str) -> dict[str, bytes]:
        """Return what a new reader at this node finds."""
        found: dict[str, bytes] = {}
        self.tombstones.clear()
        with closing(self.connect(node)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=200)
            arguments = {"x-stream-offset": "first"}
            for method, properties, body in channel.consume(
                self.stream, arguments=arguments, inactivity_timeout=PATIENCE_S
            ):
                assert method is not None, f"{self.stream} at {node}: the end does not come"
                channel.basic_ack(method.delivery_tag)
                key = properties.headers["key"]
                found.pop(key, None)
                if body:
                    found[key] = body
                else:
                    self.tombstones.add(key)
                if body == self.values[END] and key == END:
                    break
        return found

    def segment(self, node: str) -> tuple[Path, int]:
        """Return a full segment of the stream at this node, and the place of a message in it."""
        prefix = f"{self.stream} key-".encode()
        found: list[tuple[Path, int]] = []

        def there() -> bool:
            paths = sorted((self.cluster.data(node) / "streams").glob("*/*.segment"))
            for path in paths:
                with suppress(FileNotFoundError):
                    if (at := path.read_bytes().find(prefix)) >= 0:
                        found.append((path, at))
            # The last one is written to.
            return len(found) > 1

        wait_for(f"{self.stream} has some segments at {node}", there)
        return found[0]


def damage_before_deleted_keys(scene: Scene) -> None:
    """Flip a bit in the oldest segment of each node in turn, while keys of it are deleted and compacted."""
    cluster = scene.cluster
    if not isinstance(cluster, MqdCluster):
        raise Unsupported("there are no streams")
    table = Table(scene, cluster)
    table.declare()
    table.write(WRITES)
    scene.strike()
    scene.damaged = True
    for turn, name in enumerate(cluster.names):
        with scene.killed(name):
            path, at = table.segment(name)
            data = bytearray(path.read_bytes())
            data[at + BODY_BYTES // 2] ^= 0x10
            path.write_bytes(data)
            if turn % 2:
                table.write(WRITES)
        table.write(WRITES)
        scene.hold(REMOVAL_S / 2)
        scene.caught_up()
        cluster.transfer(table.stream, name)
    for _ in range(3):
        table.write(1)
        scene.hold(REMOVAL_S / 2)
    table.end()
    for name in cluster.names:
        found = table.read(name)
        back = sorted(found.keys() - table.values.keys())
        gone = sorted(table.values.keys() - found.keys())
        old = sorted(key for key in found.keys() & table.values.keys() if found[key] != table.values[key])
        if back or gone or old:
            scene.fail(f"{table.stream} at {name}: keys came back: {back}; are gone: {gone}; are old: {old}")
        if not table.tombstones < table.deleted:
            scene.fail(f"{table.stream} at {name}: no tombstone was removed, so this has proved little")
    table.delete()
    scene.heal()
