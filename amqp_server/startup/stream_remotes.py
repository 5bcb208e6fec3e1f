"""The object stores of the option `stream_remotes`: name=url, with settings in the query of the URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

SCHEMES: Final = ("s3", "gs", "az", "file")
#: What a query, or a table of the TOML file, may set beside the URL.
SETTINGS: Final = ("region", "endpoint", "allow_http", "credentials_file", "catalog_file")
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
ALLOWED: Final = (
    "name=url, with each name once; a URL begins with s3://, gs://, az:// or file:///, and may end with "
    f"settings such as ?region=eu-central-1 ({', '.join(SETTINGS)})"
)


class StreamRemote(NamedTuple):
    name: str
    url: str
    region: str = ""
    endpoint: str = ""
    #: True: without TLS.
    allow_http: bool = False
    #: A TOML file with settings of the library, such as the keys.
    credentials_file: str = ""
    #: A TOML file with the properties of an Iceberg catalog, to which the tables of streams are committed.
    catalog_file: str = ""

    @property
    def is_directory(self) -> bool:
        return self.url.startswith("file://")

    @property
    def path(self) -> str:
        return self.url.removeprefix("file://")


def parse_remote(text: str) -> StreamRemote | None:
    """Return the remote of `name=url`; None if it is malformed."""
    name, _, url = text.partition("=")
    try:
        parts = urlsplit(url)
        settings = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        return None
    if not NAME.fullmatch(name) or parts.scheme not in SCHEMES or parts.fragment:
        return None
    if parts.username is not None or parts.password is not None:
        # It would be shown.
        return None
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        return None
    if parts.scheme != "file" and not parts.netloc:
        return None
    if not settings.keys() <= set(SETTINGS) or settings.get("allow_http", "true") not in ("true", "false"):
        return None
    return StreamRemote(
        name,
        url.partition("?")[0],
        settings.get("region", ""),
        settings.get("endpoint", ""),
        settings.get("allow_http") == "true",
        settings.get("credentials_file", ""),
        settings.get("catalog_file", ""),
    )


def remote_of_table(name: str, table: Mapping[str, object]) -> str | None:
    """Return name=url of a table of the TOML file; None if it is malformed."""
    settings = {key: value for key, value in table.items() if key != "url"}
    url = table.get("url")
    if not isinstance(url, str) or "?" in url or not settings.keys() <= set(SETTINGS):
        return None
    words: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        if not isinstance(value, str):
            return None
        words[key] = value
    return f"{name}={url}" + (f"?{urlencode(words)}" if words else "")


__all__ = ["ALLOWED", "SETTINGS", "StreamRemote", "parse_remote", "remote_of_table"]
