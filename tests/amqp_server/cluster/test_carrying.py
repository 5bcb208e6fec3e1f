"""At any node, mqctl copies, exports and imports the messages of any queue or stream."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest

from amqp_server.mqctl.client import DATA_ERROR, Failure
from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring
from tests.reliability.node import command

TYPES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": QUORUM,
    "one-member": {**QUORUM, "x-quorum-initial-group-size": 1},
    "stream": {"x-queue-type": "stream"},
}
COUNT = 2_300
HEADERS = {"n": 7, "big": 1 << 40, "when": datetime(2026, 1, 2, tzinfo=UTC), "in": {"a": ["é", None, True]}}


def fill(channel: Any, queue: str) -> None:
    for number in range(COUNT):
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=str(number), headers=HEADERS | {"odd": number % 2 == 1}
        )
        channel.basic_publish("", queue, b"%d " % number + b"\xff" * 200, properties)
    properties = pika.BasicProperties(delivery_mode=2, content_type="large", reply_to="")
    channel.basic_publish("", queue, bytes(range(256)) * 12_000, properties)
    channel.basic_publish("", queue, b"", pika.BasicProperties(delivery_mode=2))


def lines(path: Path) -> list[dict[str, Any]]:
    """The exported messages, without their places."""
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "place"} for row in rows]


@pytest.mark.parametrize("kind", TYPES)
def test_messages_go_to_a_file_and_back(ring: Ring, tmp_path: Path, kind: str) -> None:
    queue, other = f"file {kind}/é", f"back {kind}"
    with ring.channel("n2") as channel:
        for name in (queue, other):
            channel.queue_declare(name, durable=True, arguments=TYPES[kind])
        fill(channel, queue)
        first: list[dict[str, Any]] = []
        for node in NAMES:
            path = tmp_path / node
            ring.mqctl(node, "export", queue, str(path))
            first = first or lines(path)
            assert lines(path) == first and len(first) == COUNT + 2
        assert first[5]["properties"]["headers"][:2] == [["n", "I", 7], ["big", "l", 1 << 40]]
        out = ring.mqctl("n3", "import", other, str(tmp_path / "n1"))
        assert out == f"{COUNT + 2} messages were imported\n"
        ring.mqctl("n1", "export", other, str(tmp_path / "again"))
        assert lines(tmp_path / "again") == first
        for name in (queue, other):
            channel.queue_delete(name)


@pytest.mark.parametrize("kind", TYPES)
def test_messages_are_copied_at_any_node(ring: Ring, tmp_path: Path, kind: str) -> None:
    queue, other = f"copied {kind}", f"copies {kind}"
    with ring.channel("n2") as channel:
        for name in (queue, other):
            channel.queue_declare(name, durable=True, arguments=TYPES[kind] if name == queue else QUORUM)
        fill(channel, queue)
        ring.mqctl("n1", "export", queue, str(tmp_path / "all"))
        for node in NAMES:
            out = ring.mqctl(node, "copy", queue, other)
            assert out == f"{COUNT + 2} messages were copied\n"
            ring.mqctl("n1", "export", other, str(tmp_path / "copies"))
            assert lines(tmp_path / "copies") == lines(tmp_path / "all")
            channel.queue_purge(other)
        assert ring.mqctl("n3", "copy", queue, other, "--header", "odd=true", "--limit", "1100") == (
            "1100 messages were copied\n"
        )
        assert channel.queue_declare(other, passive=True).method.message_count == 1_100
        if kind != "stream":
            assert channel.queue_declare(queue, passive=True).method.message_count == COUNT + 2
        for name in (queue, other):
            channel.queue_delete(name)


def test_an_import_goes_on_behind_a_wrong_line(ring: Ring, tmp_path: Path) -> None:
    with ring.channel("n1") as channel:
        channel.queue_declare("mended", durable=True, arguments=QUORUM)
        channel.queue_declare("read", durable=True)
        for number in range(1_500):
            channel.basic_publish("", "read", b"%d" % number)
        path = tmp_path / "exported"
        ring.mqctl("n1", "export", "read", str(path))
        texts = path.read_text().splitlines()
        texts[1_200] = texts[1_200].replace('"payload": "', '"payload": "%')
        path.write_text("\n".join(texts))
        with pytest.raises(Failure) as caught:
            ring.mqctl("n1", "import", "mended", str(path))
        assert caught.value.exit_code == DATA_ERROR
        assert str(caught.value) == (
            "line 1201: payload is not base64; 1200 messages were imported: mend the line and go on with "
            "--from 1201, or pass over it with --from 1202"
        )
        assert ring.mqctl("n1", "import", "mended", str(path), "--from", "1202") == (
            "299 messages were imported\n"
        )
        bodies = [int(channel.basic_get("mended", auto_ack=True)[2]) for _ in range(1_499)]
        assert bodies == [number for number in range(1_500) if number != 1_200]
        full = QUORUM | {"x-max-length": 1_100, "x-overflow": "reject-publish"}
        channel.queue_declare("full", durable=True, arguments=full)
        with pytest.raises(
            Failure, match="1100 messages were imported; queue 'full' refuses 100 messages, in lines 1101, "
        ):
            ring.mqctl("n1", "import", "full", str(path))
        for name in ("mended", "read", "full"):
            channel.queue_delete(name)


def test_an_export_is_a_pipe_to_an_import(ring: Ring) -> None:
    with ring.channel("n1") as channel:
        for name in ("piped", "piped-to"):
            channel.queue_declare(name, durable=True)
        fill(channel, "piped")
        urls = [f"--url=http://127.0.0.1:{ring.nodes[node].http}" for node in ("n2", "n3")]
        mqctl = command("mqctl")
        with subprocess.Popen([mqctl, urls[0], "export", "piped"], stdout=subprocess.PIPE) as export:
            subprocess.run([mqctl, urls[1], "import", "piped-to"], stdin=export.stdout, check=True)
        assert export.returncode == 0
        assert channel.queue_declare("piped-to", passive=True).method.message_count == COUNT + 2
        for name in ("piped", "piped-to"):
            channel.queue_delete(name)
