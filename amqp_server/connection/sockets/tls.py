"""The TLS settings of the listener for clients; quorum_queue.links.wire moves the bytes.

OpenSSL's errors name no file, and `[SSL] PEM lib` is no help: this module finds the file and the problem.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import NamedTuple

from amqp_server.config import Config
from amqp_server.secret_files import SecretFileError, check_secret_file
from persistence.own_process import SHORT

logger = logging.getLogger("mqd.connection")


class TLSFileError(Exception):
    """A file cannot be used; the text has the option, the file and the reason."""

    def __init__(self, file: PEMFile, reason: str) -> None:
        super().__init__(f"--{file.option} {file.path}: {reason}")


class PEMFile(NamedTuple):
    #: Name of the option that names the file.
    option: str
    path: str


class _Encrypted(Exception):
    """The private key needs a password. Without this error, OpenSSL would ask for it on the terminal and the
    start would hang.
    """


class ListenerTLS:
    """The listener's context, made again when its files have changed: later connections get the new
    certificate.
    """

    def __init__(self, config: Config) -> None:
        """Raises TLSFileError, SecretFileError."""
        self._config = config
        self._stamps = file_stamps(*self._files())
        self.context = make_context(config)

    def _files(self) -> tuple[str, str, str]:
        config = self._config
        return config.tls_cert_file, config.tls_key_file, config.tls_ca_file

    def reload(self) -> None:
        """Read the files again if they have changed. If they cannot be used, keep the current context."""
        stamps = file_stamps(*self._files())
        if stamps == self._stamps:
            return
        # A file that changes while it is read is read again the next time.
        before, self._stamps = self._stamps, stamps
        try:
            self.context = make_context(self._config)
        except OSError as error:
            if error.errno not in SHORT:
                raise
            # No file can be opened now: try again the next time.
            self._stamps = before
            logger.error("the certificate of the TLS listener can't be read at the moment: %s", error)
        except (TLSFileError, SecretFileError) as error:
            logger.error(
                "the new certificate of the TLS listener can't be used, so the old one stays: %s", error
            )
        else:
            logger.info("the TLS listener uses the certificate that is now in %s", self._config.tls_cert_file)


def file_stamps(*paths: str) -> list[tuple[int, int, int] | None]:
    """Return values that change whenever a file is written or replaced, one for each path; None for a missing
    file.
    """
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            about = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((about.st_mtime_ns, about.st_ino, about.st_size))
    return found


def make_context(config: Config) -> ssl.SSLContext:
    """Return the server's context: TLS 1.2 and 1.3, client certificates as configured.

    Raises TLSFileError, SecretFileError.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(
        context,
        PEMFile("tls-cert-file", config.tls_cert_file),
        PEMFile("tls-key-file", config.tls_key_file),
    )
    if config.tls_ca_file:
        load_authorities(context, PEMFile("tls-ca-file", config.tls_ca_file))
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_certificate else ssl.CERT_OPTIONAL
    return context


def load_certificate(context: ssl.SSLContext, certificate: PEMFile, key: PEMFile) -> None:
    """Load the certificate that the context shows. Raises TLSFileError, SecretFileError."""
    _require(certificate, b"CERTIFICATE-----", "certificate")
    _require(key, b"PRIVATE KEY-----", "private key")
    try:
        context.load_cert_chain(certificate.path, key.path, password=_no_password)
    except _Encrypted:
        raise TLSFileError(
            key, "the private key is encrypted; it has to be stored without a password"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TLSFileError(key, f"is not the key of the certificate in {certificate.path}") from None
        # If the certificate is readable, the key is not.
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate)
        raise TLSFileError(key, f"the private key can't be used ({_reason(error)})") from None
    check_secret_file(key.option, key.path)


def load_authorities(context: ssl.SSLContext, authorities: PEMFile) -> None:
    """Load the authorities that the context trusts. Raises TLSFileError."""
    _require(authorities, b"CERTIFICATE-----", "certificate")
    try:
        context.load_verify_locations(authorities.path)
    except ssl.SSLError as error:
        raise TLSFileError(authorities, f"the certificate can't be used ({_reason(error)})") from None


def _require(file: PEMFile, mark: bytes, what: str) -> None:
    try:
        with open(file.path, "rb") as opened:
            content = opened.read()
    except OSError as error:
        if error.errno in SHORT:
            # Nothing is wrong with the file.
            raise
        raise TLSFileError(file, str(error.strerror or error)) from None
    if mark not in content:
        raise TLSFileError(file, f"holds no {what} in PEM format")


def _no_password() -> str:
    raise _Encrypted


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's own reason, without the line of the C source."""
    return (error.reason or str(error)).lower().replace("_", " ")
