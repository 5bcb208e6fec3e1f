"""The files of the page: those of the directory `page`, read once. No path leads to other files."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from amqp_server.management.request.answer import Refusal, not_found
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.serving.requests import HEADERS, refuse

DIRECTORY = Path(__file__).parents[1] / "page"
INDEX = "index.html"
#: Files of other kinds are not served.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
FILE_HEADERS = HEADERS | {
    # Browsers keep the file, and ask each time if it has changed.
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class PageFile(NamedTuple):
    body: bytes
    #: The body compressed, for clients that accept gzip.
    gzipped: bytes
    type: str
    etag: str


@functools.cache
def page_files(directory: Path = DIRECTORY) -> Mapping[str, PageFile]:
    """Return the files by their paths in the directory."""
    found: dict[str, PageFile] = {}
    for path in sorted(directory.rglob("*")):
        type_ = TYPES.get(path.suffix)
        if type_ is not None and path.is_file():
            body = path.read_bytes()
            # A weak ETag, because it is the same for the plain and the compressed body.
            etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[path.relative_to(directory).as_posix()] = PageFile(
                body, gzip.compress(body, mtime=0), type_, etag
            )
    return found


class PageFiles:
    """Serves `/` and the paths below `/page/`."""

    def __init__(self, files: Mapping[str, PageFile], slices: Slices) -> None:
        self._files = files
        self._slices = slices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await self._slices.rest()
        await self._response(request)(scope, receive, send)

    def _response(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return refuse(Refusal(405, "method_not_allowed", "allowed: GET"), "GET")
        # The path as the client sent it: not decoded, and only a key of the mapping, never a path of the file
        # system.
        file = self._files.get(request.path_params.get("path", INDEX))
        if file is None:
            return refuse(not_found())
        headers = FILE_HEADERS | {"etag": file.etag, "vary": "accept-encoding"}
        if names_etag(request.headers.get("if-none-match", ""), file.etag):
            return Response(status_code=304, headers=headers)
        headers |= {"content-type": file.type}
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(file.gzipped, 200, headers | {"content-encoding": "gzip"})
        return Response(file.body, 200, headers)


def names_etag(etags: str, etag: str) -> bool:
    """True if the list has this ETag; weak and strong ones compare as equal."""
    return any(each.strip().removeprefix("W/") in (etag.removeprefix("W/"), "*") for each in etags.split(","))


def _takes_gzip(encodings: str) -> bool:
    for each in encodings.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
