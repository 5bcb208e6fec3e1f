"""A file that only reserves disk space; the node deletes it when another program has filled the disk to its
last byte.

Deletions need pages before they free any. This node's appends leave room for them; other programs do not.
"""

import logging
import os
import tempfile
from pathlib import Path

from persistence.errors import FULL

log = logging.getLogger("mqd.persistence")

BALLAST_BYTES = 4 * 1024 * 1024
# The file is made again only if this much stays free beside it.
FREE_BYTES_MIN = 16 * 1024 * 1024


def has_room(directory: Path, size: int) -> bool:
    """Return whether a file of this size would find its blocks. It takes them for a moment."""
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            return error.errno not in FULL
    return True


class Ballast:
    def __init__(self, path: Path) -> None:
        self._path = path
        #: True if the space is reserved.
        self.held = False
        # It is too short if the process died while making it.
        self.give_up()
        self.restore()

    def restore(self) -> None:
        """Reserve the space if plenty is free. This may block on the disk."""
        if self.held:
            return
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < BALLAST_BYTES + FREE_BYTES_MIN:
            return
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
        except OSError as error:
            log.warning("%s: %s", self._path, error)
            self._path.unlink(missing_ok=True)
        else:
            self.held = True

    def give_up(self) -> bool:
        """Free the space. False if none is reserved."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        finally:
            self.held = False
        return True
