"""Outcomes of password checks, remembered for a short time: a storm of reconnects must not burn the CPU."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable


class Logins:
    """Remembers a keyed digest of the hash and the password, never either of them.

    The stored hash is part of the digest: a changed password finds nothing here, and nothing has to be
    forgotten. Refusals are remembered as well: a client with a wrong password reconnects just as often.
    """

    def __init__(self, memory_s: float, entries_max: int, now: Callable[[], float]) -> None:
        self._memory_s = memory_s
        self._entries_max = entries_max
        self._now = now
        self._key = os.urandom(32)
        self._entries: OrderedDict[bytes, tuple[float, bool]] = OrderedDict()
        # Checks run in threads.
        self._lock = threading.Lock()

    def recall(self, encoded: str, password: str) -> bool | None:
        digest = self._digest(encoded, password)
        with self._lock:
            until, outcome = self._entries.get(digest, (0.0, False))
            if until > self._now():
                return outcome
            self._entries.pop(digest, None)
        return None

    def remember(self, encoded: str, password: str, outcome: bool) -> None:
        if not self._memory_s:
            return
        digest = self._digest(encoded, password)
        with self._lock:
            self._entries[digest] = (self._now() + self._memory_s, outcome)
            self._entries.move_to_end(digest)
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)

    def _digest(self, encoded: str, password: str) -> bytes:
        told = len(encoded).to_bytes(4, "big") + encoded.encode() + password.encode()
        return hashlib.blake2b(told, key=self._key, digest_size=24).digest()
