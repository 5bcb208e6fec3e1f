"""Confirms: which of the sent messages are settled, and which were returned.

Confirms come in order with a few exceptions, so the settled messages are stored as a low mark and a set of
tags above it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_sink.client.frames import FRAME_END, METHOD

ACK, NACK = 0x003C0050, 0x003C0078
#: type, channel, size, method, delivery tag, bits, end: the same for basic.ack and basic.nack.
_CONFIRM = struct.Struct(">BHIIQBB")
_CONFIRM_SIZE = 13
MULTIPLE = 1
#: Enough to show the problem; there is no need to keep a million returned messages.
RETURNED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Returned:
    """A message that reached no queue."""

    code: int
    text: str
    exchange: str
    routing_key: str
    message_id: str | None
    headers: Mapping[str, Any] = field(default_factory=dict)


class Window:
    """An intake for a connection that publishes. Written by the connection's thread, read by the publishing
    thread.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        #: All tags up to here are settled.
        self.low = 0
        self.settled = 0
        self.progress_at = time.monotonic()
        self.nacked: set[int] = set()
        self.returned: list[Returned] = []
        self._above: set[int] = set()

    def take(self, data: bytes, start: int, end: int) -> int:
        size = _CONFIRM.size
        before = start
        while end - start >= size:
            kind, channel, length, method, tag, bits, last = _CONFIRM.unpack_from(data, start)
            if method == ACK:
                pass
            elif method != NACK:
                break
            if kind != METHOD or length != _CONFIRM_SIZE or last != FRAME_END or channel != 1:
                break
            self._settle(tag, bits & MULTIPLE, method == NACK)
            start += size
        if start != before:
            self.progress_at = time.monotonic()
            with self._changed:
                self._changed.notify_all()
        return start

    def _settle(self, tag: int, multiple: int, nacked: bool) -> None:
        low, above = self.low, self._above
        if multiple:
            if tag <= low:
                return
            if nacked:
                self.nacked.update(each for each in range(low + 1, tag + 1) if each not in above)
            self.settled += tag - low
            if above:
                passed = {each for each in above if each <= tag}
                self.settled -= len(passed)
                above -= passed
            low = tag
        else:
            if tag <= low or tag in above:
                return
            if nacked:
                self.nacked.add(tag)
            self.settled += 1
            if tag != low + 1:
                above.add(tag)
                return
            low = tag
        while above and low + 1 in above:
            low += 1
            above.remove(low)
        self.low = low

    def is_settled(self, tag: int) -> bool:
        return tag <= self.low or tag in self._above

    def content(self, method: Any, properties: Any, body: bytes) -> None:
        """A basic.return: it comes before the confirm of its message."""
        if len(self.returned) < RETURNED_MAX:
            self.returned.append(
                Returned(
                    method.reply_code,
                    method.reply_text,
                    method.exchange,
                    method.routing_key,
                    properties.message_id,
                    properties.headers or {},
                )
            )
        with self._changed:
            self._changed.notify_all()

    def answered(self) -> None:
        """Confirms count by themselves."""

    def ended(self) -> None:
        """The connection wakes waiting threads."""
