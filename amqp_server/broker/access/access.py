"""Access control: users, their permissions, and the answers of the HTTP backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqp_server.broker.access.http_permissions import BackendAnswers
from amqp_server.broker.access.permissions import Permissions
from amqp_server.broker.access.users import IMPERSONATOR, Users
from amqp_server.broker.metadata import Metadata
from amqp_server.config import HTTP_BACKEND, Config
from quorum_queue.clock import Clock

if TYPE_CHECKING:
    from amqp_server.broker.access.http_permissions import RemoteGrant
    from amqp_server.broker.access.token_permissions import Grant


class Access:
    """Users, their permissions, and the answers of the HTTP backend about both."""

    __slots__ = ("answers", "permissions", "users")

    def __init__(self, config: Config, metadata: Metadata, clock: Clock, changed: Callable[[], None]) -> None:
        """`changed` is called whenever permissions have changed."""
        self.users = Users(
            metadata,
            loopback_users=config.loopback_users,
            users_max=config.users_max,
            login_memory_s=config.login_memory_s,
            login_memory_entries_max=config.login_memory_entries_max,
        )
        #: Answers of the HTTP backend; the edge of the connections asks it.
        self.answers: BackendAnswers | None = None
        if HTTP_BACKEND in config.auth_backends:
            cache_ms = int(1000 * config.auth_http_cache_s)
            self.answers = BackendAnswers(clock.monotonic_ms, cache_ms, config.auth_http_cache_entries_max)
        self.permissions = Permissions(
            metadata,
            changed=changed,
            pattern_bytes_max=config.permission_pattern_bytes_max,
            match_ms=config.permission_match_ms,
            match_total_ms=config.permission_match_total_ms,
            answers=self.answers,
        )

    def impersonates(self, user: str, grant: Grant | RemoteGrant | None) -> bool:
        """Return whether a user may publish in the name of others. `grant`: see Client.grant."""
        if grant is not None:
            return IMPERSONATOR in grant.tags
        known = self.users.get(user)
        return known is not None and IMPERSONATOR in known.tags
