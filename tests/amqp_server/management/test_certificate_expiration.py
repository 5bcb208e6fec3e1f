"""The health check that warns of certificates before they expire."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from .conftest import Connect, ManagedNode

pytestmark = pytest.mark.trio

ENDS_IN_DAYS = 10


@pytest.fixture
def ends() -> datetime:
    return (datetime.now(UTC) + timedelta(days=ENDS_IN_DAYS)).replace(microsecond=0)


@pytest.fixture
def file(node: ManagedNode, tmp_path: Path, ends: datetime) -> str:
    """The certificate of the node's TLS listener."""
    file = str(tmp_path / "certificate.pem")
    trustme.CA().issue_cert("127.0.0.1", not_after=ends).cert_chain_pems[0].write_to_path(file)
    node.broker.config = replace(
        node.broker.config, amqps="127.0.0.1:5671", tls_cert_file=file, tls_key_file="key.pem"
    )
    return file


def told_of(file: str, ends_on: str) -> dict[str, Any]:
    expired = [{"file": file, "cert_expires_on": ends_on}]
    return {"status": "failed", "reason": "Certificates expiring", "expired": expired}


@pytest.mark.parametrize(
    ("within", "fails"),
    [("9/days", False), ("11/days", True), ("1/weeks", False), ("2/weeks", True), ("1/months", True)],
)
async def test_a_certificate_that_ends(
    connect: Connect, file: str, ends: datetime, within: str, fails: bool
) -> None:
    answer = await connect("manager").get(f"health/checks/certificate-expiration/{within}")
    if not fails:
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        return
    assert answer.status_code == 503
    assert answer.json() == told_of(file, ends.strftime("%Y-%m-%dT%H:%M:%SZ"))


def put(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_a_file_that_holds_none(connect: Connect, file: str, content: bytes | None) -> None:
    """The node continues with the certificate that it has read, and could not start again."""
    put(Path(file), content)
    answer = await connect("manager").get("health/checks/certificate-expiration/1/days")
    assert (answer.status_code, answer.json()) == (503, told_of(file, "unknown"))


async def test_the_certificate_of_the_cluster_is_looked_at(
    connect: Connect, node: ManagedNode, file: str
) -> None:
    node.broker.config = replace(node.broker.config, amqps="", cluster_tls_cert_file=file)
    client = connect("manager")
    assert (await client.get("health/checks/certificate-expiration/2/weeks")).status_code == 200
    node.cluster = object()
    answer = await client.get("health/checks/certificate-expiration/2/weeks")
    assert answer.status_code == 503 and answer.json()["expired"][0]["file"] == file


@pytest.mark.parametrize(
    "within", ["0", "100001", "0" * 9 + "1" + "9" * 400, "1" + "0" * 5000, "²", "-1", "1e9"]
)
async def test_times_that_are_none(connect: Connect, file: str, within: str) -> None:
    answer = await connect("manager").get(f"health/checks/certificate-expiration/{within}/weeks")
    assert (answer.status_code, answer.json()["reason"]) == (400, "Invalid expiration value.")
