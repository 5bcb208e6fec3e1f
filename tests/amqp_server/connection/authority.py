"""Certificates for the tests, and clients that use them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
import trustme

from amqp_server.app import Node
from conformance_tests.patience import PATIENCE_S

from .served import Client, connect


@dataclass(frozen=True)
class Authority:
    options: dict[str, Any]
    trusting: ssl.SSLContext
    with_certificate: ssl.SSLContext
    strange: ssl.SSLContext


def make_authority(directory: Path) -> Authority:
    ours, theirs = trustme.CA(), trustme.CA()
    server = ours.issue_cert("127.0.0.1")
    certificate, key, ca = (str(directory / name) for name in ("certificate.pem", "key.pem", "ca.pem"))
    for index, part in enumerate(server.cert_chain_pems):
        part.write_to_path(certificate, append=index > 0)
    server.private_key_pem.write_to_path(key)
    Path(key).chmod(0o600)
    ours.cert_pem.write_to_path(ca)
    contexts = [ssl.create_default_context() for _ in range(3)]
    for context in contexts:
        ours.configure_trust(context)
    ours.issue_cert("client@example.org").configure_cert(contexts[1])
    theirs.issue_cert("client@example.org").configure_cert(contexts[2])
    options = {"amqps": "127.0.0.1:0", "tls_cert_file": certificate, "tls_key_file": key, "tls_ca_file": ca}
    return Authority(options, *contexts)


def tls_port(node: Node) -> int:
    return int(node.amqps_address.rpartition(":")[2])


async def connect_tls(node: Node, context: ssl.SSLContext, **options: Any) -> Client:
    made = await connect(node, tls=context, port=tls_port(node), **options)
    assert isinstance(made.stream, trio.SSLStream)
    with trio.fail_after(PATIENCE_S):
        await made.stream.do_handshake()
    return made
