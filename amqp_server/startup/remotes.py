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
    if not path:
        return {}
    try:
        found = tomllib.loads(read_secret("credentials_file", path).decode())
    except SecretFileError as error:
        raise Unavailable(str(error)) from None
    except ValueError:
        raise Unavailable(f"credentials_file: {path} is no TOML file") from None
    if not all(isinstance(value, str) for value in found.values()):
        raise Unavailable(f'credentials_file: {path} must have lines such as access_key_id = "…"')
    return found


__all__ = ["credentials", "open_remote"]
