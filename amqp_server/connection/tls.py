"""The TLS settings of the listener for clients; quorum_queue.links.wire moves the bytes."""

from __future__ import annotations

import logging
import os
import ssl

from amqp_server.config import Config
from amqp_server.secret_files import SecretFileError, check_secret_file

logger = logging.getLogger("mqd.connection")


class TlsFileError(Exception):
    """A certificate or key that can't be used; the text names the file."""


class ListenerTls:
    """The listener's context, made anew when its files have changed: the next connections get the new certificate."""

    def __init__(self, config: Config) -> None:
        """Raises TlsFileError, SecretFileError."""
        self._config = config
        self._stamps = file_stamps(*self._files())
        self.context = make_context(config)

    def _files(self) -> tuple[str, str, str]:
        config = self._config
        return config.tls_cert_file, config.tls_key_file, config.tls_ca_file

    def reload(self) -> None:
        """Read the files again if they have changed. If they can't be used, what was read before stays."""
        stamps = file_stamps(*self._files())
        if stamps == self._stamps:
            return
        # A file that changes while it is read is read again the next time.
        self._stamps = stamps
        try:
            self.context = make_context(self._config)
        except (TlsFileError, SecretFileError) as error:
            logger.error("the certificate of the TLS listener stays the old one: %s", error)
        else:
            logger.info("the TLS listener has the certificate that is now in %s", self._config.tls_cert_file)


def file_stamps(*paths: str) -> list[tuple[int, int, int] | None]:
    """What changes whenever a file is written or replaced, by path; None for one that is not there."""
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

    Raises TlsFileError, SecretFileError.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, "tls", config.tls_cert_file, config.tls_key_file)
    if config.tls_ca_file:
        load_authorities(context, "tls", config.tls_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_certificate else ssl.CERT_OPTIONAL
    return context


def load_certificate(context: ssl.SSLContext, options: str, cert_file: str, key_file: str) -> None:
    """`options` is what the options' names begin with. Raises TlsFileError, SecretFileError."""
    option = f"{options}_key_file"
    check_secret_file(option, key_file)
    flag = f"--{options.replace('_', '-')}-cert-file"

    def encrypted() -> str:
        raise TlsFileError(
            f"--{option.replace('_', '-')}: the key in {key_file} is encrypted; mqd asks for no password"
        )

    try:
        with open(cert_file, "rb"):
            pass
        context.load_cert_chain(cert_file, key_file, password=encrypted)
    except ssl.SSLError as error:
        raise TlsFileError(
            f"{flag}: {cert_file} with the key {key_file} can't be used: {_reason(error)}"
        ) from None
    except OSError as error:
        raise TlsFileError(f"{flag}: {cert_file} can't be read: {error.strerror}") from None


def load_authorities(context: ssl.SSLContext, options: str, ca_file: str) -> None:
    """Raises TlsFileError."""
    flag = f"--{options.replace('_', '-')}-ca-file"
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise TlsFileError(f"{flag}: {ca_file} can't be used: {_reason(error)}") from None
    except OSError as error:
        raise TlsFileError(f"{flag}: {ca_file} can't be read: {error.strerror}") from None


def _reason(error: ssl.SSLError) -> str:
    """`NO_START_LINE` as words; what OpenSSL gives no name to is not in PEM at all."""
    return (error.reason or "no PEM").lower().replace("_", " ")
