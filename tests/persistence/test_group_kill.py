"""kill -9 at random moments: everything reported as durable of a group is there, and nothing else.

This file is also the process that is killed: it appends to its groups, cuts their tails off, takes snapshots
and drops entries, and prints a line `durable GROUP LAST TERM SNAPSHOT` for each group that was committed.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import trio
import trio.lowlevel

from persistence.commits import commit_task
from persistence.commits.commit import Commit
from persistence.environment import Environment
from persistence.replica_logs.logs import Groups
from persistence.replica_logs.record import StoredEntry

ROOT = Path(__file__).parents[2]
GROUPS = 5


def body(group: int, index: int, term: int) -> bytes:
    return b"%d %d %d " % (group, index, term) + b"x" * (index * 37 % 5000)


def say(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


async def write(directory: str) -> None:
    # The store gets what the log has all the time, and not once a second.
    commit_task.STORE_SECONDS, commit_task.TEND_SECONDS = 0.0, 0.001
    environment = Environment.open(directory, map_bytes=1 << 32)
    groups, commit = Groups(environment), Commit(environment)
    choices = random.Random(environment.incarnation)
    logs = dict.fromkeys(range(GROUPS), (1, 0, 0))  # term, last, snapshot
    for found in groups.recover():
        snapshot = found.snapshot[0] if found.snapshot else 0
        logs[found.group] = found.term + 1, found.last_index, snapshot
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        while True:
            lines = ""
            for group, (term, last, snapshot) in logs.items():
                if choices.random() < 0.2:
                    # Another leader replaces the tail that was not committed.
                    term += 1
                    last = max(last - choices.randint(0, 4), snapshot)
                first, last = last + 1, last + choices.randint(1, 5)
                groups.hard(group, term, f"n{term % 3}")
                groups.append(
                    group, [StoredEntry(i, term, 0, body(group, i, term)) for i in range(first, last + 1)]
                )
                if last - snapshot > 60:
                    snapshot = last - 10
                    groups.snapshot(group, snapshot, term, b"state %d" % snapshot * 300)
                    groups.drop_entries(group, [range(1, snapshot + 1)])
                logs[group] = term, last, snapshot
                lines += f"durable {group} {last} {term} {snapshot}\n"
            commit.request(partial(say, lines))
            await trio.lowlevel.checkpoint()
            if groups.pending_bytes > 2_000_000:
                await commit.barrier()


def run_and_kill(directory: Path, seconds: float) -> dict[int, tuple[int, int, int]]:
    """Return the last report about each group: last index, term, snapshot."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        killer = threading.Timer(seconds, writer.send_signal, [signal.SIGKILL])
        killer.start()
        said = first + writer.stdout.read()
        killer.join()
    durable = {}
    # The last line may have been cut by the kill.
    for line in said[: said.rfind(b"\n") + 1].splitlines():
        _, group, last, term, snapshot = line.split()
        durable[int(group)] = int(last), int(term), int(snapshot)
    return durable


def test_what_is_durable_of_groups_survives_kill(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    moments = random.Random(7)
    for turn in range(6):
        durable = run_and_kill(directory, moments.uniform(0.0, 0.4))
        assert durable
        environment = Environment.open(directory, map_bytes=1 << 32)
        try:
            assert environment.incarnation == 2 * turn + 2
            groups = Groups(environment)
            recovered = {group.group: group for group in groups.recover()}
            for number, (last, term, snapshot) in durable.items():
                group = recovered[number]
                assert (group.lost, group.hard_lost, group.snapshot_lost) == ([], False, False)
                # More may have been synced than reported.
                assert group.term >= term and group.vote == f"n{group.term % 3}"
                assert group.snapshot is None or group.snapshot[0] >= snapshot
                assert group.last_index >= last or group.term > term
                log = range(group.first_index, group.last_index + 1)
                assert {index for span in group.stored for index in span} == set(log)
                for index in log:
                    entry = groups.read_one(number, index)
                    assert entry.data == body(number, index, entry.term)
                    assert entry.term <= group.term
                assert groups.read_one(number, group.last_index).term == group.term
                state = groups.read_state(number)
                if state is not None:
                    assert state[2] == b"state %d" % state[0] * 300
        finally:
            environment.close()


if __name__ == "__main__":
    trio.run(write, sys.argv[1])
