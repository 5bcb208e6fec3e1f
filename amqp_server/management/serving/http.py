"""The API as an ASGI application: from a request to a call and from an answer to a response.

Paths are matched before their percent signs are decoded: `/api/queues/%2F/a%2Fb` has four parts, not six.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from amqp_server.broker.access.users import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER, User
from amqp_server.broker.topology.events import ACTING
from amqp_server.errors import AMQPError
from amqp_server.management.request import other_nodes
from amqp_server.management.request.answer import (
    Answer,
    Refusal,
    encode,
    not_authorised,
    not_found,
    refusal_of,
)
from amqp_server.management.request.call import DEFAULT_EXCHANGE, MAY, REASON_HEADER, Call
from amqp_server.management.request.listing import Rows, picked
from amqp_server.management.request.memory_budget import ADMINISTRATORS_SHARE, Held, Memory
from amqp_server.management.request.payloads import Messages
from amqp_server.management.request.questions import Question
from amqp_server.management.request.time_slices import Slices
from amqp_server.management.resources.checks import DRAINED
from amqp_server.management.serving.endpoints import ANYBODY, ENDPOINTS, Endpoint
from amqp_server.management.serving.login import Caller, Login
from amqp_server.management.serving.page_files import PageFiles, names_etag, page_files
from amqp_server.management.serving.page_login import PATH, PageLogin, is_of_the_page
from amqp_server.management.serving.page_sessions import PageSessions, SessionLimits
from amqp_server.management.serving.requests import HEADERS, JSON, is_of_another_page, read_body, refuse

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts
    from amqp_server.management.serving.server import Connection

log = logging.getLogger("mqd.management")
audit = logging.getLogger("mqd.audit")

#: The caller of endpoints that need no login.
NOBODY = Caller(User("", ""))
#: Text for a user who lacks the tag, in RabbitMQ's words.
REFUSED = {
    MANAGEMENT: "Not management user",
    POLICYMAKER: "User not authorised to access object",
    MONITORING: "Not monitor user",
    ADMINISTRATOR: "Not administrator user",
}
#: Nodes whose part of the answer is missing.
MISSING_HEADER = "x-missing-nodes"
READS = frozenset({"GET", "HEAD"})
#: In the order of RabbitMQ's header `allow`.
METHODS = ("GET", "POST", "PUT", "DELETE")
PATH_BYTES_MAX = 8_192
QUERY_BYTES_MAX = 8_192
#: Waiting logins of one address may take one of this many places for requests.
LOGINS_SHARE = 8
#: Bytes of an answer that go to its connection at a time.
PIECE_BYTES = 64 * 1024
#: Bytes of an answer that are hashed at a time.
HASHED_BYTES = 1024 * 1024
#: Rows that are encoded in one step.
ROWS_AT_ONCE = 50


#: Finds an exchange with an empty name in a path: RabbitMQ's rabbitmqadmin writes the default exchange so.
_NAMELESS = re.compile(r"^(/api/(?:exchanges/[^/]+|bindings/[^/]+/e)/)/")


class Gate:
    """In front of the router: lets only HTTP through, and gives the router the path as the client sent it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        if len(raw_path) > PATH_BYTES_MAX or len(scope["query_string"]) > QUERY_BYTES_MAX:
            await refuse(Refusal(414, "bad_request", "URI too long"))(scope, receive, send)
            return
        path = raw_path.decode("latin-1")
        if "//" in path:
            path = _NAMELESS.sub(rf"\1{DEFAULT_EXCHANGE}/", path)
        # Several clients end every path with a slash.
        if path != "/" and path.endswith("/") and not path.endswith("//"):
            path = path[:-1]
        await self._app({**scope, "path": path}, receive, send)


class Slots:
    """Places for requests of users who are logged in. Probes and failed logins take none.

    A request takes its slot when its body is here, and holds it until the answer was sent; the server closes
    connections of clients that do not read theirs. No user may hold all slots, and some are left to
    administrators.
    """

    def __init__(self, requests_max: int, per_user_max: int) -> None:
        self._requests_max = requests_max
        self._per_user_max = per_user_max
        self._requests = 0
        self._by_user: dict[str, int] = {}

    @contextmanager
    def counted(self, user: str) -> Iterator[None]:
        """Count a request for its user, from its login on."""
        own = self._by_user.get(user, 0)
        if own >= self._per_user_max:
            raise _busy()
        self._by_user[user] = own + 1
        try:
            yield
        finally:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    @contextmanager
    def taken(self, *, administrator: bool) -> Iterator[None]:
        left = 0 if administrator else self._requests_max // ADMINISTRATORS_SHARE
        if self._requests >= self._requests_max - left:
            raise _busy()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1


def _busy() -> Refusal:
    return Refusal(503, "busy", "too many requests at a time")


class Api:
    def __init__(
        self,
        parts: ManagedParts,
        body_bytes_max: int,
        *,
        per_user_max: int = 64,
        memory_bytes_max: int = 1 << 62,
        slices: Slices | None = None,
        filter_ms: int = 1_000,
        page: bool = True,
        sessions: SessionLimits | None = None,
    ) -> None:
        self._parts = parts
        self._with_page = page
        self._session_limits = sessions or SessionLimits()
        #: None: the page is not served, and cookies are no login.
        self._page: PageLogin | None = None
        self._body_bytes_max = body_bytes_max
        self._per_user_max = per_user_max
        self._memory = Memory(memory_bytes_max)
        self._filter_ms = filter_ms
        self._slices = slices or Slices(2)
        self._login: Login

    def app(self, requests_max: int) -> ASGIApp:
        # Failed logins of one address must leave most of the places to others.
        self._login = Login(self._parts, max(1, requests_max // LOGINS_SHARE))
        self._slots = Slots(requests_max, self._per_user_max)
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in ENDPOINTS:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        routes = [Route(path, _Path(self, by_method)) for path, by_method in by_path.items()]
        # For probes, which have no login. They learn only that the node runs and that it can serve.
        routes += [Route("/health", _alive), Route("/health/ready", self._ready)]
        if self._with_page:
            sessions = PageSessions(self._parts.broker.access.users, self._session_limits)
            self._page = PageLogin(self._parts, self._login, sessions)
            files = PageFiles(page_files(), self._slices)
            routes += [Route("/", files), Route("/page/{path:path}", files)]
            routes.append(Route(PATH, self._page))
        starlette = Starlette(routes=routes, exception_handlers={HTTPException: unrouted})
        starlette.router.redirect_slashes = False
        return Gate(starlette)

    async def _ready(self, request: Request) -> Response:
        cluster = self._parts.administration
        obstacle = "" if cluster is None else cluster.obstacle()
        if self._parts.draining.drained:
            obstacle = DRAINED
        if obstacle:
            return refuse(Refusal(503, "unavailable", obstacle))
        return await _alive(request)

    async def serve(self, endpoint: Endpoint, request: Request, send: Send) -> None:
        async def respond(response: Response) -> None:
            await response(request.scope, request.receive, send)

        if endpoint.who == ANYBODY:
            with self._memory.hold("", administrator=False) as held:
                await respond(await self._respond(endpoint, request, NOBODY, b"", held))
            return
        try:
            caller = await self._caller(endpoint, request)
            identity, administrator = caller.identity, ADMINISTRATOR in caller.user.tags
            with ExitStack() as stack:
                stack.enter_context(self._slots.counted(identity))
                held = stack.enter_context(self._memory.hold(identity, administrator=administrator))
                if administrator:
                    stack.enter_context(_protected(request))
                # A client may send its body slowly, so it has no slot meanwhile.
                try:
                    body = await self._body(endpoint, request, held)
                except Refusal as refusal:
                    _note(endpoint, request, caller.user, refusal.status)
                    raise
                stack.enter_context(self._slots.taken(administrator=administrator))
                if not administrator:
                    stack.enter_context(_protected(request))
                await respond(await self._respond(endpoint, request, caller, body, held))
        except Refusal as refusal:
            # Sent without a slot: the refusal is small, and the client may read it slowly.
            await respond(refuse(refusal, challenge=not is_of_the_page(request)))
        except ClientDisconnect:
            await respond(Response(status_code=400))

    async def _body(self, endpoint: Endpoint, request: Request, held: Held) -> bytes:
        if endpoint.method not in READS and is_of_another_page(request):
            raise Refusal(
                415, "bad_request", f"content-type must be {JSON} in a request from another web page"
            )
        return await read_body(request, self._body_bytes_max, held)

    async def _respond(
        self, endpoint: Endpoint, request: Request, caller: Caller, body: bytes, held: Held
    ) -> Response:
        call: Call | None = None
        ACTING.set(caller.user.name)
        try:
            call = self._call(endpoint, request, caller, body, held)
            response = await _response(await self._answer(endpoint, call), call)
            _note(endpoint, request, caller.user, response.status_code)
            return response
        except Refusal as refusal:
            _note(endpoint, request, caller.user, refusal.status)
            return refuse(refusal, challenge=not is_of_the_page(request))
        except AMQPError as error:
            refused = refusal_of(error)
            _note(endpoint, request, caller.user, refused.status)
            return refuse(refused, challenge=not is_of_the_page(request))
        except Exception:
            # The client gets no internal details; the log gets the path, never the headers.
            log.exception("%s %s failed", request.method, request.url.path)
            return refuse(Refusal(500, "internal_server_error", "Internal Server Error"))
        finally:
            if call is not None:
                call.end()

    async def _caller(self, endpoint: Endpoint, request: Request) -> Caller:
        peer = request.client.host if request.client else ""
        authorization, page = request.headers.get("authorization", ""), self._page
        # A browser may also send a password that it remembers; requests of the page always belong to its
        # session.
        if page is not None and page.has_cookie(request) and (not authorization or is_of_the_page(request)):
            caller = page.caller(request, changes=endpoint.method not in READS)
        else:
            caller = await self._login.caller(authorization, peer)
        if MAY[endpoint.who].isdisjoint(caller.user.tags):
            raise not_authorised(REFUSED[endpoint.who])
        return caller

    def _call(self, endpoint: Endpoint, request: Request, caller: Caller, body: bytes, held: Held) -> Call:
        path = {name: _decoded(part) for name, part in request.path_params.items()}
        query = dict(request.query_params)
        return Call(
            self._parts,
            caller.user,
            path,
            query,
            body,
            self._slices,
            self._filter_ms,
            request.headers,
            method=endpoint.method,
            route=endpoint.path,
            everywhere=endpoint.everywhere,
            scopes=caller.scopes,
            held=held,
        )

    async def _answer(self, endpoint: Endpoint, call: Call) -> object:
        if endpoint.method in READS:
            return picked(await call.permitted(endpoint.handler), call.query)
        try:
            return await call.permitted(endpoint.handler)
        finally:
            # The change is on disk before the client gets the answer, so the answer stays true after a crash.
            # The same holds for the part of a change that was made before a refusal.
            await self._parts.commits.barrier()

    def answer(self, question: bytes) -> AsyncGenerator[bytes, None]:
        """Yield this node's part of the answer to another node's request. See other_nodes.ask_others."""
        return other_nodes.answer(question, self._call_of)

    def _call_of(self, question: Question) -> tuple[other_nodes.Handler, Call]:
        """Raises Refusal for an endpoint that nodes do not ask each other, and for a user who no longer
        exists.
        """
        endpoint = next(
            (
                each
                for each in ENDPOINTS
                if each.everywhere and (each.method, each.path) == (question.method, question.path)
            ),
            None,
        )
        user = self._parts.broker.access.users.get(question.user)
        if question.scopes is not None:
            user = User(question.user, "", tuple(question.tags))
        if endpoint is None or user is None or MAY[endpoint.who].isdisjoint(user.tags):
            raise not_found()
        call = Call(
            self._parts,
            user,
            question.parts,
            question.query,
            question.body.encode(),
            self._slices,
            self._filter_ms,
            {REASON_HEADER: question.reason},
            method=endpoint.method,
            route=endpoint.path,
            local=True,
            scopes=question.scopes,
            part=question.part,
        )
        return endpoint.handler, call


class _Path:
    """All methods of one path. Starlette does not check the method itself, because an instance is no
    function.
    """

    def __init__(self, api: Api, by_method: Mapping[str, Endpoint]) -> None:
        self._api = api
        self._by_method = by_method
        methods = [method for method in METHODS if method in by_method]
        self._allowed = ", ".join([*(["HEAD"] if "GET" in by_method else []), *methods, "OPTIONS"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is None:
            headers = HEADERS | {"allow": self._allowed}
            status = 200 if scope["method"] == "OPTIONS" else 405
            await Response(status_code=status, headers=headers)(scope, receive, send)
            return
        await self._api.serve(endpoint, Request(scope, receive), send)


@contextmanager
def _protected(request: Request) -> Iterator[None]:
    """While a request is being answered, a new connection must not displace its connection."""
    connection: Connection | None = request.scope.get("state", {}).get("connection")
    if connection is None:
        yield
        return
    connection.protected = True
    try:
        yield
    finally:
        connection.protected = False


class InPieces(Response):
    """A body that goes to the connection piece by piece: otherwise it is copied as a whole."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytes(self.body)
        if len(body) <= PIECE_BYTES:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(body), PIECE_BYTES):
            piece, more = body[start : start + PIECE_BYTES], start + PIECE_BYTES < len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        if self.background is not None:
            await self.background()


class Streamed(Response):
    """A body that is made while it is sent; `first` is its first chunk."""

    def __init__(self, first: bytes, more: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(None, 200, headers, JSON)
        del self.headers["content-length"]
        self._first = first
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async with aclosing(self._more) as more:
            async for chunk in more:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _alive(request: Request) -> Response:
    return Response(encode({"status": "ok"}), 200, HEADERS, JSON)


def _note(endpoint: Endpoint, request: Request, user: User, status: int) -> None:
    """Log which user changed something, or tried to. The body is never logged: it may have a password."""
    if endpoint.method in READS or not endpoint.audited:
        return
    peer = request.client.host if request.client else ""
    audit.info(
        "user '%s' from %s: %s %s: %d",
        *(user.name, peer, endpoint.method, request.scope["path"], status),
        extra={"user": user.name, "peer": peer},
    )


def _decoded(part: str) -> str:
    try:
        text = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "bad_request", "path is not UTF-8") from None
    if "\0" in text:
        raise Refusal(400, "bad_request", "path has a NUL")
    return text


async def _response(answer: object, call: Call) -> Response:
    """Return the response, whose bytes the call holds. Raises Refusal if there is no room for them."""
    told = answer if isinstance(answer, Answer) else Answer(200, answer)
    headers = HEADERS | {MISSING_HEADER: ",".join(call.missing)} if call.missing else HEADERS
    if isinstance(told.body, (Rows, Messages)):
        chunks = told.body.chunks()
        first = await anext(chunks)
        # Only the next chunk shows that there is one.
        second = await anext(chunks, None)
        if second is None:
            return Response(first, told.status, headers, JSON)
        return Streamed(first + second, chunks, headers)
    response = _whole(told, headers, await _encoded(told.body, call))
    call.held.add(len(response.body))
    if told.tagged:
        etag = await _etag(response.body, call)
        if names_etag(call.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers={**headers, "etag": etag})
        response.headers["etag"] = etag
    return response


async def _etag(body: bytes | memoryview, call: Call) -> str:
    """Return the ETag of a body, which may be long."""
    digest = hashlib.blake2b(digest_size=16)
    for at in range(0, len(body), HASHED_BYTES):
        digest.update(body[at : at + HASHED_BYTES])
        if perf_counter() >= call.slices.ends:
            await call.slices.rest()
    return f'"{digest.hexdigest()}"'


async def _encoded(body: object, call: Call) -> bytes:
    """Encode a body, of which one field may have many rows, such as messages."""
    if body is None:
        return b""
    rows = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(rows, list) or len(rows) <= ROWS_AT_ONCE:
        return encode(body)
    parts = []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        await call.slices.rest()
        parts.append(encode(rows[start : start + ROWS_AT_ONCE])[1:-1])
    others = encode({name: value for name, value in body.items() if name != "messages"})
    return b'{"messages":[' + b",".join(parts) + b"]" + (b"," if len(others) > 2 else b"") + others[1:]


def _whole(told: Answer, headers: Mapping[str, str], encoded: bytes) -> Response:
    if told.location:
        headers = {**headers, "location": told.location}
    after = None if told.after is None else BackgroundTask(told.after)
    if told.body is None:
        return Response(status_code=told.status, headers=headers, background=after)
    return InPieces(encoded, told.status, headers, JSON, after)


async def unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return refuse(Refusal(status, "Object Not Found", "Not Found"))
