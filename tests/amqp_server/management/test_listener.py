import gzip
import socket
import threading
from typing import Any

import httpx
import pytest
import trio

from amqp_server.config import Config
from amqp_server.management.parts import ManagedParts
from amqp_server.management.serving import listener, page_files


def listening_socket() -> tuple[socket.socket, str]:
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, f"http://127.0.0.1:{listening.getsockname()[1]}/api/whoami"


@pytest.mark.trio
async def test_requests_before_the_server_is_imported_wait(parts: ManagedParts) -> None:
    listening, url = listening_socket()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        answers: list[httpx.Response] = []

        async def ask() -> None:
            async with httpx.AsyncClient(auth=("admin", "admin"), trust_env=False, verify=False) as client:
                answers.append(await client.get(url))
            stop.set()

        nursery.start_soon(ask)
        nursery.start_soon(listener.serve, listening, parts, Config(), stop.wait)
    assert answers[0].json()["name"] == "admin"
    assert "server" not in answers[0].headers


@pytest.mark.trio
async def test_the_loop_goes_on_while_the_page_is_made_ready(
    parts: ManagedParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def compress(body: bytes, *, mtime: float) -> bytes:
        threads.append(threading.current_thread())
        return body

    monkeypatch.setattr(gzip, "compress", compress)
    page_files.page_files.cache_clear()
    listening, url = listening_socket()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, listening, parts, Config(), stop.wait)
        async with httpx.AsyncClient(auth=("admin", "admin"), trust_env=False, verify=False) as client:
            assert (await client.get(url)).status_code == 200
        stop.set()
    page_files.page_files.cache_clear()
    assert len(threads) > 5
    assert threading.current_thread() not in threads


@pytest.mark.trio
async def test_broken_server_starts_again(parts: ManagedParts, monkeypatch: pytest.MonkeyPatch) -> None:
    listening, url = listening_socket()
    stop = trio.Event()
    real, calls = listener._serve, []

    async def breaks_once(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("planted")
        await real(*args)

    monkeypatch.setattr(listener, "_serve", breaks_once)
    monkeypatch.setattr(listener, "RESTART_S", 0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, listening, parts, Config(), stop.wait)
        async with httpx.AsyncClient(auth=("admin", "admin"), trust_env=False, verify=False) as client:
            assert (await client.get(url)).status_code == 200
        stop.set()
    assert len(calls) == 2
    assert listening.fileno() == -1
