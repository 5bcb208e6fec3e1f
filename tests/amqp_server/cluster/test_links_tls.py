"""Certificates of the links between nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from amqp_server.cluster.settings import LinksTls
from amqp_server.config import Config


class _Mesh:
    def __init__(self) -> None:
        self.used: list[object] = []

    def use_tls(self, tls: object) -> None:
        self.used.append(tls)


def test_certificate_of_the_links_that_changed_on_disk_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    file, trusted = tmp_path / "node.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)

    def renew() -> None:
        authority.issue_cert("n1").private_key_and_cert_chain_pem.write_to_path(file)
        file.chmod(0o600)

    renew()
    mesh: Any = _Mesh()
    links = LinksTls(
        Config(
            cluster_tls_cert_file=str(file), cluster_tls_key_file=str(file), cluster_tls_ca_file=str(trusted)
        ),
        mesh,
    )
    links.reload()
    assert mesh.used == []
    renew()
    links.reload()
    links.reload()
    assert len(mesh.used) == 1
    file.write_text("no PEM")
    links.reload()
    links.reload()
    assert len(mesh.used) == 1
    assert caplog.text.count("the new certificate for links can't be used") == 1
    renew()
    links.reload()
    assert len(mesh.used) == 2
