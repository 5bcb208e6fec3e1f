"""Connects a shovel to a broker, or to its own node, according to its URI and within the limits of the
configuration.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import trio

from amqp_server.config import Config
from amqp_server.shovels.definition import allowed_address, allowed_name
from amqp_server.shovels.errors import ShovelError
from amqp_server.shovels.uri import Uri

#: A connection to this node as a user, or as the node itself, for a client with this name.
Local = Callable[[str | None, str], socket.socket]


class Stream(Protocol):
    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray: ...

    async def send_all(self, data: bytes) -> None: ...


async def dial(uri: Uri, config: Config, local: Local, name: str) -> trio.abc.Stream:
    """Return a connection, with its TLS. Raises ShovelError, OSError, ssl.SSLError."""
    if not uri.host:
        # A user with a password logs in like any other client.
        acts_as = None if uri.password is not None else uri.user
        return trio.SocketStream(trio.socket.from_stdlib_socket(local(acts_as, name)))
    sock = await _connect(uri, config)
    stream = trio.SocketStream(sock)
    if not uri.secure:
        return stream
    try:
        secured: trio.SSLStream[trio.SocketStream] = trio.SSLStream(
            stream,
            tls_context(uri, config),
            server_hostname=uri.server_name or uri.host,
            https_compatible=True,
        )
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        # An operator needs OpenSSL's own error.
        raise error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error from None
    except ValueError as error:
        await trio.aclose_forcefully(stream)
        # An ssl.SSLError is no ValueError, except a certificate error.
        if isinstance(error, ssl.SSLError):
            raise
        raise ShovelError(
            f"{uri.shown}: {uri.server_name or uri.host} cannot be the name in a certificate"
        ) from None
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


async def _connect(uri: Uri, config: Config) -> trio.socket.SocketType:
    """Connect to an allowed address. The name is resolved only once, so that the checked address is the one
    that is used.
    """
    hosts = config.shovel_hosts
    try:
        found = await trio.socket.getaddrinfo(uri.host, uri.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise ShovelError(f"no address was found for {uri.host}") from None
    by_name = allowed_name(uri.host, hosts)
    addresses = [
        (family, address)
        for family, _, _, _, address in found
        if by_name or allowed_address(str(address[0]), hosts)
    ]
    if not addresses:
        raise ShovelError(f"shovels may not connect to {uri.host} (shovel_hosts)")
    failure: OSError | None = None
    for family, address in addresses:
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            await sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert failure is not None
    raise ShovelError(f"{uri.shown}: {failure.strerror or failure}")


def tls_context(uri: Uri, config: Config) -> ssl.SSLContext:
    """Return the TLS context for a URI. Raises ShovelError for files that cannot be used."""
    authorities = _file(uri.ca_file, config) or config.shovel_tls_ca_file
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        if not uri.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if uri.cert_file:
            context.load_cert_chain(
                _file(uri.cert_file, config), _file(uri.key_file, config) or None, password=_no_password
            )
    except (OSError, ValueError):
        raise ShovelError(f"a certificate or key that {uri.shown} names can't be used") from None
    return context


def _no_password() -> str:
    # Otherwise OpenSSL would ask for the password on the terminal.
    raise ValueError("the key is encrypted")


def _file(name: str, config: Config) -> str:
    """Return the path of a certificate file; only files that an operator has put into the directory are
    allowed.
    """
    if not name:
        return ""
    directory = config.shovel_tls_directory
    with suppress(OSError, ValueError):
        path = Path(os.path.realpath(name))
        if directory and path.is_relative_to(os.path.realpath(directory)):
            return str(path)
    raise ShovelError("certificates of a shovel must be in the directory of shovel_tls_directory")
