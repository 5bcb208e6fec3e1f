"""/api/session: how the page logs in, finds out who is logged in, and logs out.

The page never keeps a password. The browser has a cookie that scripts cannot read and that it sends only to
this host. A request that changes something also needs a second secret, which only the page can read.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from amqp_server.broker.access.users import User
from amqp_server.management.request.answer import Refusal, bad_request, encode, login_failed
from amqp_server.management.request.bodies import read_body
from amqp_server.management.request.csrf import JSON, is_by_tls, is_json, names_another_page
from amqp_server.management.request.responses import HEADERS, refuse
from amqp_server.management.serving.login import Caller, Login
from amqp_server.management.serving.page_sessions import PageSession, PageSessions

if TYPE_CHECKING:
    from amqp_server.management.objects.managed_broker import ManagedBroker

audit = logging.getLogger("mqd.audit")

PATH = "/api/session"
#: The page sends this header with every request. Then the answer has no challenge, which browsers would show
#: as a dialog.
CSRF_HEADER = "x-mqd-csrf"
BODY_BYTES_MAX = 8_192
METHODS = "DELETE, GET, POST"


class Credentials(msgspec.Struct):
    name: str
    password: str


def is_of_the_page(request: Request) -> bool:
    return CSRF_HEADER in request.headers


class PageLogin:
    def __init__(self, broker: ManagedBroker, login: Login, sessions: PageSessions) -> None:
        self._broker = broker
        self._login = login
        self._sessions = sessions
        #: The name differs per node: cookies ignore the port, and several nodes may run on one host.
        self.cookie = f"mqd-{hashlib.sha256(broker.name.encode()).hexdigest()[:16]}"
        tokens = broker.tokens
        self._body_bytes_max = BODY_BYTES_MAX + (0 if tokens is None else 2 * tokens.bytes_max)

    def has_cookie(self, request: Request) -> bool:
        return bool(request.cookies.get(self.cookie))

    def caller(self, request: Request, *, changes: bool) -> Caller:
        """Return the user of a request with a cookie. Raises Refusal."""
        session = self._session(request)
        if session is None:
            raise login_failed()
        # Cookies ignore the port: pages of another server on this host would send it, too.
        if names_another_page(request):
            raise Refusal(403, "forbidden", "the request comes from another web page")
        if changes:
            self._require_csrf(request, session)
        return self._caller_of(session, request)

    def _session(self, request: Request) -> PageSession | None:
        return self._sessions.find(request.cookies.get(self.cookie, ""))

    def _require_csrf(self, request: Request, session: PageSession) -> None:
        told = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(told.encode(), session.csrf.encode()):
            raise Refusal(403, "forbidden", f"the header {CSRF_HEADER} does not match the session")

    def _caller_of(self, session: PageSession, request: Request) -> Caller:
        return self._login.again(session.user, session.scopes, _peer(request))

    # -- /api/session ---------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Refusal as refusal:
            response = refuse(refusal, challenge=False)
        except ClientDisconnect:
            response = Response(status_code=400)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            return self._who(request)
        if request.method == "POST":
            return await self._begin(request)
        if request.method == "DELETE":
            return self._end(request)
        return refuse(Refusal(405, "method_not_allowed", f"allowed: {METHODS}"), METHODS)

    def _who(self, request: Request) -> Response:
        session = self._session(request)
        if session is None or names_another_page(request):
            return _json({"name": ""})
        try:
            caller = self._caller_of(session, request)
        except Refusal:
            return _json({"name": ""})
        return _json(self._told(caller.user, session))

    async def _begin(self, request: Request) -> Response:
        if not is_json(request) or names_another_page(request):
            raise Refusal(415, "bad_request", f"content-type must be {JSON}, in a request from this page")
        asked = await self._credentials(request)
        peer = _peer(request)
        caller = await self._login.by_password(asked.name, asked.password, peer)
        self._sessions.end(request.cookies.get(self.cookie, ""))
        id_, session = self._sessions.begin(caller)
        name = caller.user.name
        audit.info("user '%s' from %s: logged in to the page", name, peer, extra={"user": name, "peer": peer})
        response = _json(self._told(caller.user, session))
        # Without a maximum age, browsers forget the cookie when they are closed.
        response.set_cookie(
            self.cookie,
            id_,
            path="/api",
            httponly=True,
            samesite="strict",
            secure=is_by_tls(request),
        )
        return response

    def _end(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None:
            # A request that shows the secret comes from the page.
            self._require_csrf(request, session)
            self._sessions.end(request.cookies[self.cookie])
        response = Response(status_code=204, headers=HEADERS)
        response.delete_cookie(self.cookie, path="/api", httponly=True, samesite="strict")
        return response

    def _told(self, user: User, session: PageSession) -> dict[str, object]:
        return {
            "name": user.name,
            "tags": list(user.tags),
            "node": self._broker.name,
            "clustered": self._broker.cluster is not None,
            "csrf": session.csrf,
        }

    async def _credentials(self, request: Request) -> Credentials:
        body = await read_body(request, self._body_bytes_max)
        try:
            return msgspec.json.decode(body, type=Credentials)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # The refusal does not quote the body, which has a password in it.
            raise bad_request("body must be an object with name and password") from None


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _json(body: dict[str, object]) -> Response:
    return Response(encode(body), 200, HEADERS, JSON)
