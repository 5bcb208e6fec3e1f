"""The memory that workers share, and how many workers there are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from amqp_server.config import Config, InvalidOption
from amqp_server.workers import cores
from amqp_server.workers.board import CONNECTIONS, MEMORY, MEMORY_LIMIT, STARTED, AddressCounts, Board
from amqp_server.workers.worker import BEGUN_LOOK_S, Worker, config_of, metrics_address


def test_processes_see_each_others_numbers() -> None:
    board = Board(3)
    board.note(0, CONNECTIONS, 5)
    child = os.fork()
    if not child:
        board.note(1, CONNECTIONS, 7)
        board.note(1, MEMORY, 1 << 40)
        board.set(MEMORY_LIMIT, 9)
        os._exit(0)
    os.waitpid(child, 0)
    assert board.all(CONNECTIONS) == [5, 7, 0]
    assert [board.others(worker, CONNECTIONS) for worker in range(3)] == [7, 5, 12]
    assert (board.others(0, MEMORY), board.setting(MEMORY_LIMIT)) == (1 << 40, 9)
    board.clear(1)
    assert board.all(CONNECTIONS) == [5, 0, 0] and board.setting(MEMORY_LIMIT) == 9


def workers_on(board: Board, count: int) -> list[Worker]:
    whole = Config(workers=str(count))
    addresses = [f"@{number}:0" for number in range(count)]
    with socket.socket() as unused:
        return [
            Worker(
                number,
                whole,
                config_of(whole, number, addresses),
                sockets={},
                links=[],
                inbox=unused,
                outboxes=[],
                board=board,
                open_connections=None,
                ready=lambda text: None,
            )
            for number in range(count)
        ]


def test_what_can_wait_begins_when_all_workers_serve() -> None:
    board = Board(2)
    _, second = workers_on(board, 2)
    begun: list[int] = []

    async def begins() -> None:
        await second.node_started()
        begun.append(board.setting(STARTED) or 0)

    async def start() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begins)
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(2 * BEGUN_LOOK_S)
            assert not begun
            board.set(STARTED, 1)

    trio.run(start)
    assert begun == [1]


def test_counts_of_an_address_are_added_up_over_processes() -> None:
    counts = AddressCounts(3)
    child = os.fork()
    if not child:
        counts.note(1, "10.0.0.1", 4, 100)
        counts.note(1, "10.0.0.2", 1, 100)
        os._exit(0)
    os.waitpid(child, 0)
    counts.note(2, "10.0.0.1", 3, 200)
    assert [counts.others(worker, "10.0.0.1") for worker in range(3)] == [7, 3, 4]
    assert counts.others(0, "10.0.0.1", since=150) == 3
    assert counts.others(0, "10.0.0.3") == 0
    # What counts for one address never counts for another one, wherever their places are.
    for number in range(20_000):
        counts.note(1, f"10.1.{number >> 8}.{number & 255}", 1, 300)
    assert counts.others(0, "10.0.0.1", since=150) == 3
    assert max(counts.others(0, f"10.1.{number >> 8}.{number & 255}") for number in range(20_000)) == 1
    counts.clear(2)
    assert counts.others(0, "10.0.0.1", since=150) == 0


def test_the_first_process_raises_an_alarm_and_the_last_one_clears_it() -> None:
    first, second = workers_on(Board(2), 2)
    assert [first.note_alarm("memory", True), second.note_alarm("memory", True)] == [True, False]
    assert second.note_alarm("disk", True)
    assert [first.note_alarm("memory", False), second.note_alarm("memory", False)] == [False, True]
    # A process that ends has no alarm any more.
    first.board.clear(1)
    assert first.note_alarm("disk", True)


def test_who_has_more_connections_than_another_that_serves_gives_way() -> None:
    board = Board(3)
    workers = workers_on(board, 3)
    for number, count in enumerate((5, 2, 0)):
        board.note(number, CONNECTIONS, count)
    assert [worker.surplus() for worker in workers] == [5, 2, 0]
    for worker in workers[:2]:
        worker.begin("")
    assert [worker.surplus() for worker in workers] == [3, 0, 0]


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8), (None, 8)]
)
def test_auto_is_what_the_node_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert cores.workers_of(Config(workers="auto")) == expected
    assert cores.workers_of(Config(workers="auto", reserve_cores=2)) == max(1, expected - 2)
    assert cores.workers_of(Config(workers="5")) == 5


@pytest.mark.parametrize("value", ["0", "65", "two", "-1", "", "1.5"])
def test_a_number_of_workers_that_is_none(value: str) -> None:
    with pytest.raises(InvalidOption, match="a number from 1 to 64, or auto"):
        Config(workers=value)


def test_what_all_clients_of_a_node_share_is_divided() -> None:
    whole = Config(workers="4", memory_budget_bytes=8 << 20, auth_http_requests_max=6, password_checks_max=8)
    part = config_of(whole, 1, [f"@{number}:0" for number in range(4)])
    assert (part.memory_budget_bytes, part.auth_http_requests_max, part.password_checks_max) == (
        2 << 20,
        2,
        2,
    )
    # It follows from the memory limit.
    assert part.unsent_bytes_max == 0


@pytest.mark.parametrize("count", [2, 4])
def test_one_address_has_not_all_logins_of_a_worker(count: int) -> None:
    part = config_of(Config(workers=str(count)), 1, [f"@{number}:0" for number in range(count)])
    assert part.auth_http_logins_per_address_max < part.auth_http_requests_max // 2


def test_each_worker_has_its_part_of_the_configuration(tmp_path: Path) -> None:
    whole = Config(
        data_dir=str(tmp_path),
        memory_limit="8GiB",
        http="127.0.0.1:15672",
        metrics="[::1]:15692",
        workers="2",
    )
    first, second = (config_of(whole, number, ["@a:0", "@b:0"]) for number in range(2))
    assert (first.node, second.node) == ("n1", "n1/1")
    assert first.peer_addresses == second.peer_addresses == {"n1": ("@a", 0), "n1/1": ("@b", 0)}
    assert (first.http, second.http) == ("127.0.0.1:15672", "")
    assert (first.metrics, second.metrics) == ("[::1]:15692", "[::1]:15693")
    assert first.memory_limit_bytes == second.memory_limit_bytes == 4 << 30
    assert second.data_dir == f"{tmp_path}/workers/1"
    assert metrics_address(Config(metrics="127.0.0.1:0"), 3) == "127.0.0.1:0"
