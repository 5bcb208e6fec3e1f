"""S3, Google Cloud Storage and Azure Blob Storage, by the library obstore (the extra `remote`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from persistence.streams.remote.objects import Absent, Found, Unavailable

#: The library tries again so often, and for so long; a stream then tries again by itself, later.
RETRIES, RETRY_S = 2, 10
#: Time for one request, and for a connection.
TIMEOUT, CONNECT_TIMEOUT = "60s", "5s"
#: Parts in which an object is sent, and how many of them at the same time.
PART_BYTES, PARTS_MAX = 8 << 20, 2

#: A query may have a signature.
_QUERY = re.compile(r"\?[^\s\"']*")


class CloudObjects:
    """See Objects."""

    def __init__(self, url: str, settings: Mapping[str, str], *, allow_http: bool = False) -> None:
        """`settings` are the library's; what they lack comes from the environment, as the store's own tools
        have it. Raises Unavailable.
        """
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise Unavailable('the library obstore is missing: pip install "mqd[remote]"') from None
        self._obstore: Any = obstore
        self._secrets = [value for value in settings.values() if len(value) >= 4]
        self._errors: tuple[type[Exception], ...] = (BaseError, OSError, ValueError)
        options: dict[str, Any] = {
            "allow_http": allow_http,
            "timeout": TIMEOUT,
            "connect_timeout": CONNECT_TIMEOUT,
        }
        try:
            self._store: Any = from_url(
                url,
                config=dict(settings),  # type: ignore[call-overload]
                client_options=options,
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
            )
        except self._errors as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> Unavailable:
        """Return the library's error without its details, which may have secrets."""
        text = _QUERY.sub("?…", str(error).split("\n\nDebug source")[0])
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return Unavailable(" ".join(text.split())[:300])

    def put(self, key: str, parts: Iterator[bytes], size: int | None) -> None:
        try:
            self._obstore.put(
                self._store, key, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_MAX
            )
        except self._errors as error:
            raise self._unavailable(error) from None

    def read(self, key: str, position: int, size: int) -> bytes:
        try:
            return bytes(self._obstore.get_range(self._store, key, start=position, end=position + size))
        except FileNotFoundError:
            raise Absent(f"{key} is missing") from None
        except self._errors as error:
            raise self._unavailable(error) from None

    def size(self, key: str) -> int | None:
        try:
            return int(self._obstore.head(self._store, key)["size"])
        except FileNotFoundError:
            return None
        except self._errors as error:
            raise self._unavailable(error) from None

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                self._obstore.delete(self._store, key)
            except FileNotFoundError:
                pass
            except self._errors as error:
                raise self._unavailable(error) from None

    def found(self, prefix: str) -> Iterator[Found]:
        try:
            for some in self._obstore.list(self._store, prefix=prefix or None):
                for each in some:
                    yield Found(each["path"], each["size"])
        except self._errors as error:
            raise self._unavailable(error) from None


__all__ = ["CloudObjects"]
