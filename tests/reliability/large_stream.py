"""One stream that is much larger than memory: `python -m tests.reliability.large_stream --gigabytes 20`.

It is filled, with confirms, for `--fill-max` seconds at most; then the node is killed and started again, and
readers begin at offsets and times all over it. Prints memory, the time of the start, how long each first
message took, and the node's CPU time for it. The time for which threads waited for a core is shown
separately: how busy others keep the machine has nothing to do with the disk. With `--cold`, the kernel
forgets the node's files before each start and each seek, so the disk is read. The data is deleted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pamqp import commands

from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery
from tests.reliability.node import Node

STREAM = "large"
ARGUMENTS: dict[str, Any] = {"x-queue-type": "stream"}
BATCH = 64
WINDOW = 16 * BATCH
MIB = 1 << 20
#: Seeks that wait less than this for a core show the time that a seek takes on an idle machine.
WAITED_S = 0.002


def anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """Return the time for which the threads of a process were ready and had no core, summed up."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum([int((task / "schedstat").read_text().split()[1]) for task in tasks]) / 1e9


def fill(node: Node, count: int, size: int, within_s: float) -> tuple[int, list[int]]:
    """Return how many messages were confirmed, and the node's memory meanwhile."""
    memory: list[int] = []
    address = Address("", STREAM)
    with contextlib.closing(Client(node.port)) as client:
        client.declare(STREAM, **ARGUMENTS)
        client.confirms()
        sent = confirmed = 0
        began = looked = time.monotonic()
        while confirmed < sent or sent < count:
            now = time.monotonic()
            if now - began > within_s:
                count = min(count, sent)
            if now - looked > 2.0:
                looked = now
                memory.append(anonymous_bytes(node.pid))
            if sent < count and sent - confirmed < WINDOW:
                client.send(b"".join(address.message(body(each, size)) for each in range(sent, sent + BATCH)))
                sent += BATCH
            full = sent >= count or sent - confirmed >= WINDOW
            for event in client.receive(None if full else 0.0):
                assert isinstance(event, Confirm) and not event.nack, event
                confirmed = event.tag if event.multiple else max(confirmed, event.tag)
    return confirmed, memory


def forget(directory: Path) -> None:
    """Make the kernel forget these files' cached pages."""
    for path in directory.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


class Seek(NamedTuple):
    took_s: float
    #: The time for which threads of both ends waited for a core, summed up.
    waited_s: float
    #: The number in the first message.
    number: int


def seek(node: Node, start: int | datetime) -> Seek:
    with contextlib.closing(Client(node.port)) as client:
        client.sync(1)
        waited = waited_s(node.pid) + waited_s(os.getpid())
        began = time.monotonic()
        client.call(
            commands.Basic.Consume(queue=STREAM, consumer_tag="c", arguments={"x-stream-offset": start}),
            commands.Basic.ConsumeOk,
        )
        (event,) = client.receive()
        assert isinstance(event, Delivery), event
        took = time.monotonic() - began
        return Seek(took, waited_s(node.pid) + waited_s(os.getpid()) - waited, number(event.body))


def told(
    what: str, node: Node, starts: Sequence[int | datetime], wanted: list[int] | None, *, cold: bool
) -> None:
    before = cpu_s(node.pid)
    found: list[Seek] = []
    for start in starts:
        if cold:
            forget(node.data / "streams")
        found.append(seek(node, start))
    cpu = (cpu_s(node.pid) - before) / len(starts)
    assert wanted is None or [each.number for each in found] == wanted
    times = sorted([1000 * each.took_s for each in found])
    alone = [1000 * each.took_s for each in found if each.waited_s < WAITED_S]
    rest = max([1000 * (each.took_s - each.waited_s) for each in found])
    print(
        f"{what}: {statistics.median(times):.1f} ms, 95 % {times[len(times) * 95 // 100]:.1f}, at most {times[-1]:.1f}, "
        f"CPU {1000 * cpu:.1f} ms; without the time in which threads waited for a core at most {rest:.1f}; "
        f"{len(alone)} that waited less than {1000 * WAITED_S:.0f} ms for one took {max(alone, default=0):.1f} at most",
        flush=True,
    )


def run(
    directory: Path, total_bytes: int, size: int, fill_max_s: float, seeks: int, starts: int, *, cold: bool
) -> None:
    chance = random.Random(1)
    with Node(directory) as node:
        idle = anonymous_bytes(node.pid)
        print(f"started with nothing: CPU {cpu_s(node.pid):.2f} s")
        began, wall = time.monotonic(), time.time()
        count, memory = fill(node, total_bytes // size, size, fill_max_s)
        took = time.monotonic() - began
        print(f"{count:,} messages, {count * size / 1e9:.1f} GB in {took:.0f} s", flush=True)
        late = memory[len(memory) // 2 :] or [idle]
        early = memory[: len(memory) // 2] or [idle]
        print(
            f"memory: {idle // MIB} MiB idle, {max(early) // MIB} in the first half, {max(late) // MIB} in the second",
            flush=True,
        )
        for _ in range(starts):
            node.kill()
            if cold:
                forget(node.data)
            began = time.monotonic()
            node.start()
            print(
                f"started again in {time.monotonic() - began:.2f} s, CPU {cpu_s(node.pid):.2f} s, "
                f"waited for a core {waited_s(node.pid):.2f} s, {anonymous_bytes(node.pid) // MIB} MiB",
                flush=True,
            )
        offsets = [chance.randrange(count) for _ in range(seeks)]
        told("by offset", node, offsets, offsets, cold=cold)
        times = [datetime.fromtimestamp(wall + chance.random() * (took - 2), UTC) for _ in range(seeks)]
        told("by time", node, times, None, cold=cold)
        print(f"memory: {anonymous_bytes(node.pid) // MIB} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--bytes", type=int, default=8192, help="of a message")
    parser.add_argument("--fill-max", type=float, default=300.0, help="seconds")
    parser.add_argument("--seeks", type=int, default=30, help="by offset, and as many by time")
    parser.add_argument("--starts", type=int, default=1, help="after kill -9")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    parser.add_argument("--directory", type=Path, help="where data goes; default: a temporary directory")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqd-large-", dir=chosen.directory) as directory:
        run(
            Path(directory),
            int(chosen.gigabytes * 1e9),
            chosen.bytes,
            chosen.fill_max,
            chosen.seeks,
            chosen.starts,
            cold=chosen.cold,
        )


if __name__ == "__main__":
    main()
