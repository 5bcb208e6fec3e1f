"""Connections and channels as the management API shows and closes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amqp_server.broker.traffic import Traffic
from amqp_server.channel.channel import Channel
from amqp_server.connection.session import Session, State
from amqp_server.management.objects.views import (
    ChannelView,
    ConnectionView,
)
from amqp_server.management.statistics.stats import Stats

if TYPE_CHECKING:
    from amqp_server.management.parts import ManagedParts


class ManagedConnections:
    def __init__(self, parts: ManagedParts) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._name = parts.config.node

    def sessions(self, identity: str | None = None) -> Iterator[Session]:
        """Yield connections that are logged in, those of one user only if its identity is given."""
        states = (State.OPENING, State.RUNNING, State.CLOSING)
        for session in list(self._broker.sessions):
            if not isinstance(session, Session) or session.state not in states:
                continue
            if identity is None or session.client.identity == identity:
                yield session

    @property
    def count_max(self) -> int:
        return self._parts.descriptors.connections_max

    @property
    def count(self) -> int:
        return len(self._broker.sessions)

    def views(self, identity: str | None = None, stats: Stats | None = None) -> Iterator[ConnectionView]:
        return (self._connection(session, stats) for session in self.sessions(identity))

    def find(
        self, name: str, stats: Stats | None = None, identity: str | None = None
    ) -> ConnectionView | None:
        found = (session for session in self.sessions(identity) if session.client.name == name)
        session = next(found, None)
        return None if session is None else self._connection(session, stats)

    def _connection(self, session: Session, stats: Stats | None = None) -> ConnectionView:
        client, limits, incoming = session.client, session.limits, session.incoming
        peer, _, here = client.name.partition(" -> ")
        tls = client.tls
        blocked = incoming.blocked and session.state is State.RUNNING
        return ConnectionView(
            name=client.name,
            user=client.username,
            vhost=session.vhost.name if session.vhost else "",
            peer_host=peer.rpartition(":")[0],
            peer_port=port_of(peer),
            host=here.rpartition(":")[0],
            port=port_of(here),
            node=self._name,
            state="blocked" if blocked else session.state.value,
            auth_mechanism=client.mechanism,
            channels=len(session.channels),
            channel_max=limits.channel_max,
            frame_max=limits.frame_max,
            timeout=limits.heartbeat_s,
            connected_at=client.connected_at_ms,
            client_properties=client.properties,
            ssl=tls is not None,
            ssl_protocol=tls and tls.protocol,
            peer_cert_subject=tls and tls.subject,
            peer_cert_issuer=tls and tls.issuer,
            peer_cert_validity=tls and tls.validity,
            user_provided_name=client.given_name or None,
            user_who_performed_action=client.username,
            recv_cnt=incoming.received_count,
            send_cnt=session.outbox.sent_count,
            stats={} if stats is None else stats.connection(session),
            recv_oct=incoming.received_bytes,
            send_oct=session.outbox.sent_bytes,
            send_pend=session.outbox.size,
        )

    def close(self, name: str, reason: str) -> bool:
        """Return True if there was a connection of this name."""
        found = [session for session in self.sessions() if session.client.name == name]
        for session in found:
            self._broker.turn.run(session.force_close, reason)
        return bool(found)

    def clients(self, identity: str | None = None) -> Iterator[list[Channel]]:
        """Yield the channels of each connection, those of one user only if it is given."""
        return (list(session.channels.values()) for session in self.sessions(identity))

    def ended_traffic(self) -> Traffic:
        """Return the counts of this node's closed channels, in separate counters."""
        total = Traffic()
        total.add(self._broker.counts.ended.traffic)
        return total

    def channels(self, identity: str | None = None, stats: Stats | None = None) -> Iterator[ChannelView]:
        return (
            self._channel(session, channel, stats)
            for session in self.sessions(identity)
            for channel in list(session.channels.values())
        )

    def channels_of(
        self, connection: str, stats: Stats | None = None, identity: str | None = None
    ) -> Iterator[ChannelView]:
        return (
            self._channel(session, channel, stats)
            for session in self.sessions(identity)
            if session.client.name == connection
            for channel in list(session.channels.values())
        )

    def _channel(self, session: Session, channel: Channel, stats: Stats | None = None) -> ChannelView:
        peer = session.client.name.partition(" -> ")[0]
        return ChannelView(
            name=f"{session.client.name} ({channel.number})",
            number=channel.number,
            user=session.client.username,
            vhost=channel.vhost.name,
            connection_details={
                "name": session.client.name,
                "peer_host": peer.rpartition(":")[0],
                "peer_port": port_of(peer),
            },
            user_who_performed_action=session.client.username,
            stats={} if stats is None else stats.channel(channel),
            node=self._name,
            state="closing" if channel.closing else "running",
            confirm=channel.confirms is not None,
            transactional=channel.tx is not None,
            consumer_count=len(channel.subscriptions),
            messages_unacknowledged=channel.unacked.count,
            messages_unconfirmed=0 if channel.confirms is None else channel.confirms.unconfirmed_count,
            messages_uncommitted=0 if channel.tx is None else channel.tx.published_count,
            acks_uncommitted=0 if channel.tx is None else channel.tx.settled_count,
            prefetch_count=channel.prefetch,
            global_prefetch_count=channel.window.limit,
        )


def port_of(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else 0
