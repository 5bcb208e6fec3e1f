"""The common part of the Python members: what their environment tells them, and how they report what they
see. See judge.py.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any
from urllib.parse import urlsplit

GROUP = os.environ.get("STORM_GROUP", "")
#: A file with the URLs of the nodes, which may change with a restart.
_URLS = os.environ.get("STORM_URLS", "")
NAME = os.environ.get("STORM_NAME", "")
HEARTBEAT_S = int(os.environ.get("STORM_HEARTBEAT", "0"))
#: What a member may do in addition to acks: refuse, no_ack, slow.
MAY = frozenset(os.environ.get("STORM_MAY", "").split(","))
#: A file; when it exists, all members end.
_END = os.environ.get("STORM_END", "")

chance = random.Random(os.environ.get("STORM_SEED", ""))
_record = (
    os.open(os.environ["STORM_RECORD"], os.O_WRONLY | os.O_APPEND) if "STORM_RECORD" in os.environ else -1
)
_sessions = 0


def ends() -> bool:
    return os.path.exists(_END)


def a_node() -> str:
    with open(_URLS) as urls:
        return chance.choice(urls.read().split())


class Teller:
    """One session."""

    def __init__(self, url: str) -> None:
        global _sessions
        _sessions += 1
        self.name = f"{NAME}.{_sessions}"
        self.joined = self.ended = False
        self._node = str(urlsplit(url).port)

    def tell(self, *words: object) -> None:
        os.write(_record, (" ".join(map(str, (self.name, *words))) + "\n").encode())

    def join(self) -> None:
        self.joined = True
        self.tell("join", self._node)

    def delivery(self, headers: dict[str, Any], *, again: bool) -> tuple[str, int]:
        message = partition_of(headers), int(headers["x-stream-offset"])
        self.tell("d", *message, "again" if again else "new", headers.get("x-delivery-count", 0))
        return message

    def end(self, word: str) -> None:
        """The session was closed in order (`leave`), or is lost (`gone`)."""
        if self.joined and not self.ended:
            self.ended = True
            self.tell(word)


def partition_of(headers: dict[str, Any]) -> str:
    """Return the partition of a delivery, with the epoch that the publisher has put in. See judge.py."""
    return f"{_text(headers['x-stream'])}@{int(headers['epoch'])}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def complain(error: BaseException) -> None:
    """Write an unexpected error to the log of the member."""
    print(f"{NAME}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
