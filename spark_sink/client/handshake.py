"""From a socket to an open connection (spec 2.2.4), blocking, with every refusal as one clear text."""

from __future__ import annotations

import platform
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pika import spec
from pika.amqp_object import Method

from spark_sink.client.errors import ConnectFailed, LoginRefused
from spark_sink.client.frames import (
    FRAME_MAX,
    HEAD,
    HEAD_BYTES,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    decode_method,
    method_frame,
)
from spark_sink.client.login import Host, Login

ACCESS_REFUSED = 403
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


@dataclass(frozen=True, slots=True)
class Opened:
    sock: socket.socket
    server_properties: Mapping[str, Any]
    frame_max: int
    heartbeat_s: int


def connect(host: Host, login: Login, name: str) -> Opened:
    """Raises ConnectFailed; LoginRefused if the broker said no."""
    deadline = time.monotonic() + login.connect_timeout_ms / 1000
    try:
        sock = socket.create_connection((host.name, host.port), login.connect_timeout_ms / 1000)
    except OSError as error:
        raise ConnectFailed(f"{host}: {_reason(error)}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if login.tls is not None:
            sock = login.tls.context().wrap_socket(sock, server_hostname=login.tls.server_name or host.name)
        return _Handshake(sock, host, login, deadline).run(name)
    except ssl.SSLError as error:
        sock.close()
        raise ConnectFailed(
            f"{host}: TLS: {_reason(error)}; see the options tls.caFile and tls.verify"
        ) from error
    except OSError as error:
        sock.close()
        raise ConnectFailed(f"{host}: {_reason(error)}") from error
    except BaseException:
        sock.close()
        raise


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


class _Handshake:
    def __init__(self, sock: socket.socket, host: Host, login: Login, deadline: float) -> None:
        self._sock = sock
        self._host = host
        self._login = login
        self._deadline = deadline

    def run(self, name: str) -> Opened:
        self._sock.sendall(PROTOCOL_HEADER)
        start = self._expect(spec.Connection.Start)
        login = self._login
        response = b"\0" + login.username.encode() + b"\0" + login.password.encode()
        self._send(
            spec.Connection.StartOk(
                client_properties={
                    "product": "spark_sink",
                    "platform": f"Python {platform.python_version()}",
                    "connection_name": name,
                    "capabilities": CAPABILITIES,
                },
                mechanism="PLAIN",
                response=response,
                locale="en_US",
            )
        )
        tune = self._expect(spec.Connection.Tune, "login")
        frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        heartbeat_s = min(tune.heartbeat or login.heartbeat_s, login.heartbeat_s)
        self._send(spec.Connection.TuneOk(tune.channel_max, frame_max, heartbeat_s))
        self._send(spec.Connection.Open(login.vhost))
        self._expect(spec.Connection.OpenOk, "vhost")
        return Opened(self._sock, start.server_properties or {}, frame_max, heartbeat_s)

    def _send(self, method: Method) -> None:
        self._sock.sendall(method_frame(0, method))

    def _expect(self, kind: type[Method], step: str = "") -> Any:
        try:
            method = self._read_method()
        except EOFError:
            raise self._hung_up(step) from None
        if isinstance(method, kind):
            return method
        if isinstance(method, spec.Connection.Close):
            raise self._refused(method, step)
        raise ConnectFailed(f"{self._host}: the broker answered with {method!r} instead of {kind.__name__}")

    def _hung_up(self, step: str) -> ConnectFailed:
        if step == "login":
            # Brokers that cannot report a refused login do this: RabbitMQ before 3.2, and others since.
            return LoginRefused(f"{self._host}: {self._login_refused()}: the broker hung up during the login")
        return ConnectFailed(
            f"{self._host}: hung up during the handshake: is it an AMQP 0-9-1 broker, and is TLS right?"
        )

    def _login_refused(self) -> str:
        return (
            f"login refused for user '{self._login.username}' (see the options username and password, or url)"
        )

    def _refused(self, close: Any, step: str) -> ConnectFailed:
        if step == "login" and close.reply_code == ACCESS_REFUSED:
            return LoginRefused(f"{self._host}: {self._login_refused()}: {close.reply_text}")
        if step == "vhost":
            return LoginRefused(
                f"{self._host}: vhost '{self._login.vhost}' refused (see the option vhost, or the path of url): "
                f"{close.reply_text}"
            )
        return ConnectFailed(f"{self._host}: {close.reply_code} {close.reply_text}")

    def _read_method(self) -> Any:
        while True:
            head = self._read(HEAD_BYTES)
            if head[:4] == b"AMQP":
                raise ConnectFailed(f"{self._host}: the broker does not speak AMQP 0-9-1")
            kind, _, size = HEAD.unpack(head)
            if size > FRAME_MAX:
                raise ConnectFailed(f"{self._host}: this does not look like AMQP 0-9-1; is TLS right?")
            payload = self._read(size + OVERHEAD - HEAD_BYTES)[:-1]
            if kind == METHOD:
                return decode_method(payload)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer during the handshake within connectTimeoutMs")
            self._sock.settimeout(left_s)
            more = self._sock.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data
