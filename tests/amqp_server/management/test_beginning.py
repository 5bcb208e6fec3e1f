"""The management API waits for a quiet second to start, at most ten seconds, unless a client sends a request;
nothing waits for its imports.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import trio

from amqp_server.imports import imported
from amqp_server.management.serving.delayed_start import quiet_or_asked
from conformance_tests.patience import PATIENCE_S


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def _used(*shares: float) -> Callable[[], float]:
    """Return readings of the process' CPU time: between the two readings of each second it has used this
    share of the second.
    """
    readings = [0.0]
    for share in shares:
        readings += [readings[-1] + share] * 2
    return iter(readings).__next__


async def test_a_quiet_second_is_enough(
    listening: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    await quiet_or_asked(listening, _used(0.05))
    assert trio.current_time() == pytest.approx(1)


async def test_clients_that_are_busy_go_first(
    listening: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    await quiet_or_asked(listening, _used(0.9, 0.5, 0.2, 0.05))
    assert trio.current_time() == pytest.approx(4)


async def test_it_begins_though_they_are_busy_for_long(
    listening: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    await quiet_or_asked(listening, _used(*[0.9] * 20))
    assert trio.current_time() == pytest.approx(10)


async def test_a_request_is_not_kept_waiting(listening: socket.socket) -> None:
    with socket.create_connection(listening.getsockname()):
        with trio.fail_after(5):
            await quiet_or_asked(listening, _used(0.9))


async def test_the_loop_goes_on_during_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_its_time.py").write_text("import meanwhile\nmeanwhile.done = meanwhile.waited()\n")
    meanwhile = ModuleType("meanwhile")
    served = threading.Event()
    meanwhile.waited = lambda: served.wait(PATIENCE_S)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "meanwhile", meanwhile)
    monkeypatch.syspath_prepend(tmp_path)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(imported, "takes_its_time")
        await trio.testing.wait_all_tasks_blocked()
        served.set()
    assert meanwhile.done
    del sys.modules["takes_its_time"]
