"""An S3 server on this machine, with a bucket."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from moto.server import ThreadedMotoServer

from persistence.streams.remote.cloud_objects import CloudObjects

BUCKET = "streams"
#: Any will do.
KEYS = {"access_key_id": "AKIATEST", "secret_access_key": "not-a-secret"}


def write_keys(directory: Path) -> Path:
    """Write the keys into a file that only its owner reads; return its path."""
    keys = directory / "keys.toml"
    keys.touch(0o600)
    keys.write_text("".join(f'{name} = "{value}"\n' for name, value in KEYS.items()))
    return keys


class S3Server:
    def __init__(self, port: int = 0) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=port)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def objects(self, prefix: str) -> CloudObjects:
        settings = {**KEYS, "region": "us-east-1", "endpoint": self.endpoint}
        return CloudObjects(f"s3://{BUCKET}/{prefix}", settings, allow_http=True)

    def remote(self, prefix: str, directory: Path) -> str:
        """Return the option of a broker for a store `archive`; the keys are written into this directory."""
        settings = {
            "region": "us-east-1",
            "endpoint": self.endpoint,
            "allow_http": "true",
            "credentials_file": write_keys(directory),
        }
        return f"archive=s3://{BUCKET}/{prefix}?{urlencode(settings)}"

    def all_keys(self, prefix: str) -> list[str]:
        return [each.key for each in self.objects(prefix).found("")]

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        server.make_bucket()
        yield server
    finally:
        server.stop()


__all__ = ["BUCKET", "KEYS", "S3Server", "s3_server", "write_keys"]
