"""Caches results of password checks for a short time: a storm of reconnects must not use up the CPU."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable


class Logins:
    """Stores a keyed digest of the name, the hash and the password, never their plain text.

    The stored hash is part of the digest, so a changed password finds no entry, and nothing needs to be
    forgotten. Refusals are stored as well, also for users that do not exist: a client with a wrong password
    reconnects just as often, and response times must not show which users exist. Refusals have a separate
    table, so that guesses never push out successful logins.
    """

    def __init__(self, memory_s: float, entries_max: int, now: Callable[[], float]) -> None:
        self._memory_s = memory_s
        self._entries_max = entries_max
        self._now = now
        self._key = os.urandom(32)
        #: Digest -> time when it is forgotten.
        self._accepted: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        # Checks run in threads.
        self._lock = threading.Lock()

    def recall(self, name: str, encoded: str, password: str) -> bool | None:
        digest = self._digest(name, encoded, password)
        with self._lock:
            for outcome, entries in ((True, self._accepted), (False, self._refused)):
                if entries.get(digest, 0.0) > self._now():
                    return outcome
                entries.pop(digest, None)
        return None

    def remember(self, name: str, encoded: str, password: str, outcome: bool) -> None:
        if not self._memory_s:
            return
        digest = self._digest(name, encoded, password)
        entries = self._accepted if outcome else self._refused
        with self._lock:
            entries[digest] = self._now() + self._memory_s
            entries.move_to_end(digest)
            while len(entries) > self._entries_max:
                entries.popitem(last=False)

    def _digest(self, name: str, encoded: str, password: str) -> bytes:
        told = bytearray()
        for part in (name, encoded, password):
            told += len(part.encode()).to_bytes(4, "big") + part.encode()
        return hashlib.blake2b(told, key=self._key, digest_size=24).digest()
