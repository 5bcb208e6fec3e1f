"""Status lines with their reason phrases (`HTTP/1.1 404 Not Found`), which Hypercorn leaves empty.

Some clients show nothing else of a refusal, and some take an empty one for a broken answer.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import h11
import hypercorn.protocol
from hypercorn.protocol.h11 import H11Protocol

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class Http1(H11Protocol):
    async def _send_h11_event(self, event: Any) -> None:
        if isinstance(event, h11.Response):
            reason = PHRASES.get(event.status_code, b"")
            event = h11.Response(status_code=event.status_code, headers=event.headers, reason=reason)
        await super()._send_h11_event(event)


def give_reasons() -> None:
    # Hypercorn has no setting for its protocols.
    setattr(hypercorn.protocol, "H11Protocol", Http1)  # noqa: B010
