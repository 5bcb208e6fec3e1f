"""Secrets come from files that no other user can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp_server.secret_files import SecretFileError, check_secret_file, read_password, read_secret


def secret(tmp_path: Path, mode: int, text: bytes = b"a secret\n") -> str:
    file = tmp_path / "secret"
    file.write_bytes(text)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o604, 0o602])
def test_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = secret(tmp_path, mode)
    for use in (read_secret, check_secret_file, read_password):
        with pytest.raises(
            SecretFileError, match=f"^--cluster-secret-file: .*{file}.*mode 0{mode:o}.*chmod o="
        ):
            use("cluster_secret_file", file)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o660])
def test_file_of_its_owner_or_group_is_read(tmp_path: Path, mode: int) -> None:
    file = secret(tmp_path, mode)
    assert read_secret("x", file) == b"a secret\n"
    check_secret_file("x", file)
    assert read_password("x", file) == "a secret"


def test_link_counts_for_what_it_leads_to(tmp_path: Path) -> None:
    file = secret(tmp_path, 0o644)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(SecretFileError, match="0644"):
        read_secret("x", str(link))


@pytest.mark.parametrize("text", [b"", b"\n", b"two\nlines\n", b"\xff\xfe", b"nul\0"])
def test_file_that_holds_no_password(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(SecretFileError, match="^--default-password-file: "):
        read_password("default_password_file", secret(tmp_path, 0o600, text))


def test_file_that_is_not_there(tmp_path: Path) -> None:
    for use in (read_secret, check_secret_file, read_password):
        with pytest.raises(SecretFileError, match="^--x: .*none can't be read: No such file"):
            use("x", str(tmp_path / "none"))
