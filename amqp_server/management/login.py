"""Finds the user who sent a request: HTTP's basic authentication against the broker's users."""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING

from amqp_server.broker.users import MANAGEMENT, User
from amqp_server.connection.password_checks import Outcome, source_of
from amqp_server.management.answer import Refusal, login_failed, not_authorised
from amqp_server.management.call import MAY

if TYPE_CHECKING:
    from amqp_server.management.managed_broker import ManagedBroker

logger = logging.getLogger("mqd.management")

HEADER_BYTES_MAX = 2_048
NAME_CHARS_MAX = 255


class Login:
    def __init__(self, broker: ManagedBroker, waiting_max: int) -> None:
        """`waiting_max`: requests of one address that may wait for their password to be checked."""
        self._waiting_max = waiting_max
        self._users = broker.users
        self._checks = broker.password_checks
        self._log_limit = broker.log_limit

    async def user(self, authorization: str, peer: str) -> User:
        """Raises the same refusal for an unknown user as for a wrong password."""
        name, password = _parse(authorization)
        outcome = await self._checks.check(peer, name, password, self._waiting_max)
        if outcome is Outcome.BUSY:
            self._log_refused(name, peer, "not checked, too many logins of this address have failed or wait")
            raise Refusal(429, "too_many_requests", "too many logins of this address have failed or wait")
        user = self._users.get(name)
        if outcome is Outcome.REFUSED or user is None:
            self._log_refused(name, peer, "invalid credentials")
            raise login_failed()
        if not self._users.may_connect_from(name, peer):
            raise self._refused(
                name, peer, "user can only connect via localhost", "User can only log in via localhost"
            )
        if MAY[MANAGEMENT].isdisjoint(user.tags):
            raise self._refused(name, peer, "not a management user", "Not management user")
        return user

    def _refused(self, name: str, peer: str, reason: str, answer: str) -> Refusal:
        self._log_refused(name, peer, reason)
        return not_authorised(answer)

    def _log_refused(self, name: str, peer: str, reason: str) -> None:
        """RabbitMQ's wording, for tools that search for it."""
        if self._log_limit.allows("HTTP access denied", source_of(peer)):
            text = "HTTP access denied: user '%s' - %s, from %s"
            logger.warning(text, name[:NAME_CHARS_MAX], reason, peer, extra={"peer": peer})


def _parse(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > HEADER_BYTES_MAX:
        raise login_failed()
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise login_failed() from None
    if not colon:
        raise login_failed()
    return name, password
