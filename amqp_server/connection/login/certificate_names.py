"""Finds the user in a client's certificate, for the mechanism EXTERNAL. Follows RabbitMQ's
ssl_cert_login_from.

The certificate is verified already; callers check whether the user exists.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

#: OpenSSL's names of attributes, and the names that RabbitMQ writes (RFC 4514, and further ones that Erlang
#: knows).
_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
#: Types of alternative names, with the ssl module's names.
_SAN_TYPES: Final = {"dns": "DNS", "ip": "IP Address", "email": "email", "uri": "URI"}


class Tls(NamedTuple):
    """A TLS connection's fields for listings. The last three are None for a client without a certificate."""

    #: `tlsv1.3`
    protocol: str
    subject: str | None = None
    issuer: str | None = None
    #: Validity of the certificate: `2026-01-01T00:00:00Z - 2027-01-01T00:00:00Z`.
    validity: str | None = None


def described(version: str, certificate: dict[str, Any]) -> Tls:
    """`version` is from `SSLObject.version`, and the client's certificate from `SSLObject.getpeercert`."""
    if not certificate:
        return Tls(version.lower())
    return Tls(
        version.lower(),
        distinguished_name(certificate),
        distinguished_name({"subject": certificate.get("issuer", ())}),
        f"{_moment(certificate['notBefore'])} - {_moment(certificate['notAfter'])}",
    )


def _moment(text: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ssl.cert_time_to_seconds(text)))


def login_name(certificate: dict[str, Any], source: str, san_type: str = "dns", san_index: int = 0) -> str:
    """Return the user's name; empty if the certificate, from `SSLObject.getpeercert`, has none in the
    configured place.
    """
    if source == "common_name":
        return ",".join(value for name, value in _attributes(certificate) if name == "commonName")
    if source == "subject_alternative_name":
        kind = _SAN_TYPES[san_type]
        names = [value for name, value in certificate.get("subjectAltName", ()) if name == kind]
        return str(names[san_index]) if san_index < len(names) else ""
    return distinguished_name(certificate)


def distinguished_name(certificate: dict[str, Any]) -> str:
    """The subject in the form of RFC 4514, the most specific attribute first: `CN=app,O=Example`."""
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _attributes(certificate: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for part in certificate.get("subject", ()):
        yield from part


def _escaped(value: str) -> str:
    """Escape a value as in RFC 4514, section 2.4."""
    found = "".join("\\" + sign if sign in ',+"\\<>;' else sign for sign in value).replace("\0", "\\00")
    if found.startswith(("#", " ")):
        found = "\\" + found
    if found.endswith(" ") and len(value) > 1:
        found = found[:-1] + "\\ "
    return found
