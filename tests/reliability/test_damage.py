"""A damaged data file: the node serves whatever it can still read, and anything else ends it with one clear
line.
"""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.cluster.disks import flip
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery, Gone
from tests.reliability.node import Node, run_once, wait_until

ANY_PORTS = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")
COUNT = 300
BODY_BYTES = 20_000
PAGE_BYTES = 4096
#: The place of the flags in the header of an LMDB page, and the flags of pages that lead to others or hold
#: keys.
FLAGS = struct.Struct("<10xH")
TREE_PAGE = 0x01 | 0x02


def filled(node: Node, count: int = COUNT, size: int = BODY_BYTES) -> None:
    """Publish messages to a durable queue, one record for each."""
    with contextlib.closing(Client(node.port)) as client:
        client.declare("q")
        client.confirms()
        address = Address("", "q")
        for seq in range(count):
            client.send(address.message(body(seq, size)))
            confirmed = False
            while not confirmed:
                confirmed = any(isinstance(event, Confirm) for event in client.receive())


def consumed(node: Node, count: int) -> list[int]:
    """Return this many messages, each acked as it comes, one at a time."""
    found: list[int] = []
    with contextlib.closing(Client(node.port)) as client:
        client.consume("q", 1)
        while len(found) < count:
            for event in client.receive(PATIENCE_S):
                assert isinstance(event, Delivery), event
                found.append(number(event.body))
                client.ack(event.tag)
    return found


def break_trees(data_file: Path) -> None:
    """Make all pages unknown to LMDB, except the first two and those of large values."""
    with data_file.open("r+b") as file:
        raw = file.read()
        for at in range(2 * PAGE_BYTES, len(raw), PAGE_BYTES):
            (flags,) = FLAGS.unpack_from(raw, at)
            if flags & TREE_PAGE and not flags & ~TREE_PAGE:
                file.seek(at + 10)
                file.write(b"\0\0")


def ended(node: Node) -> str:
    """Wait until the node has ended by itself; return its last line."""
    wait_until("the node has ended", lambda: not node.running, state=node.log)
    return node.log().splitlines()[-1]


def test_a_classic_queue_goes_on_without_messages_that_are_damaged(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        filled(node, 40)
        node.stop()
        for seq in (0, 7, 8, 39):
            # The write-ahead log may still have the bytes, too, but the node does not read them there.
            assert flip(node.data, body(seq, BODY_BYTES), BODY_BYTES // 2)
        node.start()
        assert consumed(node, 36) == [seq for seq in range(40) if seq not in (0, 7, 8, 39)]
        said = [line for line in node.log().splitlines() if "lost messages" in line]
        assert len(said) == 4, node.log()
        assert all(
            "queue 'q' in vhost '/'" in line and "does not match its checksum" in line for line in said
        )
        assert "Traceback" not in node.log()
        with contextlib.closing(Client(node.port)) as client:
            assert client.count("q") == 0
        assert node.stop() == 0
        # The node logs it once, not at each start.
        node.start()
        assert sum("lost messages" in line for line in node.log().splitlines()) == 4
        assert node.stop() == 0


def test_a_store_that_breaks_while_it_is_read_ends_the_node(tmp_path: Path) -> None:
    with Node(tmp_path, "--memory-budget-bytes", str(1 << 20)) as node:
        filled(node)
        break_trees(node.data / "main" / "data.mdb")
        with contextlib.suppress(Gone, OSError, TimeoutError):
            consumed(node, COUNT)
        said = ended(node)
        assert re.search(r"CRITICAL .*main/data\.mdb is damaged: .*MDB_", said), node.log()
        assert f"Replace {node.data} by a backup" in said
        assert "Traceback" not in node.log()
        assert node.stop() == 1


def test_a_store_that_breaks_while_it_is_written_ends_the_node(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        filled(node, 50)
        with contextlib.closing(Client(node.port)) as client:
            break_trees(node.data / "main" / "data.mdb")
            with contextlib.suppress(Gone, OSError):
                client.send(Address("", "q").message(body(1, BODY_BYTES)))
                client.receive(PATIENCE_S)
            assert "main/data.mdb is damaged: " in ended(node)
        assert "Traceback" not in node.log()
        assert node.stop() == 1


def refused(node: Node, *options: str) -> str:
    code, out, err = run_once(["--data-dir", str(node.data), *ANY_PORTS, *options])
    assert (code, out) == (1, ""), err
    (line,) = [line for line in err.splitlines() if not re.match(r"\d{4}-\d\d-\d\d .* INFO ", line)]
    return line


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_data_file_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    with Node(tmp_path) as node:
        filled(node, 50)
        assert node.stop() == 0
    data_file = node.data / "main" / "data.mdb"
    size = data_file.stat().st_size
    with data_file.open("r+b") as file:
        file.truncate(int(size * share))
    said = refused(node)
    assert said.startswith(f"mqd: the data file {data_file} is damaged: it was cut off"), said
    assert "by a backup, or start the node with an empty data directory" in said
    # The node has not made a new file.
    assert data_file.stat().st_size == int(size * share)


def test_a_broken_store_is_refused_at_the_start(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        filled(node, 50)
        assert node.stop() == 0
    break_trees(node.data / "main" / "data.mdb")
    assert "main/data.mdb is damaged: " in refused(node)


def test_a_damaged_declaration_is_refused_at_the_start(tmp_path: Path) -> None:
    """Without it the node would drop the queue's messages as those of a deleted queue."""
    with Node(tmp_path) as node:
        with contextlib.closing(Client(node.port)) as client:
            client.declare("a-queue-with-a-name-of-its-own")
        assert node.stop() == 0
    assert flip(node.data, b'"name":"a-queue-with-a-name-of-its-own"', 3) >= 1
    said = refused(node)
    assert "the metadata entry b'queues" in said, said


def test_a_directory_without_its_store_is_refused_until_it_is_moved_away(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        filled(node, 50)
        assert node.stop() == 0
        (node.data / "main" / "data.mdb").unlink()
        said = refused(node)
        assert "has no main/data.mdb, but it has main/log, marks" in said, said
        assert f"move {node.data} away, and the node starts as a new one" in said, said
        node.data.rename(tmp_path / "lost")
        node.start()
        with contextlib.closing(Client(node.port)) as client:
            client.declare("q")
            assert client.count("q") == 0
