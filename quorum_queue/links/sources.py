"""Whose connection it is, as far as shares of addresses go."""

from __future__ import annotations

import ipaddress


def source_of(peer: str) -> str:
    """Return the key that counts as one address: in IPv6 a /64 network, which one machine may have for
    itself.
    """
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
