"""Explains failed TLS handshakes and names the remedy: OpenSSL names neither the side nor the option."""

from __future__ import annotations

import re
import ssl

#: A TLS record with a handshake begins with these bytes in all versions.
_HELLO = b"\x16\x03"
_SOURCE_LINE = re.compile(r" \(_ssl\.c:\d+\)$")
#: Explanations by OpenSSL's codes of errors in a certificate (x509_vfy.h).
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_PURPOSE = 26
#: Explanations by OpenSSL's reasons.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client shows no certificate, but tls_client_certificate requires one: configure a certificate and its key in the client"
    ),
    "UNSUPPORTED_PROTOCOL": "the client supports neither TLS 1.2 nor TLS 1.3: turn one of them on in the client",
    "NO_SHARED_CIPHER": "client and server have no cipher in common",
    "WRONG_VERSION_NUMBER": "the client does not use TLS: turn on TLS in the client, or let it connect to the listener of --amqp",
    "HTTP_REQUEST": "the client uses HTTP, but this is the listener for AMQP over TLS",
}
#: Explanations of the client's alerts, by a part of the alert's name.
_ALERTS = {
    "UNKNOWN_CA": (
        "the client does not trust the certificate in tls_cert_file: let it trust the authority that signed it"
    ),
    "CERTIFICATE_EXPIRED": "the client says that the certificate in tls_cert_file has expired: replace it",
    "BAD_CERTIFICATE": (
        "the client refuses the certificate in tls_cert_file: check that it is signed for the name that the client connects to"
    ),
    "CERTIFICATE_UNKNOWN": (
        "the client refuses the certificate in tls_cert_file: let it trust the authority that signed it"
    ),
    "PROTOCOL_VERSION": "the client supports neither TLS 1.2 nor 1.3",
}


def explained(error: Exception) -> str:
    """Return the cause and the remedy, if known, with OpenSSL's words in parentheses."""
    said = _SOURCE_LINE.sub("", str(error)) or "it took too long"
    meaning = _meaning(error) if isinstance(error, ssl.SSLError) else ""
    return f"{meaning} ({said})" if meaning else said


def _meaning(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error.verify_code)
    # Errors that do not come from OpenSSL have no reason.
    reason: str = getattr(error, "reason", None) or ""
    if "_ALERT_" in reason:
        return next((text for name, text in _ALERTS.items() if reason.endswith(name)), "")
    return _REASONS.get(reason, "")


def _of_certificate(code: int) -> str:
    if code == _EXPIRED:
        return "the client's certificate has expired: give the client a new one"
    if code == _NOT_YET_VALID:
        return "the client's certificate is not valid yet: check the clocks of both machines"
    if code in _UNKNOWN_AUTHORITY:
        return "no authority in tls_ca_file has signed the client's certificate: give the client a certificate that one of them has signed, or add its authority"
    if code == _WRONG_PURPOSE:
        return "the client's certificate is not made for clients: its extended key usage must have clientAuth"
    return "the client's certificate is refused"


def is_hello(data: bytes) -> bool:
    """True if these first bytes are a TLS handshake; for listeners without TLS."""
    return data.startswith(_HELLO)
