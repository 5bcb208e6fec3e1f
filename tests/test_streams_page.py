"""The programs in docs/streams.md, one after the other against one broker."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from conformance_tests.patience import PATIENCE_S

from .test_examples import running

ROOT = Path(__file__).parents[1]
ORDERS = [
    f"orders-{partition} {customer}'s order {order}\n"
    for partition, customer in enumerate(("ada", "max", "ben"))
    for order in (1, 2)
]
BILLED = [
    f"orders-{partition} {order - 1} {customer}'s order {order}\n"
    for partition, customer in enumerate(("ada", "max", "ben"))
    for order in (1, 2)
]
TABLE = "{'cellar': '24', 'kitchen': '25'}\n"
PRINTED = [
    "",
    "99 kitchen 99\n",
    "".join(f"{number} kitchen {number}\n" for number in (91, 93, 95, 97, 99)),
    "".join(f"{number} {'kitchen' if number % 2 else 'cellar'} {number}\n" for number in range(90, 100)),
    "".join(ORDERS),
    "".join(BILLED),
    "",
    TABLE,
]
#: In a group, partitions come in any order; within each the order holds.
UNORDERED = 5
#: Messages of the program that fills the table.
READINGS = 32


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    # Published messages are soon in segments, and compacted.
    with running(
        tmp_path / "data",
        "--stream-flush-ms",
        "20",
        "--stream-compaction-dirty-percent",
        "1",
        "--stream-segment-bytes-min",
        "1",
    ) as at:
        yield at


def printed_by(program: str, address: str) -> str:
    assert program.count("127.0.0.1:5672") == 1
    # Few messages fill a segment here.
    program = program.replace(
        '"x-stream-max-segment-size-bytes": 100_000', '"x-stream-max-segment-size-bytes": 500'
    )
    done = subprocess.run(
        [sys.executable, "-c", program.replace("127.0.0.1:5672", address)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def count_of_readings(address: str) -> int:
    """Return how many messages a consumer of the table gets from the first one to the last."""
    connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{address}/"))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=READINGS)
    count = 0
    for method, properties, _ in channel.consume("temperatures", arguments={"x-stream-offset": "first"}):
        channel.basic_ack(method.delivery_tag)
        count += 1
        if properties.headers["x-stream-offset"] == READINGS - 1:
            break
    connection.close()
    return count


def test_the_programs_do_what_the_page_says(address: str) -> None:
    page = (ROOT / "docs" / "streams.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "It prints `99 kitchen 99`." in page and "the readings 91, 93, 95, 97 and 99" in page
    assert f"It prints `{TABLE.strip()}`, before and after compaction." in page
    printed = [printed_by(program, address) for program in programs]
    printed[UNORDERED] = "".join(
        sorted(printed[UNORDERED].splitlines(keepends=True), key=lambda line: line.split()[0])
    )
    assert printed == PRINTED
    # A consumer that begins later reads fewer messages, and gets the same table.
    until = time.monotonic() + PATIENCE_S
    while count_of_readings(address) > READINGS // 2:
        assert time.monotonic() < until, "nothing is compacted"
        time.sleep(0.02)
    assert printed_by(programs[-1], address) == TABLE
