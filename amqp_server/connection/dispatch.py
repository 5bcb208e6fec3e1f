"""Tables of the functions that handle methods, on channel 0 and on other channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pamqp import base, commands

from amqp_server.channel import basic_methods, exchange_methods, queue_methods
from amqp_server.channel.channel import Channel
from amqp_server.connection import handshake
from amqp_server.connection.state import State

if TYPE_CHECKING:
    from amqp_server.connection.served import Served


def _start_ok(session: Served, method: commands.Connection.StartOk, payload: bytes) -> None:
    session.login = handshake.start_ok(session, method, _sasl_response(payload))
    session.state = State.AUTHENTICATING


def _sasl_response(payload: bytes) -> bytes:
    """Return the response as bytes: pamqp decodes it as text."""
    offset = 4 + 4 + int.from_bytes(payload[4:8], "big")
    offset += 1 + payload[offset]
    size = int.from_bytes(payload[offset : offset + 4], "big")
    return payload[offset + 4 : offset + 4 + size]


def _tune_ok(session: Served, method: commands.Connection.TuneOk, payload: bytes) -> None:
    handshake.tune_ok(session, method)
    session.state = State.OPENING


def _open(session: Served, method: commands.Connection.Open, payload: bytes) -> None:
    handshake.open_vhost(session, method)
    session.opened()


def _update_secret(session: Served, method: commands.Connection.UpdateSecret, payload: bytes) -> None:
    # The secret as bytes, like the response of a login.
    secret = payload[8 : 8 + int.from_bytes(payload[4:8], "big")]
    session.update_secret(secret.decode(errors="replace"))


def _close(session: Served, method: commands.Connection.Close, payload: bytes) -> None:
    session.closed_by_client()


CONNECTION: dict[type[base.Frame], tuple[State, Callable[[Served, Any, bytes], None]]] = {
    commands.Connection.StartOk: (State.STARTING, _start_ok),
    commands.Connection.TuneOk: (State.TUNING, _tune_ok),
    commands.Connection.Open: (State.OPENING, _open),
    commands.Connection.UpdateSecret: (State.RUNNING, _update_secret),
    commands.Connection.Close: (State.RUNNING, _close),
}

CHANNEL: dict[type[base.Frame], Callable[[Channel, Any], None]] = {
    commands.Channel.Flow: basic_methods.flow,
    commands.Exchange.Declare: exchange_methods.declare,
    commands.Exchange.Delete: exchange_methods.delete,
    commands.Exchange.Bind: exchange_methods.bind,
    commands.Exchange.Unbind: exchange_methods.unbind,
    commands.Queue.Declare: queue_methods.declare,
    commands.Queue.Bind: queue_methods.bind,
    commands.Queue.Unbind: queue_methods.unbind,
    commands.Queue.Purge: queue_methods.purge,
    commands.Queue.Delete: queue_methods.delete,
    commands.Basic.Qos: basic_methods.qos,
    commands.Basic.Consume: basic_methods.consume,
    commands.Basic.Cancel: basic_methods.cancel,
    commands.Basic.Get: basic_methods.get,
    commands.Basic.Ack: basic_methods.ack,
    commands.Basic.Nack: basic_methods.nack,
    commands.Basic.Reject: basic_methods.reject,
    commands.Basic.Recover: basic_methods.recover,
    commands.Basic.RecoverAsync: basic_methods.recover_async,
    commands.Confirm.Select: basic_methods.confirm_select,
    commands.Tx.Select: basic_methods.tx_select,
    commands.Tx.Commit: basic_methods.tx_commit,
    commands.Tx.Rollback: basic_methods.tx_rollback,
}
