"""Serves the management listener: imported and started after its socket is bound.

Hypercorn and Starlette take 100 ms to import, and `mqd ready` does not wait for that: requests that come meanwhile
wait in the socket's backlog.
"""

from __future__ import annotations

import importlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from amqp_server.config import Config

if TYPE_CHECKING:
    from amqp_server.management.managed_broker import ManagedBroker

log = logging.getLogger("mqd.management")
DRAIN_S = 1
RESTART_S = 1.0


async def serve(
    listening: socket.socket, broker: ManagedBroker, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    """Answers until `stop` returns. If the server breaks, it is started again and nothing else suffers."""
    for module in ("amqp_server.management.server", "amqp_server.management.http"):
        await trio.to_thread.run_sync(importlib.import_module, module)
    with listening:
        while True:
            try:
                await _serve(listening, broker, config, stop)
                return
            except Exception:
                log.exception("the management listener broke; it starts again in %s s", RESTART_S)
                await trio.sleep(RESTART_S)


async def _serve(
    listening: socket.socket, broker: ManagedBroker, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    from amqp_server.management.http import Api
    from amqp_server.management.server import Limits, Server
    from amqp_server.management.slices import Slices

    slices = Slices(config.http_slice_ms)
    api = Api(
        broker,
        config.http_body_bytes_max,
        per_user_max=config.http_requests_per_user_max,
        slices=slices,
        filter_ms=config.http_filter_ms,
    )
    # The server closes what it serves; the socket itself has to survive a restart.
    own = listening.dup()
    own.setblocking(False)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(own))
    server = Server(api.app(config.http_requests_max), Limits.of(config), slices)
    await server.serve(listener, stop, DRAIN_S)
