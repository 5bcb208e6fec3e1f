"""The client of a connection, and the limits agreed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp_server.broker.answers import RemoteGrant
    from amqp_server.broker.grants import Grant
    from amqp_server.connection.certificate_names import Tls


class Client:
    """The client, as far as it is known; filled during the handshake."""

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
        "mechanism",
        "name",
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
        #: As the client calls the connection; shown after `name` in the log.
        self.given_name = ""
        self.connected_at_ms = connected_at_ms
        #: The log has told of the connection's end.
        self.ended = False
        self.username = ""
        #: Of a client within this process: the user for whom it acts, where that is another one.
        self.acting = ""
        #: By this its permissions are looked up: the user's name, or the key of what a token grants.
        self.access = ""
        #: What its token grants, or the HTTP backend; None for a user of this broker.
        self.grant: Grant | RemoteGrant | None = None
        #: When its token expires, by the wall clock; 0: never.
        self.expires_at_ms = 0
        #: The user that the client's certificate stands for, empty if for none; None where certificates do not log in.
        self.certificate_name: str | None = None
        #: Of a client within this process: by this its permissions are looked up once it has logged in; None: it must
        #: show who it is.
        self.trusted_as: str | None = None
        self.mechanism = ""
        #: None without TLS.
        self.tls: Tls | None = None
        self.properties: dict[str, Any] = {}
        self.capabilities: dict[str, bool] = {}

    def can(self, capability: str) -> bool:
        """True if the client announced this capability."""
        return self.capabilities.get(capability, False)


class Limits:
    """Limits that connection.tune and tune-ok have settled."""

    __slots__ = ("channel_max", "frame_max", "heartbeat_s")

    def __init__(self, frame_max: int, channel_max: int = 0, heartbeat_s: int = 0) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s
