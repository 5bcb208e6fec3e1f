"""The client of a connection, and the limits agreed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp_server.broker.access.http_permissions import RemoteGrant
    from amqp_server.broker.access.token_permissions import Grant
    from amqp_server.connection.login.certificate_names import Tls


class Client:
    """The known properties of a client; filled during the handshake."""

    __slots__ = (
        "access",
        "acting",
        "capabilities",
        "certificate_name",
        "connected_at_ms",
        "ended",
        "expires_at_ms",
        "given_name",
        "grant",
        "identity",
        "mechanism",
        "name",
        "operates",
        "peer",
        "properties",
        "tls",
        "trusted_as",
        "username",
    )

    def __init__(self, peer: str, name: str, connected_at_ms: int) -> None:
        #: Address of the real peer.
        self.peer = peer
        #: `client host:port -> server host:port`, as RabbitMQ names connections.
        self.name = name
        #: The connection's name given by the client; shown after `name` in the log.
        self.given_name = ""
        self.connected_at_ms = connected_at_ms
        #: True if the end of the connection was logged.
        self.ended = False
        self.username = ""
        #: For a client within this process: the user on whose behalf it acts, if that is another one.
        self.acting = ""
        #: True for requests of the management API: their channels take no place of clients.
        self.operates = False
        #: The key of its permissions: the user's name, or the key of a token's grant.
        self.access = ""
        #: Who it is: another one than the user of the same name from elsewhere; see Permissions.identity.
        self.identity = ""
        #: The grant of its token or of the HTTP backend; None for a user of this broker.
        self.grant: Grant | RemoteGrant | None = None
        #: When its token expires, by the wall clock; 0 means never.
        self.expires_at_ms = 0
        #: The user in the client's certificate, or empty; None if certificates cannot log in.
        self.certificate_name: str | None = None
        #: For a client within this process: the key of its permissions after the login; None if it must
        #: authenticate.
        self.trusted_as: str | None = None
        self.mechanism = ""
        #: None without TLS.
        self.tls: Tls | None = None
        self.properties: dict[str, Any] = {}
        self.capabilities: dict[str, bool] = {}

    def can(self, capability: str) -> bool:
        """True if the client announced this capability."""
        return self.capabilities.get(capability, False)


class AgreedLimits:
    """Limits agreed by connection.tune and tune-ok."""

    __slots__ = ("channel_max", "frame_max", "heartbeat_s")

    def __init__(self, frame_max: int, channel_max: int = 0, heartbeat_s: int = 0) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s
