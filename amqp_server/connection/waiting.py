"""The task that waits for all sockets at once."""

from __future__ import annotations

import trio

from amqp_server.connection.poller import Poller


async def serve(poller: Poller) -> None:
    """Serve the sockets of the poller until cancelled."""
    try:
        while True:
            await trio.lowlevel.wait_readable(poller.fileno())
            while poller.serve():
                # Let other tasks run first.
                await trio.lowlevel.checkpoint()
    finally:
        trio.lowlevel.notify_closing(poller.fileno())
        poller.close(trio.lowlevel.current_trio_token().run_sync_soon)
