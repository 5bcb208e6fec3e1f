"""Log lines about clients' connections, in RabbitMQ's wording, which tools search for.

RabbitMQ names the process of a connection after "connection"; here `<0.number.0>` holds the connection's
number. Passwords and bodies are never part of a line.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from pamqp import commands

from amqp_server.connection.sockets.handshake_failures import is_hello
from amqp_server.connection.state import State
from amqp_server.errors import AMQPError, ConnectionForced, LoginRefused, NotFound

if TYPE_CHECKING:
    from amqp_server.connection.served import Served

logger = logging.getLogger("mqd.connection")

NAME_CHARS_MAX = 255

#: Class and method of exchange.declare and queue.declare.
_DECLARES = ((40, 10), (50, 10))

#: Reason in the log for a connection that ended without a close.
LOST = "client unexpectedly closed TCP connection"
HANDSHAKE_TIMEOUT = "handshake_timeout"

#: Octets of a bad frame are sent only to its sender: they may belong to a password or to a message.
_OCTETS = re.compile(r"<<.*>>", re.DOTALL)


def _about(session: Served) -> str:
    """Return `<0.7.0> (127.0.0.1:1234 -> 127.0.0.1:5672 - name`; the caller adds more and the bracket."""
    client = session.client
    given = f" - {client.given_name}" if client.given_name else ""
    return f"<0.{session.number}.0> ({client.name}{given}"


def _where(session: Served) -> str:
    """Return `, vhost: '/', user: 'guest'`, as far as known."""
    if not session.client.username:
        return ""
    vhost = "none" if session.vhost is None else session.vhost.name
    return f", vhost: '{vhost}', user: '{session.client.username}'"


def _state(session: Served) -> str:
    return "starting" if session.state is State.AUTHENTICATING else session.state.value


def _log(
    session: Served, level: int, kind: str, text: str, lines_max: int | None = None, **fields: Any
) -> None:
    if not logger.isEnabledFor(level):
        return
    client = session.client
    source = f"user '{client.username}' at {client.peer}" if client.username else client.peer
    if session.broker.log_limit.allows(kind, source, lines_max):
        about = {"connection": client.name, "peer": client.peer}
        if client.username:
            about["user"] = client.username
        if session.vhost is not None:
            about["vhost"] = session.vhost.name
        logger.log(level, "%s", text, extra=about | fields)


def operation(where: tuple[int, int]) -> str:
    """Return the name of a method by its ids: `queue.declare`."""
    method = commands.INDEX_MAPPING.get(where[0] << 16 | where[1])
    return "none" if method is None else str(getattr(method, "name", "none")).lower()


def accepting(session: Served) -> None:
    """Log the connection when its first bytes have arrived, so that a probe that only connects leaves no
    line.
    """
    kind = "accepting AMQP connection"
    _log(session, logging.INFO, kind, f"{kind} {_about(session)})")


def bad_header(session: Served, data: bytes) -> None:
    text = f"closing AMQP connection {_about(session)}): bad_header {data[:8]!r}"
    if is_hello(data):
        text += ": the client uses TLS, but this listener does not: let the client connect to that of --amqps"
    _log(session, logging.ERROR, "bad_header", text)
    session.client.ended = True


def named(session: Served) -> None:
    """Log that the client has given its connection a name."""
    name = session.client.properties.get("connection_name")
    if not isinstance(name, str) or not name:
        return
    name = name[:NAME_CHARS_MAX]
    text = f"connection {_about(session)}) has a client-provided name: {name}"
    _log(session, logging.INFO, "client-provided name", text)
    session.client.given_name = name


def login_refused(session: Served, user: str, reason: str) -> None:
    refused = f"{session.client.mechanism} login refused"
    text = (
        f"Error on AMQP connection {_about(session)}, state: starting): {refused}: user '{user}' - {reason}"
    )
    _log(session, logging.ERROR, refused, text, user=user)


def secret_refused(session: Served, reason: str) -> None:
    text = (
        f"Error on AMQP connection {_about(session)}{_where(session)}, state: {_state(session)}): "
        f"Secret update was refused for user '{session.client.username}': {reason}"
    )
    _log(session, logging.ERROR, "Secret update was refused", text)


def secret_updated(session: Served) -> None:
    text = f"connection {_about(session)}): user '{session.client.username}' updated secret"
    _log(session, logging.INFO, "updated secret", text)


def opened(session: Served) -> None:
    vhost = "" if session.vhost is None else session.vhost.name
    text = (
        f"connection {_about(session)}): user '{session.client.username}' authenticated and granted access "
        f"to vhost '{vhost}'"
    )
    _log(session, logging.INFO, "authenticated and granted access", text)


def failed(session: Served, channel: int, error: AMQPError, where: tuple[int, int]) -> None:
    """Log that the connection is closed because of an error."""
    if isinstance(error, LoginRefused):
        # `login_refused` logs more.
        return
    told = _OCTETS.sub("…", error.text)
    level = logging.WARNING if isinstance(error, ConnectionForced) else logging.ERROR
    if session.state is State.RUNNING:
        text = (
            f"Error on AMQP connection {_about(session)}{_where(session)}, state: running), channel {channel}: "
            f'operation {operation(where)} caused a connection exception {error.name.lower()}: "{told}"'
        )
        _log(session, level, "connection exception", text, channel=channel)
        return
    user = f", user: '{session.client.username}'" if session.client.username else ""
    text = f"Error on AMQP connection {_about(session)}{user}, state: {_state(session)}): {told}"
    _log(session, level, "connection exception", text)


def channel_failed(session: Served, channel: int, error: AMQPError, where: tuple[int, int]) -> None:
    text = (
        f"Channel error on connection {_about(session)}{_where(session)}), channel {channel}: "
        f"operation {operation(where)} caused a channel exception {error.name.lower()}: {error.text}"
    )
    # A passive declare asks whether something exists; no is an answer.
    level = logging.INFO if isinstance(error, NotFound) and where in _DECLARES else logging.ERROR
    _log(session, level, "channel exception", text, channel=channel)


def closing(session: Served, reason: str = "") -> None:
    """Log the end of a connection, once; with a reason if it was not closed in order."""
    client = session.client
    if client.ended:
        return
    client.ended = True
    silent = session.state is State.HEADER
    kind = "closing AMQP connection"
    text = f"{kind} {_about(session)}{_where(session)})"
    if not reason:
        _log(session, logging.INFO, kind, text)
        return
    # A connection that has sent nothing may be a probe, or one of a thousand: no line.
    level = (
        logging.DEBUG if silent and reason == LOST else logging.WARNING if reason == LOST else logging.ERROR
    )
    # The kind is the text without the timeout: clients choose the timeout and could make any number of kinds.
    _log(session, level, reason.partition(",")[0], f"{text}: {reason}", 1 if silent else None)
