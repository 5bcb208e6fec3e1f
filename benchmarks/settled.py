"""Decodes confirms: which publishes does this read settle?"""

from __future__ import annotations

import numpy

from .client import Refused
from .frames import BASIC_ACK, SETTLEMENT, Tags


class Settled:
    """Counts confirms exactly, with `multiple` and in any order, without a Python step for each confirm."""

    def __init__(self, tag_max: int) -> None:
        self._seen = numpy.zeros(tag_max + 1, numpy.bool_)
        self._floor = 0  # every tag up to here is confirmed
        self._rest = b""
        self.count = 0

    def feed(self, data: bytes) -> Tags:
        """Return the tags that this read confirms."""
        data = self._rest + data
        whole = len(data) // SETTLEMENT.itemsize * SETTLEMENT.itemsize
        self._rest = data[whole:]
        records = numpy.frombuffer(data[:whole], SETTLEMENT)
        if not bool((records["method"] == BASIC_ACK).all()):
            raise Refused(f"something other than basic.ack came to the publisher: {data[:300]!r}")
        tags = records["tag"].astype(numpy.int64)
        multiple = (records["bits"] & 1).astype(numpy.bool_)
        singles = tags[~multiple]
        self._seen[singles] = True
        fresh = singles
        if multiple.any():
            fresh = numpy.concatenate([singles, self._raise_floor(int(tags[multiple].max()))])
        self.count += len(fresh)
        return fresh

    def _raise_floor(self, top: int) -> Tags:
        span = self._seen[self._floor + 1 : top + 1]
        fresh = numpy.flatnonzero(~span) + self._floor + 1
        span[:] = True
        self._floor = max(self._floor, top)
        return fresh
