"""Headers that every answer has, and refusals as responses."""

from __future__ import annotations

from starlette.responses import Response

from amqp_server.management.request.answer import Refusal, encode
from amqp_server.management.request.csrf import JSON

# The API is for tools and for mqd's own page: browsers must not frame, cache, sniff or run its answers.
HEADERS = {
    "cache-control": "no-cache, no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def refuse(refusal: Refusal, allow: str = "", *, challenge: bool = True) -> Response:
    """Without a `challenge`, browsers do not show their password dialog."""
    headers = dict(HEADERS)
    if refusal.status == 401 and challenge:
        headers["www-authenticate"] = 'Basic realm="mqd Management", charset="UTF-8"'
    if allow:
        headers["allow"] = allow
    return Response(encode(refusal.body), refusal.status, headers, JSON)
