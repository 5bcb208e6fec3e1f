"""Asks the backends that check passwords, in the order of `auth_backends`, until one lets the user in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_server.config import INTERNAL_BACKEND
from amqp_server.connection.login.http_backend import BackendFailed, TooManyLogins
from amqp_server.connection.login.password_checks import Outcome, PasswordChecks

if TYPE_CHECKING:
    from amqp_server.broker.access.token_permissions import Token
    from amqp_server.broker.access.users import Users
    from amqp_server.config import Config
    from amqp_server.connection.login.http_backend import HttpBackend

logger = logging.getLogger("mqd.connection")

#: Reason for the log when the HTTP backend has not answered a login.
UNANSWERED = "the HTTP backend has not answered"


class Authentication:
    def __init__(
        self, users: Users, config: Config, checks: PasswordChecks, backend: HttpBackend | None
    ) -> None:
        self._users = users
        self._config = config
        self._checks = checks
        self._backend = backend

    async def log_in(
        self, peer: str, name: str, password: str, waiting_max: int | None = None
    ) -> tuple[Outcome, str, Token | None]:
        """Return the outcome, the reason of a refusal for the log, and the token with the tags of a user of
        the HTTP backend.
        """
        checks, backend = self._checks, self._backend
        if backend is None:
            return await checks.check(peer, name, password, waiting_max), "", None
        failed = False
        for number, kind in enumerate(self._config.auth_backends):
            if kind == INTERNAL_BACKEND:
                outcome = await checks.check(peer, name, password, waiting_max, counts=False)
                if outcome is not Outcome.REFUSED:
                    return outcome, "", None
                continue
            if not number:
                # An address whose logins fail waits before the first check, whichever backend makes it.
                outcome = await checks.check_otherwise(peer, _nothing, waiting_max)
                if outcome is Outcome.BUSY:
                    return outcome, "", None
            try:
                token = await backend.log_in(peer, name, password)
            except TooManyLogins:
                return Outcome.BUSY, "", None
            except BackendFailed as failure:
                backend.log_failure(failure, name)
                failed = True
                continue
            if token is not None:
                return Outcome.ACCEPTED, "", token
        # While the backend does not answer, its users have given no wrong password, and must not slow down
        # other users of their address.
        if not failed or self._users.get(name) is not None:
            checks.failed(peer)
        return Outcome.REFUSED, UNANSWERED if failed else "", None

    async def asked_elsewhere(self, name: str, password: str) -> bool:
        """Return whether the HTTP backend accepts this password, for an administrator's question."""
        if self._backend is None:
            return False
        try:
            return await self._backend.log_in("", name, password) is not None
        except (TooManyLogins, BackendFailed):
            return False

    async def log_in_by_certificate(self, peer: str, name: str) -> tuple[Outcome, str, Token | None]:
        """Check whether the user in a certificate exists."""
        if not name:
            return Outcome.REFUSED, "the client showed no certificate with a user name", None
        for kind in self._config.auth_backends:
            if kind == INTERNAL_BACKEND:
                if self._users.get(name) is not None:
                    return Outcome.ACCEPTED, "", None
            elif self._backend is not None:
                try:
                    token = await self._backend.log_in(peer, name, None)
                except (TooManyLogins, BackendFailed) as failure:
                    return Outcome.REFUSED, f"{UNANSWERED}: {failure}", None
                if token is not None:
                    return Outcome.ACCEPTED, "", token
        return Outcome.REFUSED, "the user of the certificate does not exist", None


async def _nothing() -> bool:
    return True
