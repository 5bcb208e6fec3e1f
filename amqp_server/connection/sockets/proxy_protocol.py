"""The header of the PROXY protocol, versions 1 and 2, with which a proxy names the client of a connection.

Any client can send such a header, so it is only read from the configured proxies. They must send it: mqd
never guesses whether a connection has one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
#: Maximum length of a version 1 header, with its CRLF.
_LINE_BYTES_MAX: Final = 107
_FIXED_BYTES: Final = 16
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
#: Stream families of version 2, with the bytes of one address. Unix sockets have no address of a client.
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
_WITHOUT_ADDRESS: Final = (0x00, 0x31)


class BadProxyHeader(Exception):
    """A proxy has sent something that is no header."""


class HostPort(NamedTuple):
    """An address and a port."""

    host: str
    port: int


class ProxyHeader(NamedTuple):
    #: Bytes of the header.
    size: int
    #: The client, and the address that it connected to; None if the proxy connects for itself, or does not
    #: know them.
    client: HostPort | None = None
    here: HostPort | None = None


def parse_header(data: bytes, most: int) -> ProxyHeader | None:
    """Return the header at the beginning of `data`; None if it is incomplete. Raises BadProxyHeader.

    `most` is the maximum size of a header.
    """
    if data.startswith(SIGNATURE[: len(data)]):
        return _version_2(data, most)
    if data.startswith(b"PROXY "[: len(data)]):
        return _version_1(data)
    raise BadProxyHeader("does not begin with a header of the PROXY protocol")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= _LINE_BYTES_MAX:
            raise BadProxyHeader(f"the line is longer than {_LINE_BYTES_MAX} bytes")
        return None
    try:
        words = data[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise BadProxyHeader("the line is not ASCII") from None
    if words[1] == "UNKNOWN":
        return ProxyHeader(end + 2)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise BadProxyHeader("the line does not name a protocol, two addresses and two ports")
    version = 4 if words[1] == "TCP4" else 6
    client = HostPort(_address(words[2], version), _port(words[4]))
    return ProxyHeader(end + 2, client, HostPort(_address(words[3], version), _port(words[5])))


def _address(text: str, version: int) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        raise BadProxyHeader("an address is malformed") from None
    # An address with a zone is valid on one machine only.
    if found.version != version or "%" in text:
        raise BadProxyHeader(f"an address is not an IPv{version} address")
    return str(found)


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65_535:
        raise BadProxyHeader("a port is malformed")
    return int(text)


def _version_2(data: bytes, most: int) -> ProxyHeader | None:
    if len(data) < _FIXED_BYTES:
        return None
    version, command, family = data[12] >> 4, data[12] & 15, data[13]
    size = _FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise BadProxyHeader(f"version {version} or command {command} is unknown")
    if size > most:
        raise BadProxyHeader(f"the header has {size} bytes, which is too long")
    if len(data) < size:
        return None
    if command == 0 or family in _WITHOUT_ADDRESS:
        return ProxyHeader(size)
    width = _ADDRESS_BYTES.get(family)
    if width is None:
        raise BadProxyHeader(f"address family {family} is not one of stream sockets")
    ports = _FIXED_BYTES + 2 * width
    if size < ports + 4:
        raise BadProxyHeader("too short for its addresses")
    # Ignore the details that follow.
    return ProxyHeader(
        size,
        HostPort(_from_bytes(data[16 : 16 + width]), int.from_bytes(data[ports : ports + 2], "big")),
        HostPort(_from_bytes(data[16 + width : ports]), int.from_bytes(data[ports + 2 : ports + 4], "big")),
    )


def _from_bytes(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


def plain_host(address: str) -> str:
    """Return the address as an operator writes it: a listener or proxy for both families shows IPv4 addresses
    within IPv6 ones.
    """
    if not address.startswith("::ffff:"):
        return address
    mapped = ipaddress.IPv6Address(address.partition("%")[0]).ipv4_mapped
    return address if mapped is None else str(mapped)


class Proxies:
    """The trusted proxies."""

    def __init__(self, sources: Iterable[str]) -> None:
        """`sources` are addresses and networks. Raises ValueError."""
        self._networks = [ipaddress.ip_network(source, strict=False) for source in sources]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, peer: str) -> bool:
        """True if this is the address of a proxy."""
        if not self._networks:
            return False
        address = ipaddress.ip_address(peer.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            # The form in which a listener on both families sees an IPv4 address.
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
