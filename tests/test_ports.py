"""A port that was given out before anything listens on it is not given to others meanwhile."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from conformance_tests.patience import PATIENCE_S
from conformance_tests.ports import BLOCK_PORTS, FIRST, HOST, KERNELS_CHOICE, free_port, free_ports, free_run

ROOT = Path(__file__).parents[1]
PROGRAM = "from conformance_tests.ports import free_ports; print(*free_ports(200), flush=True); input()"


def test_processes_have_ports_of_their_own() -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    given = free_ports(200)
    for other in others:
        assert other.stdout is not None
        given += map(int, other.stdout.readline().split())
    for other in others:
        other.communicate("\n", PATIENCE_S)
    assert len(given) == 800 == len({*given})


def test_not_those_that_the_kernel_chooses() -> None:
    lowest = int(KERNELS_CHOICE.read_text().split()[0])
    if lowest > 32_000:
        assert all(port < lowest for port in free_ports(2 * BLOCK_PORTS))


def test_a_run_is_free_and_given_once() -> None:
    first, second = free_run(9), free_run(9)
    assert not {*range(first, first + 9)} & {*range(second, second + 9)}
    for port in (*range(first, first + 9), *range(second, second + 9)):
        socket.create_server((HOST, port)).close()


def test_a_port_in_use_is_passed_over() -> None:
    before = free_port()
    while (before + 1 - FIRST) % BLOCK_PORTS == 0:
        before = free_port()
    with socket.create_server((HOST, before + 1)):
        assert free_port() == before + 2 or (before + 2 - FIRST) % BLOCK_PORTS == 0
