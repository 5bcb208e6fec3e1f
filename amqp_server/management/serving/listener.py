"""Serves the management listener: imported and started after its socket is bound.

Hypercorn and Starlette take 100 ms to import, and `mqd ready` does not wait for that: requests that arrive
before wait in the socket's backlog.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from amqp_server.config import Config
from amqp_server.connection.sockets.proxy_protocol import Proxies
from amqp_server.imports import imported

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts
    from amqp_server.management.request.time_slices import Slices
    from amqp_server.management.serving.http import Api

log = logging.getLogger("mqd.management")
DRAIN_S = 1
RESTART_S = 1.0


async def serve(
    listening: socket.socket, parts: ManagedParts, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    """Answer until `stop` returns. If the server fails, it is started again, and the rest of the node goes
    on.
    """
    modules = ("amqp_server.management.serving.server", "amqp_server.management.serving.http")
    await _kept_up(listening, modules, lambda: _serve(listening, parts, config, stop))


async def answer_others(parts: ManagedParts, config: Config) -> None:
    """Answer requests of other nodes' management APIs if this node has no listener."""
    await imported("amqp_server.management.serving.http")
    api, slices = _api(parts, config)
    assert parts.administration is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.sampler.run, slices.rest)
        nursery.start_soon(parts.administration.answer, api.answer)


async def serve_metrics(
    listening: socket.socket, parts: ManagedParts, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    """Serve the listener of metrics in the same way."""
    modules = ("amqp_server.management.serving.server", "amqp_server.management.serving.metrics_app")
    await _kept_up(listening, modules, lambda: _serve_metrics(listening, parts, config, stop))


async def _kept_up(
    listening: socket.socket, modules: tuple[str, ...], serve: Callable[[], Awaitable[None]]
) -> None:
    await imported(*modules)
    with listening:
        while True:
            try:
                await serve()
                return
            except Exception:
                log.exception("a management listener failed; it restarts in %s s", RESTART_S)
                await trio.sleep(RESTART_S)


async def _serve_metrics(
    listening: socket.socket, parts: ManagedParts, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    from amqp_server.management.request.time_slices import Slices
    from amqp_server.management.serving.metrics_app import Metrics
    from amqp_server.management.serving.server import Limits, Server
    from amqp_server.management.statistics.metric_values import Measures

    slices = Slices(config.http_slice_ms, parts.clients_wait)
    app = Metrics(Measures(parts), slices, config.metrics_objects_max).app()
    files = parts.descriptors
    server = Server(app, Limits.of(config, files.http_max), slices, parts.broker.log_limit)
    await server.serve(listening, stop, DRAIN_S, files.failed)


def _api(parts: ManagedParts, config: Config) -> tuple[Api, Slices]:
    from amqp_server.management.request.time_slices import Slices
    from amqp_server.management.serving.http import Api
    from amqp_server.management.serving.page_sessions import SessionLimits

    slices = Slices(config.http_slice_ms, parts.clients_wait)
    api = Api(
        parts,
        config.http_body_bytes_max,
        per_user_max=config.http_requests_per_user_max,
        memory_bytes_max=config.http_memory_budget_bytes,
        slices=slices,
        filter_ms=config.http_filter_ms,
        page=config.http_page,
        sessions=SessionLimits(
            config.http_sessions_max,
            config.http_sessions_per_user_max,
            config.http_sessions_bytes_max,
            config.http_session_idle_s,
            config.http_session_age_s,
        ),
    )
    return api, slices


async def _serve(
    listening: socket.socket, parts: ManagedParts, config: Config, stop: Callable[[], Awaitable[None]]
) -> None:
    from amqp_server.management.serving.page_files import page_files
    from amqp_server.management.serving.server import Limits, Server

    if config.http_page:
        # Compressing the files takes 40 ms. The result is cached.
        await trio.to_thread.run_sync(page_files)
    api, slices = _api(parts, config)
    proxies = Proxies(config.proxy_sources)
    files = parts.descriptors
    connections_max = min(files.http_max, config.http_connections_max)
    # Some connections are never within a request, so that a new one can have the place of another.
    requests_max = min(config.http_requests_max, max(connections_max // 2, 1))
    limits = Limits.of(config, connections_max)
    server = Server(api.app(requests_max), limits, slices, parts.broker.log_limit, proxies)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.sampler.run, slices.rest)
        if parts.administration is not None:
            nursery.start_soon(parts.administration.answer, api.answer)
        await server.serve(listening, stop, DRAIN_S, files.failed)
        nursery.cancel_scope.cancel()
