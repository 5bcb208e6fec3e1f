"""Bodies of requests; their size is limited before they are read."""

from __future__ import annotations

from contextlib import aclosing

from starlette.requests import Request

from amqp_server.management.request.answer import Refusal
from amqp_server.management.request.memory_budget import Held


async def read_body(request: Request, bytes_max: int, held: Held | None = None) -> bytes:
    """Return the body, which `held` counts. Raises Refusal if it is larger than `bytes_max`."""
    announced = request.headers.get("content-length", "0")
    too_large = Refusal(413, "bad_request", f"body larger than {bytes_max} bytes")
    if announced.isdigit() and int(announced[:20]) > bytes_max:
        raise too_large
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > bytes_max:
                raise too_large
            if held is not None:
                held.add(len(part))
            parts.append(part)
    return b"".join(parts)
