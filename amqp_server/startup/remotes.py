"""Opens the object stores of the configuration, each when a stream uses it first."""

from __future__ import annotations

import tomllib
from pathlib import Path

from amqp_server.secret_files import SecretFileError, read_secret
from amqp_server.startup.stream_remotes import StreamRemote
from persistence.streams.remote.cloud_objects import CloudObjects
from persistence.streams.remote.file_objects import FileObjects
from persistence.streams.remote.objects import Objects, Unavailable


def open_remote(remote: StreamRemote) -> Objects:
    """A thread calls it. Raises Unavailable."""
    if remote.is_directory:
        return FileObjects(Path(remote.path))
    settings = {"region": remote.region, "endpoint": remote.endpoint}
    settings = {key: value for key, value in settings.items() if value} | credentials(remote)
    return CloudObjects(remote.url, settings, allow_http=remote.allow_http)


def credentials(remote: StreamRemote) -> dict[str, str]:
    """Return the settings in the file with credentials, such as access_key_id. Raises Unavailable; the text
    has none of them.
    """
    path = remote.credentials_file
    return secret_settings("credentials_file", path, 'access_key_id = "…"') if path else {}


def secret_settings(option: str, path: str, such_as: str) -> dict[str, str]:
    """Return the settings in a TOML file with secrets; `such_as` is an example of its lines. Raises
    Unavailable; the text has none of them.
    """
    try:
        found = tomllib.loads(read_secret(option, path).decode())
    except SecretFileError as error:
        raise Unavailable(str(error)) from None
    except ValueError:
        raise Unavailable(f"{option}: {path} is no TOML file") from None
    if not all(isinstance(value, str) for value in found.values()):
        raise Unavailable(f"{option}: {path} must have lines such as {such_as}")
    return found


__all__ = ["credentials", "open_remote", "secret_settings"]
