"""When messages that are due count as missing."""

from __future__ import annotations

import time

#: Answers in a row that say that nothing is to come. A broker that is short of CPU delivers late and answers
#: late, so these take the longer the later it is.
LOOKS_MIN = 10


class Patience:
    """Nothing tells a message that is on its way from one that is gone: a queue counts neither. So it takes a
    time without any sign of them, and answers of the broker meanwhile.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._looks = 0
        self._sign_at = time.monotonic()

    def sign(self) -> None:
        """Messages came, or are going to come."""
        self._looks = 0
        self._sign_at = time.monotonic()

    def over(self) -> bool:
        """The broker was asked once more, and nothing is to come as far as it knows."""
        self._looks += 1
        return self._looks >= LOOKS_MIN and time.monotonic() - self._sign_at > self._limit_s
