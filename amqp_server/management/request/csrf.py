"""Recognises requests that a page of another origin has made a browser send."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

JSON = "application/json"


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
