"""Serves the management listener: imported and started after its socket is bound.

Hypercorn and Starlette take 100 ms to import, and `mqd ready` does not wait for that: requests that come meanwhile
wait in the socket's backlog.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from amqp_server.config import Config

if TYPE_CHECKING:
    from amqp_server.management.managed_broker import ManagedBroker

log = logging.getLogger("mqd.management")
#: Hypercorn's own, which would greet at every start.
server_log = logging.getLogger("mqd.management.server")
server_log.setLevel(logging.WARNING)

BACKLOG = 128
#: Time for one read of a request, so that a slow one holds its connection only so long.
READ_TIMEOUT_S = 30
DRAIN_S = 1
RESTART_S = 1.0


async def serve(
    listening: socket.socket, broker: ManagedBroker, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    """Answers until `stop` returns. If the server breaks, it is started again and nothing else suffers."""
    for module in ("hypercorn.trio", "amqp_server.management.http"):
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
    from hypercorn.config import Config as HypercornConfig
    from hypercorn.trio import serve as hypercorn_serve

    from amqp_server.management.http import Api
    from amqp_server.management.reasons import give_reasons

    settings = HypercornConfig()
    # Hypercorn closes what it serves; the socket itself has to survive a restart.
    settings.bind = [f"fd://{os.dup(listening.fileno())}"]
    settings.backlog = BACKLOG
    settings.include_server_header = False
    settings.accesslog = None
    settings.errorlog = server_log
    settings.read_timeout = READ_TIMEOUT_S
    settings.graceful_timeout = DRAIN_S
    api = Api(
        broker, config.http_body_bytes_max, slice_ms=config.http_slice_ms, filter_ms=config.http_filter_ms
    )
    give_reasons()
    app = api.app(config.http_requests_max)
    await hypercorn_serve(app, settings, shutdown_trigger=stop)  # type: ignore[arg-type]
