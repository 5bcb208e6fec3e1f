"""The TLS settings of the listener for clients; quorum_queue.links.wire moves the bytes."""

from __future__ import annotations

import ssl

from amqp_server.config import Config


def make_context(config: Config) -> ssl.SSLContext:
    """Return the server's context: TLS 1.2 and 1.3, client certificates as configured.

    Raises OSError, ssl.SSLError.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
    if config.tls_ca_file:
        context.load_verify_locations(config.tls_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_certificate else ssl.CERT_OPTIONAL
    return context
