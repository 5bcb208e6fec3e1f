"""The fixtures as other suites use them: the programs of docs/testing.md,
and programs of other event loops.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from conformance_tests import programs
from conformance_tests.patience import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)

LOOPS = """
import asyncio

import aio_pika
import pytest
import trio


@pytest.mark.asyncio
async def test_asyncio(mqd_vhost):
    async with await aio_pika.connect(mqd_vhost.amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("orders")
        await channel.default_exchange.publish(aio_pika.Message(b"tea"), "orders")
        message = await queue.get()
        await message.ack()
        assert message.body == b"tea"


@pytest.mark.trio
async def test_trio(mqd_vhost):
    stream = await trio.open_tcp_stream(mqd_vhost.host, mqd_vhost.port)
    async with stream:
        await stream.send_all(b"AMQP\\x00\\x00\\x09\\x01")
        assert await stream.receive_some(1) == b"\\x01"


@pytest.mark.parametrize("number", range(4))
def test_always_empty(mqd_vhost, number):
    assert mqd_vhost.api("GET", "queues") == []
    mqd_vhost.api("PUT", "queues/orders", {"durable": True})


def test_mended(mqd, mqd_vhost):
    mqd.pause()


def test_after_mended(mqd_vhost):
    assert mqd_vhost.api("GET", "queues") == []
"""

FAILS = """
import pika


def test_before(mqd_vhost):
    pika.BlockingConnection(pika.URLParameters(mqd_vhost.amqp_url.replace("guest:guest", "before:x")))


def test_fails(mqd_vhost):
    pika.BlockingConnection(pika.URLParameters(mqd_vhost.amqp_url.replace("guest:guest", "anna:x")))
"""


def run(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        [programs.python(), "-P", "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    return done.stdout + done.stderr


def test_suites_of_others(tmp_path: Path) -> None:
    programs = dict(PROGRAM.findall(PAGE.read_text()))
    assert {"test_orders.py", "test_crash.py", "test_failover.py", "test_with_unittest.py"} <= programs.keys()
    programs |= {"test_loops.py": LOOPS, "test_fails.py": FAILS}
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    said = run(tmp_path, "-n", "2", "--dist", "loadfile")
    assert "2 failed, 12 passed" in said, said
    # Each failure shows the log of its own broker since the test began, and no more.
    before, after = sorted(re.split(r"^_+ test_(?=before|fails)", said, flags=re.MULTILINE)[1:])
    after = after.partition("short test summary")[0]
    for section, name, other in ((before, "before", "anna"), (after, "anna", "before")):
        assert "log of mqd n1" in section and f"user '{name}'" in section
        assert f"user '{other}'" not in section
