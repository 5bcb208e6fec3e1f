"""The object store with the tables of streams, read by Arrow: a directory, S3 or Google Cloud Storage."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from spark_sink.option_values import BadOption, StoreUrl
from spark_sink.streams.table_files import TableFile, file_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds for a connection and for a request to S3, and how often Arrow tries a request again.
CONNECT_S, REQUEST_S, RETRIES = 5, 60, 3


class NoFile(Exception):
    """The store does not have this file any more."""


class StoreFails(Exception):
    """The store cannot be read; the text says why. Spark tries the task again."""


class TableStore:
    """All methods raise StoreFails, and BadOption if a directory does not exist."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._files: Any = _file_system(url)

    def path(self, directory: str) -> str:
        return f"{self._url.path}/{directory}"

    def files(self, directory: str) -> Sequence[TableFile]:
        """Return the files of a table; none if it has no directory."""
        from pyarrow.fs import FileSelector

        self._check_directory()
        try:
            found = self._files.get_file_info(FileSelector(self.path(directory), allow_not_found=True))
        except OSError as error:
            raise self._fails(self.path(directory), error) from None
        return [file for each in found if (file := file_of(each.path)) is not None]

    def opened(self, file: TableFile) -> Any:
        """Return the file for Parquet. Raises NoFile."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        try:
            return ParquetFile(self._files.open_input_file(file.path), pre_buffer=True)
        except (OSError, pa.ArrowException) as error:
            raise self.failure(file, error) from None

    def failure(self, file: TableFile, error: Exception) -> NoFile | StoreFails:
        """Return what an error means that came when a file was read."""
        from pyarrow.fs import FileType

        self._check_directory()
        if isinstance(error, OSError):
            try:
                kind = self._files.get_file_info(file.path).type
            except OSError:
                kind = None
            if kind == FileType.NotFound:
                return NoFile(file.path)
        return self._fails(file.path, error)

    def _fails(self, path: str, error: Exception) -> StoreFails:
        text = " ".join(str(error).split())[:300]
        return StoreFails(f"'{path}' cannot be read (option 'history' is {self._url}): {text}")

    def _check_directory(self) -> None:
        if self._url.scheme == "file" and not os.path.isdir(self._url.path):
            raise BadOption(
                f"option 'history': there is no directory {self._url.path} on this machine. The driver and all "
                "executors need it under this path"
            )


@lru_cache(maxsize=8)
def open_store(url: StoreUrl) -> TableStore:
    """Open a store, once in each process. Raises BadOption."""
    return TableStore(url)


def _file_system(url: StoreUrl) -> Any:
    try:
        if url.scheme == "file":
            from pyarrow.fs import LocalFileSystem

            return LocalFileSystem()
        if url.scheme == "gs":
            from pyarrow.fs import GcsFileSystem

            return GcsFileSystem()
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem
    except ImportError as error:
        raise BadOption(f"option 'history': this pyarrow cannot read {url.scheme}://: {error}") from None
    return S3FileSystem(
        region=url.region or None,
        endpoint_override=url.endpoint or None,
        scheme="http" if url.allow_http else "https",
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=RETRIES),
    )


__all__ = ["NoFile", "StoreFails", "TableStore", "open_store"]
