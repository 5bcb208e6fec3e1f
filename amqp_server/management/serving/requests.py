"""What each request and response of the listener goes through: the limit of a body, whether a page of another
origin has made a browser send it, and the headers of answers.
"""

from __future__ import annotations

from contextlib import aclosing
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from amqp_server.management.request.answer import Refusal, encode
from amqp_server.management.request.memory_budget import Held

JSON = "application/json"
# The API is for tools and for mqd's own page: browsers must not frame, cache, sniff or run its answers.
HEADERS = {
    "cache-control": "no-cache, no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


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


def is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON


def is_of_another_page(request: Request) -> bool:
    """True for a request that a form of another page can make a browser send with its remembered login.

    Tools send bodies under any content type, `curl -d` as a form. Browsers name the page's origin, and send a
    preflight request before JSON.
    """
    return not is_json(request) and names_another_page(request)


def is_by_tls(request: Request) -> bool:
    """True if the browser speaks TLS, to this node or to a proxy in front of it."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def names_another_page(request: Request) -> bool:
    """True if the browser says that the request is of a page of another origin."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        return True
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def refuse(refusal: Refusal, allow: str = "", *, challenge: bool = True) -> Response:
    """Without a `challenge`, browsers do not show their password dialog."""
    headers = dict(HEADERS)
    if refusal.status == 401 and challenge:
        headers["www-authenticate"] = 'Basic realm="mqd Management", charset="UTF-8"'
    if allow:
        headers["allow"] = allow
    return Response(encode(refusal.body), refusal.status, headers, JSON)
