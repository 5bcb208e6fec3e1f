import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from persistence.delivered_marks import GROW_SLOTS, DeliveredMarks
from tests.cluster.disks import SlowDisks
from tests.cluster.links import Unsupported

#: One thread writes the marks to a disk that does not answer; the other has to run meanwhile to let it
#: answer.
STALLED = """
import os, sys, threading, time
from persistence.delivered_marks import DeliveredMarks
marks, switch, held = DeliveredMarks(sys.argv[1]), sys.argv[2], sys.argv[3]
marks.mark(marks.allocate(), 7)
flush = threading.Thread(target=marks.flush)
flush.start()
while not os.path.exists(held):
    time.sleep(0.001)
marks.mark(0, 8)
os.unlink(switch)
flush.join()
print(marks.get(0))
"""


def test_marks_stay(tmp_path: Path) -> None:
    marks = DeliveredMarks(tmp_path / "marks")
    first, second = marks.allocate(), marks.allocate()
    assert first != second
    assert marks.get(first) == -1
    marks.mark(first, 0)
    marks.mark(second, (1 << 64) - 3)
    marks.close()
    marks = DeliveredMarks(tmp_path / "marks")
    assert (marks.get(first), marks.get(second)) == (0, (1 << 64) - 3)
    assert marks.allocate() not in (first, second)
    marks.close()


def test_freed_slots_are_used_again_and_begin_anew(tmp_path: Path) -> None:
    marks = DeliveredMarks(tmp_path / "marks")
    slot = marks.allocate()
    marks.mark(slot, 9)
    marks.free(slot)
    marks.free(slot)
    assert marks.allocate() == slot
    assert marks.get(slot) == -1
    assert marks.allocate() != slot
    marks.close()


def test_growing_keeps_the_marks(tmp_path: Path) -> None:
    marks = DeliveredMarks(tmp_path / "marks")
    slots = [marks.allocate() for _ in range(3 * GROW_SLOTS)]
    assert len(set(slots)) == len(slots)
    for slot in slots:
        marks.mark(slot, slot * 3)
    assert all(marks.get(slot) == slot * 3 for slot in slots)
    marks.retain([5, 4 * GROW_SLOTS + 1])
    assert (marks.get(5), marks.get(6), marks.get(4 * GROW_SLOTS + 1)) == (15, -1, -1)
    assert 5 not in {marks.allocate() for _ in range(GROW_SLOTS)}
    marks.close()


def test_a_killed_process_loses_no_mark(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        marks = DeliveredMarks(tmp_path / "marks")
        marks.mark(marks.allocate(), 123456)
        os.kill(os.getpid(), 9)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == 9
    marks = DeliveredMarks(tmp_path / "marks")
    assert marks.get(0) == 123456
    marks.close()


def test_flushes_sync_the_file(tmp_path: Path) -> None:
    synced: list[str] = []
    marks = DeliveredMarks(
        tmp_path / "marks", sync=lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    marks.mark(marks.allocate(), 1)
    assert marks.changed
    marks.flush()
    assert not marks.changed
    marks.close()
    assert synced == [str(tmp_path / "marks")] * 2


def test_other_threads_run_while_the_disk_does_not_answer(tmp_path: Path) -> None:
    """A thread that keeps the interpreter's lock while it waits would stop the loop, and so the
    heartbeats.
    """
    try:
        disks = SlowDisks(tmp_path)
    except Unsupported as why:
        pytest.skip(str(why))
    held = disks.hold("n1")
    environment = disks.environment("n1")
    done = subprocess.run(
        [sys.executable, "-c", STALLED, str(tmp_path / "marks"), environment["SLOW_SYNC_SWITCH"], str(held)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr
