"""Tells requests that another page has made a browser send."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

JSON = "application/json"


def is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON


def is_of_another_page(request: Request) -> bool:
    """True for what a form of another page can make a browser send with the login that it remembers.

    Tools send bodies under any content type, `curl -d` as a form. Browsers name the page, and ask beforehand
    before they send JSON.
    """
    return not is_json(request) and names_another_page(request)


def is_by_tls(request: Request) -> bool:
    """True if the browser speaks TLS, be it to a proxy in front of this node."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def names_another_page(request: Request) -> bool:
    """True if the browser says that the request is of a page of another origin."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        return True
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
