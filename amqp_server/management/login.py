"""Finds the user who sent a request: HTTP's basic authentication against the broker's users."""

from __future__ import annotations

import base64
import binascii

import trio

from amqp_server.broker.users import MANAGEMENT, User, Users
from amqp_server.management.answer import login_failed, not_authorised
from amqp_server.management.call import MAY

HEADER_BYTES_MAX = 2_048
#: Password checks at one time: each takes a core for its while.
CHECKS_MAX = 2


class Login:
    def __init__(self, users: Users) -> None:
        self._users = users
        self._checks = trio.CapacityLimiter(CHECKS_MAX)

    async def user(self, authorization: str, peer: str) -> User:
        """Raises the same refusal for an unknown user as for a wrong password."""
        name, password = _parse(authorization)
        verified = self._users.recall(name, password)
        if verified is None:
            verified = await trio.to_thread.run_sync(self._users.verify, name, password, limiter=self._checks)
        user = self._users.get(name)
        if not verified or user is None:
            raise login_failed()
        if not self._users.may_connect_from(name, peer):
            raise not_authorised("User can only log in via localhost")
        if MAY[MANAGEMENT].isdisjoint(user.tags):
            raise not_authorised("Not management user")
        return user


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
