"""Finds the user who sent a request: by HTTP's basic authentication, or by a token."""

from __future__ import annotations

import base64
import binascii
import logging
import math
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from amqp_server.broker.access.permissions import identity_of
from amqp_server.broker.access.token_permissions import Grant
from amqp_server.broker.access.users import MANAGEMENT, User
from amqp_server.connection.login.password_checks import Outcome
from amqp_server.connection.login.tokens import Tokens, is_token
from amqp_server.management.request.answer import Refusal, login_failed, not_authorised
from amqp_server.management.request.call import MAY
from quorum_queue.links.sources import source_of

if TYPE_CHECKING:
    from amqp_server.management.objects.managed_broker import ManagedBroker

logger = logging.getLogger("mqd.management")

HEADER_BYTES_MAX = 2_048
NAME_CHARS_MAX = 255


class Caller(NamedTuple):
    user: User
    #: Scopes of the user's token; None: the broker's own permissions apply.
    scopes: tuple[str, ...] | None = None
    #: When that token expires, in seconds since 1970.
    expires_at_s: float = math.inf

    @property
    def identity(self) -> str:
        return identity_of(self.user.name, self.scopes)


class Login:
    def __init__(self, broker: ManagedBroker, waiting_max: int) -> None:
        """`waiting_max`: requests of one address that may wait for their password to be checked."""
        self._waiting_max = waiting_max
        self._users = broker.users
        self._logins = broker.logins["http"]
        self._checks = broker.password_checks
        self._authentication = broker.authentication
        self._session_s = broker.config.auth_http_session_s
        self._tokens = broker.tokens
        self._log_limit = broker.log_limit

    async def caller(self, authorization: str, peer: str) -> Caller:
        """Raises the same refusal for an unknown user as for a wrong password."""
        if not authorization:
            # The first request of a browser has no password, so it is not a failed attempt.
            raise login_failed()
        return await self._counted(self._caller(authorization, peer))

    async def by_password(self, name: str, password: str, peer: str) -> Caller:
        """Log in by name and password. Where tokens are accepted, a token may replace the password."""
        return await self._counted(self._by_password(name, password, peer))

    async def _counted(self, found: Awaitable[Caller]) -> Caller:
        try:
            caller = await found
        except Refusal:
            self._logins.refused += 1
            raise
        self._logins.accepted += 1
        return caller

    async def _caller(self, authorization: str, peer: str) -> Caller:
        tokens = self._tokens
        if tokens is None:
            return await self._user(*_parse(authorization), peer)
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return await self._by_token(tokens, secret.strip(), peer)
        return await self._by_password(*_parse(authorization, tokens.bytes_max), peer)

    async def _by_password(self, name: str, password: str, peer: str) -> Caller:
        if self._tokens is not None and is_token(password):
            return await self._by_token(self._tokens, password, peer)
        return await self._user(name, password, peer)

    def again(self, name: str, scopes: Sequence[str] | None, peer: str) -> Caller:
        """Return a user who has logged in before. Raises Refusal if the user may no longer log in."""
        user = self._users.get(name) if scopes is None else User(name, "", Grant(scopes).tags)
        if user is None:
            raise login_failed()
        self._check(user, peer)
        return Caller(user, None if scopes is None else tuple(scopes))

    async def _by_token(self, tokens: Tokens, secret: str, peer: str) -> Caller:
        outcome, reason, token = await tokens.log_in(self._checks, peer, secret, self._waiting_max)
        if outcome is Outcome.BUSY:
            raise self._busy("", peer)
        if token is None or outcome is Outcome.REFUSED:
            self._log_refused("", peer, reason)
            raise login_failed()
        user = User(token.user, "", Grant(token.scopes).tags)
        self._check(user, peer)
        return Caller(user, token.scopes, token.expires_at_s)

    async def _user(self, name: str, password: str, peer: str) -> Caller:
        outcome, reason, token = await self._authentication.log_in(peer, name, password, self._waiting_max)
        if outcome is Outcome.BUSY:
            raise self._busy(name, peer)
        if token is not None:
            # A user of the HTTP backend. The backend does not report that a user was deleted, so logins to
            # the page expire.
            caller = Caller(
                User(name, "", Grant(token.scopes).tags), token.scopes, time.time() + self._session_s
            )
            self._check(caller.user, peer)
            return caller
        user = self._users.get(name)
        if outcome is Outcome.REFUSED or user is None:
            self._log_refused(name, peer, reason or "invalid credentials")
            raise login_failed()
        self._check(user, peer)
        return Caller(user)

    def _check(self, user: User, peer: str) -> None:
        name = user.name
        if not self._users.may_connect_from(name, peer):
            raise self._refused(
                name, peer, "user can only connect via localhost", "User can only log in via localhost"
            )
        if MAY[MANAGEMENT].isdisjoint(user.tags):
            raise self._refused(name, peer, "not a management user", "Not management user")

    def _busy(self, name: str, peer: str) -> Refusal:
        self._log_refused(
            name, peer, "not checked, because too many logins of this address have failed or wait"
        )
        return Refusal(429, "too_many_requests", "too many logins of this address have failed or wait")

    def _refused(self, name: str, peer: str, reason: str, answer: str) -> Refusal:
        self._log_refused(name, peer, reason)
        return not_authorised(answer)

    def _log_refused(self, name: str, peer: str, reason: str) -> None:
        """Log in RabbitMQ's words, for tools that search for them."""
        if self._log_limit.allows("HTTP access denied", source_of(peer)):
            text = "HTTP access denied: user '%s' - %s, from %s"
            logger.warning(text, name[:NAME_CHARS_MAX], reason, peer, extra={"peer": peer})


def _parse(authorization: str, token_bytes_max: int = 0) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > HEADER_BYTES_MAX + 2 * token_bytes_max:
        raise login_failed()
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise login_failed() from None
    if not colon:
        raise login_failed()
    return name, password
