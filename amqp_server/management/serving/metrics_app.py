"""The metrics as an ASGI application: without a login, with a limit of scrapes at a time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from amqp_server.management.request.time_slices import Slices
from amqp_server.management.serving.http import Gate, unrouted
from amqp_server.management.statistics.metrics_text import CONTENT_TYPE, Scrape
from quorum_queue.links.sources import source_of

if TYPE_CHECKING:
    from amqp_server.management.statistics.metric_values import Measures

#: Scrapes at a time, in all and of one address; the client of one more is told to try again later. Without a
#: login there is no other bound on who may hold them.
SCRAPES_MAX, SCRAPES_PER_ADDRESS_MAX = 16, 4
#: Bytes that are sent at a time.
CHUNK_BYTES = 1 << 16


class Scraped(Response):
    """A scrape that is made while it is sent."""

    def __init__(self, scrape: Scrape) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache"}, CONTENT_TYPE)
        del self.headers["content-length"]
        self.headers["content-type"] = CONTENT_TYPE
        self._scrape = scrape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        chunk = bytearray()
        async with aclosing(self._scrape.text()) as parts:
            async for part in parts:
                chunk += part
                if len(chunk) >= CHUNK_BYTES:
                    await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
                    chunk.clear()
        await send({"type": "http.response.body", "body": bytes(chunk), "more_body": False})


class Metrics:
    """See https://www.rabbitmq.com/docs/prometheus for the paths."""

    def __init__(self, measures: Measures, slices: Slices, objects_max: int) -> None:
        self._measures = measures
        self._slices = slices
        self._objects_max = objects_max
        self._scrapes = 0
        self._by_source: dict[str, int] = {}

    def app(self) -> ASGIApp:
        routes = [
            Route("/metrics", self._aggregated),
            Route("/metrics/per-object", self._per_object),
            Route("/metrics/detailed", self._detailed),
            Route("/metrics/{registry}", _unknown),
        ]
        starlette = Starlette(routes=routes, exception_handlers={HTTPException: unrouted})
        starlette.router.redirect_slashes = False
        return Gate(starlette)

    async def _aggregated(self, request: Request) -> Response:
        return self._answer(request, Scrape(self._measures, self._slices, objects_max=self._objects_max))

    async def _per_object(self, request: Request) -> Response:
        scrape = Scrape(self._measures, self._slices, objects_max=self._objects_max, per_object=True)
        return self._answer(request, scrape)

    async def _detailed(self, request: Request) -> Response:
        query = request.query_params
        scrape = Scrape(
            self._measures,
            self._slices,
            objects_max=self._objects_max,
            families=frozenset(query.getlist("family")),
            vhosts=frozenset(query.getlist("vhost")),
        )
        return self._answer(request, scrape)

    def _answer(self, request: Request, scrape: Scrape) -> Response:
        source = source_of(request.client.host) if request.client else ""
        if self._scrapes >= SCRAPES_MAX or self._by_source.get(source, 0) >= SCRAPES_PER_ADDRESS_MAX:
            return Response("too many scrapes at a time\n", 503, {"retry-after": "5"}, "text/plain")
        return _Counted(self, scrape, source)

    def begin(self, source: str) -> None:
        self._scrapes += 1
        self._by_source[source] = self._by_source.get(source, 0) + 1

    def end(self, source: str) -> None:
        self._scrapes -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]


class _Counted(Scraped):
    def __init__(self, metrics: Metrics, scrape: Scrape, source: str) -> None:
        super().__init__(scrape)
        self._metrics = metrics
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.begin(self._source)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._metrics.end(self._source)


async def _unknown(request: Request) -> Response:
    return Response("Unknown registry", 404, None, "text/plain")
