"""Events of connections, channels, consumers and logins, with RabbitMQ's names. See broker.events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_server.broker.topology.events import Events
    from amqp_server.channel.channel import Channel
    from amqp_server.channel.connection import Consuming
    from amqp_server.connection.served import Served


def _wanted(session: Served) -> Events | None:
    """Return the events if any are wanted. Clients within the node open no connection, so they cause no
    events.
    """
    events = session.broker.events
    return events if events is not None and session.is_open and events.wanted else None


def _place(session: Served) -> dict[str, object]:
    """Address and login of a client."""
    client = session.client
    there, _, here = client.name.partition(" -> ")
    peer_host, _, peer_port = there.rpartition(":")
    host, _, port = here.rpartition(":")
    return {
        "host": host,
        "port": int(port) if port.isdigit() else 0,
        "peer_host": peer_host,
        "peer_port": int(peer_port) if peer_port.isdigit() else 0,
        "protocol": "{0,9,1}",
        "auth_mechanism": client.mechanism,
        "ssl": client.tls is not None,
    }


def logged_in(session: Served, user: str, reason: str = "") -> None:
    """A login was accepted, or refused for a reason."""
    events = session.broker.events
    if events is None or not events.wanted:
        return
    told = {"name": user, "connection_type": "network", "connection_name": session.client.name} | _place(
        session
    )
    if reason:
        events.tell("user.authentication.failure", told | {"error": reason})
    else:
        events.tell("user.authentication.success", told)


def opened(session: Served) -> None:
    events, client = _wanted(session), session.client
    if events is None:
        return
    limits = session.limits
    told: dict[str, object] = {
        "type": "network",
        "pid": events.pid(session.number),
        "name": client.name,
        **_place(session),
        "user": client.username,
        "vhost": "" if session.vhost is None else session.vhost.name,
        "timeout": limits.heartbeat_s,
        "frame_max": limits.frame_max,
        "channel_max": limits.channel_max,
        "client_properties": client.properties,
        "connected_at": client.connected_at_ms,
        "node": session.broker.replication.node,
        "user_provided_name": client.given_name,
        "user_who_performed_action": client.username,
    }
    events.tell("connection.created", told)


def kept(session: Served) -> None:
    """The connection is open in this process from now on: if that is killed, the next one tells its end."""
    events = session.broker.events
    if events is not None and events.kept is not None and session.is_open:
        events.kept.begun(session.number, _end_of(session, events))


def forgotten(session: Served) -> None:
    """The connection has ended in this process, or goes on in another one."""
    events = session.broker.events
    if events is not None and events.kept is not None:
        events.kept.ended(session.number)


def closed(session: Served) -> None:
    forgotten(session)
    events = _wanted(session)
    if events is not None:
        events.tell("connection.closed", _end_of(session, events))


def _end_of(session: Served, events: Events) -> dict[str, object]:
    client, node = session.client, session.broker.replication.node
    return end_told(client.name, events.pid(session.number), node, client.properties, client.username)


def end_told(
    name: str, pid: str, node: str, properties: Mapping[str, object], user: str
) -> dict[str, object]:
    """Return the headers of connection.closed."""
    return {
        "name": name,
        "pid": pid,
        "node": node,
        "client_properties": properties,
        "user_who_performed_action": user,
    }


def channel_opened(session: Served, channel: Channel) -> None:
    events, client = _wanted(session), session.client
    if events is not None:
        told: dict[str, object] = {
            "pid": events.pid(session.number, channel.number),
            "name": f"{client.name} ({channel.number})",
            "connection": events.pid(session.number),
            "number": channel.number,
            "user": client.username,
            "vhost": channel.vhost.name,
            "user_who_performed_action": client.username,
        }
        events.tell("channel.created", told)


def channel_closed(session: Served, channel: Channel) -> None:
    events = _wanted(session)
    if events is not None:
        user = session.client.username
        events.tell(
            "channel.closed",
            {"pid": events.pid(session.number, channel.number), "user_who_performed_action": user},
        )


def consumer(session: Served, channel: int, consumer: Consuming, *, created: bool) -> None:
    events = _wanted(session)
    if events is None:
        return
    told: dict[str, object] = {
        "consumer_tag": consumer.tag,
        "channel": events.pid(session.number, channel),
        "queue": consumer.queue.name,
        "vhost": consumer.queue.vhost.name,
        "user_who_performed_action": session.client.username,
    }
    if created:
        told |= {
            "exclusive": consumer.exclusive,
            "ack_required": not consumer.no_ack,
            "prefetch_count": consumer.prefetch,
            "arguments": consumer.arguments,
        }
    events.tell("consumer.created" if created else "consumer.deleted", told)
