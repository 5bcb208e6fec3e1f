"""What a request that ends before its time leaves behind: nothing that Trio would have to warn of."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing

from amqp_server.broker.access.http_permissions import BackendAnswers
from amqp_server.config import Config
from amqp_server.connection.login.http_backend import BackendFailed, HttpBackend
from amqp_server.connection.login.http_client import streamed
from conformance_tests.patience import PATIENCE_S

#: More than the buffers of a connection on the loopback interface take.
LARGE = 16 << 20


@contextmanager
def deaf() -> Iterator[str]:
    """A server that takes connections and reads nothing."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/user"


async def collected() -> list[str]:
    """Collect garbage, and return what is warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
    return [str(each.message) for each in told]


async def test_a_request_that_is_cancelled_while_it_is_sent() -> None:
    with deaf() as url:
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
            with trio.move_on_after(0.2) as scope:
                async with streamed(client, "POST", url, {}, b"x" * LARGE):
                    raise AssertionError("nobody answers")
            assert scope.cancelled_caught
        assert await collected() == []


async def test_a_connection_that_breaks_while_a_request_is_sent() -> None:
    async def breaks(listener: trio.SocketListener) -> None:
        stream = await listener.accept()
        # Unread bytes make this a reset.
        await stream.receive_some(1)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/user"
        nursery.start_soon(breaks, listener)
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
            with pytest.raises(httpx.HTTPError):
                async with streamed(client, "POST", url, {}, b"x" * LARGE):
                    raise AssertionError("nobody answers")
        await listener.aclose()
    assert await collected() == []


async def test_a_question_whose_time_is_up_while_it_is_sent() -> None:
    with deaf() as url:
        paths = {f"auth_http_{path}_path": url for path in ("user", "vhost", "resource", "topic")}
        config = Config(auth_backends=("http",), auth_http_timeout_s=0.3, **cast(Any, paths))
        answers = cast(BackendAnswers, SimpleNamespace(asks=None))
        backend = HttpBackend(config, answers, cast(Any, None))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.run)
            with trio.fail_after(PATIENCE_S), pytest.raises(BackendFailed, match="no answer within"):
                await backend._answer("user", {"username": "anna", "password": "x" * LARGE})
            nursery.cancel_scope.cancel()
        assert await collected() == []


async def test_the_body_of_a_request_is_sent_whole_with_its_length() -> None:
    heard = b""

    async def answer(listener: trio.SocketListener) -> None:
        nonlocal heard
        stream = await listener.accept()
        while len(heard.partition(b"\r\n\r\n")[2]) < 5:
            heard += await stream.receive_some(4096)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/user"
        nursery.start_soon(answer, listener)
        async with (
            httpx.AsyncClient(trust_env=False) as client,
            streamed(client, "POST", url, {"content-type": "text/plain"}, b"12345") as got,
        ):
            assert await got.aread() == b"ok"
        await listener.aclose()
    head, _, body = heard.partition(b"\r\n\r\n")
    assert body == b"12345"
    assert b"content-length: 5" in head.lower() and b"chunked" not in head.lower()
