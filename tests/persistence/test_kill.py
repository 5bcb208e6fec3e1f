"""kill -9 at random moments: messages reported as durable are there, and those reported as settled are not.

This file is also the process that is killed: it appends and settles as fast as it can and prints a line
`durable STOP SETTLED` when all before STOP is durable and all before SETTLED is settled.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from persistence.commits import commit_task
from persistence.commits.commit import Commit
from persistence.delivered_marks import DeliveredMarks
from persistence.environment import Environment
from persistence.journal import Journal

ROOT = Path(__file__).parents[2]
BATCH = 7
KEPT = 5000


def body(seq: int) -> bytes:
    return b"%012d" % seq + b"x" * (seq % 3000)


def say(stop: int, settled: int) -> None:
    sys.stdout.write(f"durable {stop} {settled}\n")
    sys.stdout.flush()


async def write(directory: str, batches: int) -> None:
    # The store gets what the log has all the time, and not once a second.
    commit_task.STORE_SECONDS, commit_task.TEND_SECONDS = 0.0, 0.001
    environment = Environment.open(directory, map_bytes=1 << 32)
    journal = Journal(environment)
    marks = DeliveredMarks(environment.directory / "marks")
    slot = marks.allocate() if marks.get(0) < 0 else 0
    stop = max((r.first_seq + r.count for q in journal.recover() for r in q.records), default=0)
    settled = stop
    journal.settle(1, range(stop))
    commit = Commit(environment, marks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        while True:
            for _ in range(batches):
                journal.append(1, stop, BATCH, [body(seq) for seq in range(stop, stop + BATCH)])
                stop += BATCH
            if stop - settled > KEPT:
                journal.settle(1, range(settled, settled + 300))
                settled += 300
            marks.mark(slot, stop)
            commit.request(partial(say, stop, settled))
            await trio.lowlevel.checkpoint()
            if journal.pending_bytes > 4_000_000:
                await commit.barrier()


def run_and_kill(directory: Path, seconds: float, batches: int) -> tuple[int, int]:
    """Returns the end of the last durable batch and of the settled messages."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(directory), str(batches)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        killer = threading.Timer(seconds, writer.send_signal, [signal.SIGKILL])
        killer.start()
        rest = writer.stdout.read()
        killer.join()
    said = [line for line in (first + rest).splitlines() if len(line.split()) == 3]
    # The last line may have been cut by the kill.
    whole = said if (first + rest).endswith(b"\n") else said[:-1]
    _, stop, settled = whole[-1].split()
    return int(stop), int(settled)


# One batch goes to the write-ahead log, and 20 to LMDB.
@pytest.mark.parametrize("batches", [1, 20])
def test_what_is_durable_survives_kill(tmp_path: Path, batches: int) -> None:
    directory = tmp_path / "data"
    moments = random.Random(7)
    for _ in range(4):
        stop, settled = run_and_kill(directory, moments.uniform(0.0, 0.4), batches)
        environment = Environment.open(directory, map_bytes=1 << 32)
        try:
            left: set[int] = set()
            for queue in Journal(environment).recover():
                for record in queue.records:
                    assert record.count == BATCH
                    assert not record.corrupt
                    bodies = b"".join(map(body, range(record.first_seq, record.first_seq + BATCH)))
                    assert record.payload == bodies
                    gone = {seq for seqs in record.settled for seq in seqs}
                    for seq in range(record.first_seq, record.first_seq + BATCH):
                        if seq not in gone:
                            left.add(seq)
            lowest = min(left)
            # More may have been settled and synced than reported, but nothing may be missing in between.
            assert lowest >= settled
            assert sorted(left) == list(range(lowest, max(left) + 1))
            assert max(left) >= stop - 1
            marks = DeliveredMarks(directory / "marks")
            assert marks.get(0) >= stop
            marks.close()
        finally:
            environment.close()


if __name__ == "__main__":
    trio.run(write, sys.argv[1], int(sys.argv[2]))
