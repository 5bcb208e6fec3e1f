"""Files that commands read and write."""

from __future__ import annotations

import os

#: Stands for stdin or stdout.
STDIO = "-"


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, if it is new: messages and password hashes are nobody else's
    business.
    """
    return os.open(path, flags, 0o600)
