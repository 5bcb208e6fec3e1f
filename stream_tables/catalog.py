"""The Iceberg catalog of a store: each stream is a table of it, and each file of the stream's table is added
by one commit.

The commit also sets how far the table is, and fails if another one came between. So a second writer, or one
that starts again, adds no file twice.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlsplit

from amqp_server.startup.remotes import credentials, secret_settings
from amqp_server.startup.stream_remotes import StreamRemote
from persistence.streams.remote.objects import Unavailable
from persistence.streams.remote.table import TableName

#: The namespace of tables if the file names none.
NAMESPACE: Final = "mqd"
#: Properties of a table: the identity of its stream, and the offset behind the last message that it has.
IDENTITY, NEXT_OFFSET = "mqd.identity", "mqd.next-offset"
#: In the summary of a snapshot: the offsets that it adds.
SNAPSHOT_NEXT_OFFSET: Final = "mqd.next-offset"
NAME_MAX: Final = 100
#: A commit that another one came before is not tried again by the library, which would add the file again.
_RETRIES: Final = "commit.retry.num-retries"
#: Schemes of stores for which the library takes the same URLs.
_SCHEMES: Final = ("s3://", "gs://", "file://")
#: Names of properties whose values are secret.
_IS_SECRET: Final = re.compile("secret|password|token|credential|key", re.IGNORECASE)


class Catalog:
    """All methods raise Unavailable."""

    def __init__(self, catalog: Any, namespace: str, url: str, secrets: Sequence[str]) -> None:
        """`url` is that of the store. No error has one of the `secrets` in its text."""
        self._catalog = catalog
        self._namespace = namespace
        self._url = url
        self._secrets = secrets

    def next_offset(self, table: TableName) -> int:
        """Return the offset behind the last message that the table has; -1 if there is none."""
        with _unavailable(self._secrets):
            found = self._loaded(table)
            return -1 if found is None else int(found.properties.get(NEXT_OFFSET, -1))

    def add(self, table: TableName, key: str, stop: int) -> None:
        """Add a file with the messages before `stop`, unless the table has them."""
        with _unavailable(self._secrets):
            found = self._loaded(table) or self._created(table)
            if int(found.properties.get(NEXT_OFFSET, -1)) >= stop:
                return
            with found.transaction() as transaction:
                transaction.set_properties({NEXT_OFFSET: str(stop)})
                transaction.add_files(
                    [f"{self._url}/{key}"],
                    snapshot_properties={SNAPSHOT_NEXT_OFFSET: str(stop)},
                    check_duplicate_files=False,
                )

    def cut(self, table: TableName, before: int) -> None:
        """Remove the messages before this offset: their files are deleted afterwards."""
        with _unavailable(self._secrets), warnings.catch_warnings():
            # There may be none.
            warnings.simplefilter("ignore")
            found = self._loaded(table)
            if found is not None:
                found.delete(f"offset < {before}")

    def drop(self, table: TableName) -> None:
        """Forget the table of a stream that is deleted."""
        with _unavailable(self._secrets):
            if self._loaded(table) is not None:
                self._catalog.drop_table(self._identifier(table))

    def _identifier(self, table: TableName) -> tuple[str, ...]:
        return (*self._namespace.split("."), table_name(table.vhost, table.stream))

    def _loaded(self, table: TableName) -> Any:
        """Return the table; None if there is none. Raises Unavailable if it is that of another stream."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        identifier = self._identifier(table)
        try:
            found = self._catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if found.properties.get(IDENTITY) != table.identity:
            raise Unavailable(
                f"the Iceberg table {'.'.join(identifier)} is not that of this stream, but of another or a deleted "
                "one: drop it, or set another namespace in catalog_file"
            )
        found.metadata.properties[_RETRIES] = "0"
        return found

    def _created(self, table: TableName) -> Any:
        from stream_tables.rows import SCHEMA

        self._catalog.create_namespace_if_not_exists(self._namespace)
        found = self._catalog.create_table(
            self._identifier(table), SCHEMA, properties={IDENTITY: table.identity}
        )
        found.metadata.properties[_RETRIES] = "0"
        return found


def table_name(vhost: str, stream: str) -> str:
    """Return the name of a stream's table: different ones for different streams. Catalogs and SQL take it."""
    joined = stream if vhost == "/" else f"{vhost}__{stream}"
    plain = re.sub("[^a-z0-9_]", "_", joined.lower())
    if plain == joined and len(plain) <= NAME_MAX and "__" not in f"{vhost}/{stream}":
        return plain
    digest = blake2b(f"{vhost}\0{stream}".encode(), digest_size=4).hexdigest()
    return f"{plain[:NAME_MAX]}_{digest}"


def open_catalog(remote: StreamRemote) -> Catalog:
    """Open the catalog of a store. Raises Unavailable."""
    if not remote.url.startswith(_SCHEMES):
        raise Unavailable(f"catalog_file: Iceberg tables need a remote of {', '.join(_SCHEMES)}")
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise Unavailable('the library pyiceberg is missing: pip install "mqd[table]"') from None
    settings = secret_settings("catalog_file", remote.catalog_file, 'uri = "…" or "s3.region" = "…"')
    namespace = settings.pop("namespace", NAMESPACE)
    settings = _of_store(remote) | settings
    secrets = _secrets(settings)
    with _unavailable(secrets):
        catalog = load_catalog(remote.name, **settings)
        return Catalog(catalog, namespace, remote.url.rstrip("/"), secrets)


def _secrets(settings: Mapping[str, str]) -> list[str]:
    """Return values, and passwords in URLs, that nobody may see."""
    found = [value for name, value in settings.items() if _IS_SECRET.search(name)]
    for value in settings.values():
        password = urlsplit(value).password if "://" in value else None
        if password:
            found.append(password)
    return [value for value in found if value]


def _of_store(remote: StreamRemote) -> dict[str, str]:
    """Return how the catalog's library reads the store, unless the file says it in another way."""
    if not remote.url.startswith("s3://"):
        return {}
    keys = credentials(remote)
    found = {
        "s3.region": remote.region,
        "s3.endpoint": remote.endpoint,
        "s3.access-key-id": keys.get("access_key_id", ""),
        "s3.secret-access-key": keys.get("secret_access_key", ""),
    }
    return {name: value for name, value in found.items() if value}


@contextmanager
def _unavailable(secrets: Sequence[str]) -> Iterator[None]:
    """Whatever fails in the library may work later."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  # Libraries of catalogs raise errors of many kinds.
        text = str(error)
        for secret in secrets:
            text = text.replace(secret, "***")
        text = " ".join(text.split())[:300]
        raise Unavailable(f"the Iceberg catalog: {type(error).__name__}: {text}") from None


__all__ = ["Catalog", "open_catalog", "table_name"]
