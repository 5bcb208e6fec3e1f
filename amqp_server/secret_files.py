"""Files with a secret: mqd only reads them if other users cannot."""

from __future__ import annotations

import os
import stat

#: Read or write permission for others. A group may have read permission, as containers and system users need
#: it.
_OTHERS = stat.S_IROTH | stat.S_IWOTH


class SecretFileError(Exception):
    """A file with a secret that cannot be used; the text names it and says what to do."""


def read_secret(option: str, path: str) -> bytes:
    """Return the content of the file. Raises SecretFileError."""
    try:
        with open(path, "rb") as file:
            _check(option, path, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        raise SecretFileError(f"{_flag(option)}: {path} can't be read: {error.strerror}") from None


def check_secret_file(option: str, path: str) -> None:
    """Check a file that a library reads. Raises SecretFileError."""
    try:
        about = os.stat(path)
    except OSError as error:
        raise SecretFileError(f"{_flag(option)}: {path} can't be read: {error.strerror}") from None
    _check(option, path, about)


def read_password(option: str, path: str) -> str:
    """Return the file's only line. Raises SecretFileError."""
    try:
        password = read_secret(option, path).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretFileError(f"{_flag(option)}: {path} is not UTF-8") from None
    if not password or "\n" in password or "\0" in password:
        raise SecretFileError(f"{_flag(option)}: {path} must hold one line with the password")
    return password


def _check(option: str, path: str, about: os.stat_result) -> None:
    if about.st_mode & _OTHERS:
        mode = stat.S_IMODE(about.st_mode)
        raise SecretFileError(
            f"{_flag(option)}: others may read or write {path} (mode {mode:04o}): it holds a secret; "
            f"chmod o= {path}"
        )


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
