"""Decides when expected messages count as missing."""

from __future__ import annotations

import time

#: Number of answers in a row which say that no message is left. A broker that is short of CPU delivers late
#: and answers late, so these answers take longer then.
LOOKS_MIN = 10


class Patience:
    """A message on its way looks the same as one that is gone: a queue counts neither. So messages count as
    missing after a time without any sign of them, and several answers of the broker in that time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._looks = 0
        self._sign_at = time.monotonic()

    def sign(self) -> None:
        """Messages came, or are on their way."""
        self._looks = 0
        self._sign_at = time.monotonic()

    def over(self) -> bool:
        """The broker has answered once more that it has no more messages."""
        self._looks += 1
        return self._looks >= LOOKS_MIN and time.monotonic() - self._sign_at > self._limit_s
