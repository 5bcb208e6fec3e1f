"""Strangers that guess passwords or hold connections open do not keep other clients out, nor fill the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.broker.access import password as passwords
from amqp_server.config import Config
from amqp_server.connection.login.password_checks import OtherFailures, Outcome, PasswordChecks
from amqp_server.connection.sockets.listener import NO_OTHERS
from amqp_server.connection.sockets.unauthenticated import GRACE_S, HalfOpen, HalfOpens, OtherHalfOpens
from amqp_server.workers.board import Board
from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.sources import source_of

from ..workers.test_board import workers_on
from .node import CAPABILITIES
from .served import Client, port_of, served, until

HEADER = b"AMQP\x00\x00\x09\x01"
T = TypeVar("T")


async def connect_from(node: Node, address: str) -> Client:
    sock = trio.socket.socket()
    await sock.bind((address, 0))
    await sock.connect(("127.0.0.1", port_of(node)))
    return Client(trio.SocketStream(sock))


async def try_password(node: Node, address: str, password: str, user: str = "guest") -> bool:
    """True if the login was accepted."""
    client = await connect_from(node, address)
    try:
        await client.send(HEADER)
        await client.wait_for(commands.Connection.Start)
        start_ok = commands.Connection.StartOk(
            {"capabilities": dict(CAPABILITIES)}, "PLAIN", f"\0{user}\0{password}", "en_US"
        )
        await client.send(frame.marshal(start_ok, 0))
        while not client.received:
            if not await client.read():
                return False
        (_, answer), *_ = client.received
        assert isinstance(answer, (commands.Connection.Tune, commands.Connection.Close))
        return isinstance(answer, commands.Connection.Tune)
    except trio.BrokenResourceError:
        return False
    finally:
        await trio.aclose_forcefully(client.stream)


class Slow:
    """Stands in for the check of a password: the check ends when the test says so, and is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Semaphore(0)
        self.running = self.most = self.count = 0
        self._lock = threading.Lock()
        monkeypatch.setattr(passwords, "checked", self)

    def __call__(self, encoded: str, password: str) -> tuple[bool, str]:
        with self._lock:
            self.running += 1
            self.count += 1
            self.most = max(self.most, self.running)
        self.open.acquire(timeout=PATIENCE_S)
        with self._lock:
            self.running -= 1
        return password == "guest", ""

    def release(self, count: int = 1) -> None:
        self.open.release(count)


async def test_few_checks_are_made_at_a_time_and_addresses_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, password_checks_max=2) as node, trio.open_nursery() as nursery:
        slow = Slow(monkeypatch)
        for number in range(20):
            for address in ("127.0.0.2", "127.0.0.3"):
                nursery.start_soon(try_password, node, address, f"guess-{number}")
        await until(lambda: slow.running == 2)
        await until(lambda: len(node.server.transports) == 40)
        accepted: list[bool] = []

        async def bystander() -> None:
            accepted.append(await try_password(node, "127.0.0.1", "guest"))

        nursery.start_soon(bystander)
        await until(lambda: len(node.server.transports) == 41)
        # This check comes after at most one more of each of the others, not after all 40.
        with trio.fail_after(PATIENCE_S):
            while not accepted:
                before = slow.count
                slow.release()
                await until(lambda before=before: slow.count > before or accepted)
        assert accepted == [True]
        assert slow.count <= 8
        assert slow.most == 2
        slow.release(100)


async def test_address_that_guesses_waits_longer_and_longer(tmp_path: Path) -> None:
    options = {
        "login_failures_free": 3,
        "login_back_off_max_s": 3_600.0 / 6,
        "password_checks_waiting_max": 8,
    }
    async with served(tmp_path, **options) as node:
        # A password that was right a moment ago needs no check.
        assert await try_password(node, "127.0.0.2", "guest")
        for number in range(3):
            assert not await try_password(node, "127.0.0.2", f"guess-{number}")
        began = trio.current_time()
        for number in range(3, 5):
            assert not await try_password(node, "127.0.0.2", f"guess-{number}")
        assert trio.current_time() - began >= 0.1 + 0.2
        for _ in range(12):
            checks = node.password_checks
            checks._failed("127.0.0.2", checks._sources["127.0.0.2"])
        async with trio.open_nursery() as nursery:
            refused: list[bool] = []

            async def guess(number: int) -> None:
                refused.append(not await try_password(node, "127.0.0.2", f"later-{number}"))

            for number in range(20):
                nursery.start_soon(guess, number)
            # The node refuses the logins beyond the permitted number of waiting ones without a check.
            await until(lambda: len(refused) == 12)
            assert await try_password(node, "127.0.0.2", "guest")
            node.broker.access.users.add("ann", "secret")
            assert await try_password(node, "127.0.0.1", "secret", "ann")
            nursery.cancel_scope.cancel()
        assert refused == [True] * 12


async def test_right_password_behind_failures_is_accepted_after_the_wait(tmp_path: Path) -> None:
    async with served(tmp_path, login_failures_free=2, login_back_off_max_s=0.2) as node:
        for number in range(4):
            assert not await try_password(node, "127.0.0.2", f"guess-{number}")
        assert await try_password(node, "127.0.0.2", "guest")


async def test_failures_are_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    checks = WithoutThreads(_Users(), Config(login_failures_free=1, login_failure_memory_s=60))
    took: list[float] = []
    for pause in (0, 0, 0, 0, 61, 0):
        await trio.sleep(pause)
        began = trio.current_time()
        assert await checks.check("10.0.0.1", "ann", "wrong") is Outcome.REFUSED
        took.append(round(trio.current_time() - began, 3))
    assert took == [0, 0.1, 0.2, 0.4, 0, 0.1]
    assert await checks.check("10.0.0.2", "ann", "right") is Outcome.ACCEPTED
    assert list(checks._sources) == ["10.0.0.1"]


async def test_failures_at_all_processes_count(autojump_clock: trio.testing.MockClock) -> None:
    config = Config(login_failures_free=2, login_failure_memory_s=60)
    processes = [WithoutThreads(_Users(), config, other) for other in workers_on(Board(2), 2)]
    took: list[float] = []
    for number in range(6):
        began = trio.current_time()
        assert await processes[number % 2].check("10.0.0.1", "ann", "wrong") is Outcome.REFUSED
        took.append(round(trio.current_time() - began, 3))
    assert took == [0, 0, 0.1, 0.2, 0.4, 0.8]
    began = trio.current_time()
    assert await processes[0].check("10.0.0.2", "ann", "wrong") is Outcome.REFUSED
    assert trio.current_time() == began


async def test_login_that_waits_too_long_is_not_checked(autojump_clock: trio.testing.MockClock) -> None:
    users = _Users()
    config = Config(login_failures_free=0, login_back_off_max_s=600, handshake_timeout_s=10)
    checks = WithoutThreads(users, config)
    outcomes = [await checks.check("10.0.0.1", "ann", "wrong") for _ in range(9)]
    assert outcomes == [Outcome.REFUSED] * 7 + [Outcome.BUSY] * 2
    assert users.checked == 7


async def test_addresses_that_are_remembered_are_bounded() -> None:
    checks = WithoutThreads(_Users(), Config(login_sources_max=10))
    for number in range(100):
        await checks.check(f"10.0.0.{number}", "ann", "wrong")
    assert list(checks._sources) == [f"10.0.0.{number}" for number in range(90, 100)]


class WithoutThreads(PasswordChecks):
    """Checks without threads, because a clock that jumps would jump while a thread works."""

    def __init__(self, users: _Users, config: Config, others: OtherFailures | None = None) -> None:
        super().__init__(users, config, None, others)  # type: ignore[arg-type]

    async def run(self, function: Callable[..., T], *args: object) -> T:
        await trio.lowlevel.checkpoint()
        return function(*args)


class _Users:
    """Users whose passwords are checked in no time, and not remembered."""

    def __init__(self) -> None:
        self.checked = 0

    def recall(self, name: str, password: str) -> bool | None:
        return None

    def verify(self, name: str, password: str) -> bool:
        self.checked += 1
        return password == "right"

    def better_hash(self, name: str) -> None: ...


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1%eth0", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(peer: str, source: str) -> None:
    assert source_of(peer) == source


class Door:
    """Admits connections by name."""

    def __init__(self, total: int, of_one: int, others: OtherHalfOpens = NO_OTHERS) -> None:
        config = Config(half_open_max=total, half_open_per_address_max=of_one)
        self.places = HalfOpens(config, others)
        self.admitted: dict[str, HalfOpen] = {}
        self.dropped: list[str] = []
        self.now = 0.0

    def admit(self, source: str, name: str) -> bool:
        place = self.places.admit(source, self.now)
        if place is not None:
            place.drop = lambda: self.dropped.append(name)
            self.admitted[name] = place
        return place is not None


def test_busiest_address_gives_way() -> None:
    door = Door(6, 5)
    assert [door.admit("a", f"a{number}") for number in range(7)] == [True] * 5 + [False] * 2
    assert door.admit("b", "b0")
    assert door.dropped == []
    assert door.admit("c", "c0") and door.dropped == ["a0"]
    door.admitted["a1"].checking = True
    assert door.admit("b", "b1") and door.dropped == ["a0", "a2"]
    # All addresses have as many places as they may, and nobody has had the time to log in.
    assert not door.admit("a", "a8")
    assert len(door.places) == 6
    for name in ("a1", "a3", "a4", "b0", "b1"):
        door.places.remove(door.admitted[name])
        door.places.remove(door.admitted[name])
    assert len(door.places) == 1 and door.places.count_of("a") == 0


def test_oldest_of_an_address_gives_way_unless_its_login_is_checked() -> None:
    door = Door(100, 3)
    assert [door.admit("a", f"a{number}") for number in range(4)] == [True, True, True, False]
    door.admitted["a0"].checking = True
    door.now = 1.5
    assert door.admit("a", "a4") and door.dropped == ["a1"]
    assert door.admit("a", "a5") and door.dropped == ["a1", "a2"]
    # The others have just come.
    assert not door.admit("a", "a6")
    assert door.admitted["a1"].gone and not door.admitted["a0"].gone


def test_oldest_of_the_node_gives_way_where_all_are_of_one_address() -> None:
    door = Door(3, 100)
    assert [door.admit("a", f"a{number}") for number in range(4)] == [True, True, True, False]
    door.now = 1.5
    assert door.admit("a", "a4") and door.dropped == ["a0"]


def test_half_open_connections_of_all_processes_count() -> None:
    first, second = (Door(4, 3, other) for other in workers_on(Board(2), 2))
    assert [door.admit("a", f"a{number}") for number, door in enumerate((first, second, first))] == [True] * 3
    assert not first.admit("a", "a3")
    assert second.admit("b", "b0")
    # All places are taken: the address with most gives way, if this process can close one.
    assert second.admit("c", "c0") is False and first.admit("c", "c1") and first.dropped == ["a0"]
    second.places.remove(second.admitted["a1"])
    second.places.remove(second.admitted["b0"])
    # A process without any of an address lets it in.
    first.now = second.now = 1.5
    assert first.admit("a", "a4") and first.admit("a", "a5") and second.admit("a", "a6")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_half_open_connections_keep_nobody_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    """Clients of other addresses and of the same one still get in."""
    async with served(tmp_path, half_open_max=20, half_open_per_address_max=15) as node:
        held = [await connect_from(node, "127.0.0.2") for _ in range(30)]
        await until(lambda: len(node.server.half_opens) == 15)
        if address == "127.0.0.2":
            await trio.sleep(GRACE_S)
        assert await try_password(node, address, "guest")
        held += [await connect_from(node, "127.0.0.3") for _ in range(10)]
        await until(lambda: node.server.half_opens.count_of("127.0.0.3") == 10)
        assert len(node.server.half_opens) == 20
        lines = [record.getMessage() for record in caplog.records if record.name == "mqd.connection"]
        assert len([line for line in lines if " refused: " in line]) == 1
        caplog.clear()
        node.server._summarise()
        summaries = [record.getMessage() for record in caplog.records]
        assert "connection refused: 14 more, not logged one by one: 14 of 127.0.0.2" in summaries
        for client in held:
            await trio.aclose_forcefully(client.stream)


async def test_silent_connections_leave_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with served(tmp_path, handshake_timeout_s=0.5) as node:
        held = [await connect_from(node, "127.0.0.2") for _ in range(30)]
        await until(lambda: node.server.transports)
        await until(lambda: not node.server.transports)
        lines = [
            record.getMessage() for record in caplog.records if "handshake_timeout" in record.getMessage()
        ]
        assert len(lines) == 1
        node.server._summarise()
        assert "handshake_timeout: 29 more, not logged one by one: 29 of 127.0.0.2" in caplog.text
        for client in held:
            await trio.aclose_forcefully(client.stream)
