"""The fault of a TLS file, in one line with the file's name."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from amqp_server.config import Config
from amqp_server.connection.sockets.tls import TLSFileError, make_context
from conformance_tests.patience import PATIENCE_S

from .authority import make_authority

CERTIFICATE, KEY, CA = "tls_cert_file", "tls_key_file", "tls_ca_file"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return make_authority(tmp_path).options


def refused(options: dict[str, Any]) -> str:
    with pytest.raises(TLSFileError) as failure:
        make_context(Config(**options))
    return str(failure.value)


def test_files_in_order(options: dict[str, Any]) -> None:
    assert make_context(Config(**options)).verify_mode is ssl.CERT_OPTIONAL


@pytest.mark.parametrize("wrong", [CERTIFICATE, KEY, CA])
def test_files_that_are_none(options: dict[str, Any], tmp_path: Path, wrong: str) -> None:
    flag = "--" + wrong.replace("_", "-")
    what = "private key" if wrong == KEY else "certificate"
    missing, empty, damaged = tmp_path / "missing.pem", tmp_path / "empty.pem", tmp_path / "damaged.pem"
    empty.write_text("")
    lines = Path(options[wrong]).read_text().splitlines()
    damaged.write_text("\n".join([lines[0], "AAAA", *lines[3:]]) + "\n")
    told = [refused(options | {wrong: str(path)}) for path in (missing, tmp_path, empty, damaged)]
    assert told[0] == f"{flag} {missing}: No such file or directory"
    assert told[1] == f"{flag} {tmp_path}: Is a directory"
    assert told[2] == f"{flag} {empty}: holds no {what} in PEM format"
    assert told[3].startswith(f"{flag} {damaged}: the {what} can't be used (")


def test_files_in_each_others_place(options: dict[str, Any]) -> None:
    told = refused(options | {CERTIFICATE: options[KEY], KEY: options[CERTIFICATE]})
    assert told == f"--tls-cert-file {options[KEY]}: holds no certificate in PEM format"


def test_key_of_another_certificate(options: dict[str, Any], tmp_path: Path) -> None:
    key = tmp_path / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(key))
    told = refused(options | {KEY: str(key)})
    assert told == f"--tls-key-file {key}: is not the key of the certificate in {options[CERTIFICATE]}"


def test_an_encrypted_key_is_not_asked_a_password_for(options: dict[str, Any], tmp_path: Path) -> None:
    key = tmp_path / "encrypted.pem"
    loaded = serialization.load_pem_private_key(Path(options[KEY]).read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert refused(options | {KEY: str(key)}) == (
        f"--tls-key-file {key}: the private key is encrypted; it has to be stored without a password"
    )


def test_the_program_ends_with_the_line(options: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "amqp_server.main", "--data-dir", str(tmp_path / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "", "--amqps", "127.0.0.1:0"]
    command += ["--tls-cert-file", options[CERTIFICATE], "--tls-key-file", options[CA]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"mqd: --tls-key-file {options[CA]}: holds no private key in PEM format"
    )
    assert "Traceback" not in done.stderr
