import os
from pathlib import Path

from persistence.marks import GROW_SLOTS, DeliveredMarks


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
