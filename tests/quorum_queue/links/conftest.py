"""Certificates for links."""

from __future__ import annotations

import ssl

import pytest
import trustme

from .nodes import Tls


@pytest.fixture(scope="module")
def tls() -> Tls:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context()
    certificate = authority.issue_cert("127.0.0.1")
    for context in (server, client):
        certificate.configure_cert(context)
        authority.configure_trust(context)
    return server, client


@pytest.fixture(params=["plain", "tls"])
def maybe_tls(request: pytest.FixtureRequest, tls: Tls) -> Tls | None:
    return tls if request.param == "tls" else None
