"""What is kept in memory for groups and queues that are gone: nothing."""

from pathlib import Path

import pytest

from amqp_server.cluster.store import GroupStore
from persistence.environment import Environment
from persistence.journal import Journal


def test_a_dropped_group_leaves_nothing_in_memory(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path / "d", map_bytes=1 << 30, sync=False)
    groups = GroupStore(environment)
    for number in range(1, 200):
        groups.hard(number, 1, "n1")
        groups.append(number, [(1, 1, 0, b"x")])
    environment.flush()
    assert len(groups._bounds) == 199
    for number in range(1, 200):
        groups.drop(number)
        # Not in the store yet.
        assert groups.last_index(number) == 0
    environment.flush()
    assert [groups.last_index(number) for number in range(1, 200)] == [0] * 199
    assert groups._bounds == {}
    environment.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_dropped_group_may_begin_anew(tmp_path: Path, flushed: bool) -> None:
    environment = Environment.open(tmp_path / "d", map_bytes=1 << 30, sync=False)
    groups = GroupStore(environment)
    groups.append(7, [(1, 1, 0, b"a"), (2, 1, 0, b"b")])
    environment.flush()
    groups.drop(7)
    if flushed:
        environment.flush()
    with pytest.raises(ValueError, match="ends with 0"):
        groups.append(7, [(3, 1, 0, b"c")])
    groups.append(7, [(1, 2, 0, b"new")])
    assert groups.last_index(7) == 1
    environment.flush()
    assert [(each.index, each.data) for each in groups.read(7, 1, 1, 100)] == [(1, b"new")]
    environment.close()


def test_a_dropped_queue_is_not_remembered_for_its_annotations(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path / "d", map_bytes=1 << 30, sync=False)
    journal = Journal(environment)
    for number in range(1, 50):
        journal.append(number, 1, 1, b"x")
        journal.annotate(number, 1, b"returned")
    environment.flush()
    assert len(environment.annotated) == 49
    for number in range(1, 50):
        journal.drop(number)
    environment.flush()
    assert environment.annotated == set()
    environment.close()
