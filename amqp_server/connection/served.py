"""A session as its log lines, its events, its handshake and the methods of channel 0 see it, so that none of
these names its class. Publishes and acks do not pass here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amqp_server.broker.topology.sessions import BrokerSession
from amqp_server.connection.client import AgreedLimits, Client
from amqp_server.connection.state import State

if TYPE_CHECKING:
    from pamqp import base

    from amqp_server.broker.broker import Broker
    from amqp_server.broker.topology.vhost import VHost
    from amqp_server.config import Config
    from amqp_server.connection.login.sasl import Credentials


class Served(BrokerSession, Protocol):
    """See amqp_server.connection.session."""

    broker: Broker
    config: Config
    state: State
    vhost: VHost | None
    limits: AgreedLimits
    #: User and password of a login; the edge verifies them.
    login: Credentials | None

    @property
    def client(self) -> Client: ...

    @property
    def is_open(self) -> bool:
        """True from the open of the vhost until the connection is released."""

    def send(self, method: base.Frame) -> None:
        """Send a method on channel 0."""

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """The limits were agreed."""

    def opened(self) -> None:
        """The vhost is open."""

    def update_secret(self, secret: str) -> None:
        """The client has a new token for the edge to verify."""

    def closed_by_client(self) -> None:
        """The client has closed: finish its messages, and answer when they are on disk."""


__all__ = ["Served"]
