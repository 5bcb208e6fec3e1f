"""Runs: consecutive messages that share everything but their content.

A queue of a million messages is a few hundred runs. A prefetch window, an `ack multiple` and two hundred acks
of one read are each one run. So the machine's work is per run, and the per-message work is slicing, which C
does.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from quorum_queue.machine.attributes import Attributes as Attributes

#: Longest run that merging makes: long enough that its own cost does not matter, short enough to page in and
#: out.
RUN_LENGTH_MAX: Final = 2048
#: The same in bytes: a run is paged out, and in again, as a whole.
RUN_BYTES_MAX = 1 << 20
#: A run at most this long joins a run with other heads, which then keeps one head per message.
MIXED_LENGTH_MAX: Final = 16


DEFAULT_ATTRIBUTES = Attributes()


class Run:
    """Messages with the sequence numbers `seqs`, in order.

    `contents` holds one handle for each message (content frames as they travel), or None while the bodies are
    paged out; then `sizes` holds their lengths in bytes. `head` is the routing that all share; a mixed run
    has `heads`.
    """

    __slots__ = (
        "attempts",
        "attributes",
        "contents",
        "expires_at",
        "head",
        "heads",
        "ready",
        "redelivered",
        "seqs",
        "size",
        "sizes",
        "spilled",
    )

    def __init__(
        self,
        seqs: range,
        contents: list[bytes] | None,
        head: bytes,
        attributes: Attributes = DEFAULT_ATTRIBUTES,
        expires_at: int | None = None,
        size: int = -1,
    ) -> None:
        self.seqs = seqs
        self.contents = contents
        self.sizes: array[int] | None = None
        self.head = head
        self.heads: list[bytes] | None = None
        self.attributes = attributes
        #: Deadline in ms of the machine's time, None for never.
        self.expires_at = expires_at
        self.redelivered = False
        #: How often each message was delivered and returned (counted by a delivery limit).
        self.attempts = 0
        #: Bytes of all contents together.
        self.size = sum(map(len, contents)) if size < 0 and contents is not None else size
        #: True if it is in the queue, not with a consumer.
        self.ready = False
        #: True if all bodies are in the spill, whether they are in memory or not: no position is written
        #: there twice.
        self.spilled = False

    def __len__(self) -> int:
        return len(self.seqs)

    def __repr__(self) -> str:
        return f"Run({self.seqs!r}, {self.size} bytes, attempts={self.attempts})"

    @property
    def counted_bytes(self) -> int:
        """Bytes that a limit in bytes counts."""
        return self.size - self.attributes.overhead * len(self.seqs)

    def _like(self, seqs: range) -> Run:
        run = Run(seqs, None, self.head, self.attributes, self.expires_at, 0)
        run.redelivered = self.redelivered
        run.attempts = self.attempts
        run.spilled = self.spilled
        return run

    def take(self, count: int) -> Run:
        """Cut off the first `count` messages (fewer than all) and return them."""
        front = self._like(self.seqs[:count])
        self.seqs = self.seqs[count:]
        if self.heads is not None:
            front.heads = self.heads[:count]
            del self.heads[:count]
        if self.contents is not None:
            front.contents = self.contents[:count]
            del self.contents[:count]
            front.size = sum(map(len, front.contents))
        elif self.sizes is not None:
            front.sizes = self.sizes[:count]
            del self.sizes[:count]
            front.size = sum(front.sizes)
        self.size -= front.size
        return front

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return which messages have positions from `low` to `high`: the first of them and the one after the
        last.
        """
        start, step, count = self.seqs.start, self.seqs.step, len(self.seqs)
        first = min(max(0, -((start - low) // step)), count)
        return first, max(first, min(count, (high - start) // step + 1))

    def every(self, first: int, step: int) -> Run:
        """Return the messages first, first+step, … as a run of their own;
        this run is to be forgotten then.
        """
        part = self._like(self.seqs[first::step])
        if self.heads is not None:
            part.heads = self.heads[first::step]
        if self.contents is not None:
            part.contents = self.contents[first::step]
            part.size = sum(map(len, part.contents))
        elif self.sizes is not None:
            part.sizes = self.sizes[first::step]
            part.size = sum(part.sizes)
        return part

    def singles(self) -> list[Run]:
        """Split into runs of one message each."""
        count = len(self.seqs)
        runs = [self.every(index, count) for index in range(count)]
        for run in runs:
            run.seqs = range(run.seqs.start, run.seqs.start + 1)
        return runs

    def head_of(self, index: int) -> bytes:
        """Return the routing of one message."""
        return self.head if self.heads is None else self.heads[index]

    def absorb(self, later: Run) -> bool:
        """Append a run that follows directly, if the two may be one; return whether they were joined."""
        if (
            (self.contents is None) is not (later.contents is None)
            or self.size + later.size > RUN_BYTES_MAX
            or not (self.attributes == later.attributes or self._alike(later))
            or self.expires_at != later.expires_at
            or self.attempts != later.attempts
            or self.redelivered != later.redelivered
            or self.spilled is not later.spilled
            or self.seqs.step != 1
            or later.seqs.step != 1
            or self.seqs.stop != later.seqs.start
            or len(self.seqs) + len(later.seqs) > RUN_LENGTH_MAX
        ):
            return False
        if self.heads is not None or later.heads is not None or self.head != later.head:
            if len(later.seqs) > MIXED_LENGTH_MAX and self.heads is None:
                return False
            if self.heads is None:
                self.heads = [self.head] * len(self.seqs)
            self.heads += later.heads if later.heads is not None else [later.head] * len(later.seqs)
        self.seqs = range(self.seqs.start, later.seqs.stop)
        if self.contents is not None and later.contents is not None:
            self.contents += later.contents
        elif self.sizes is not None and later.sizes is not None:
            self.sizes += later.sizes
        self.size += later.size
        if later.attributes.frame_bytes > self.attributes.frame_bytes:
            self.attributes = later.attributes
        return True

    def _alike(self, later: Run) -> bool:
        """Return whether the attributes differ at most in the frame size, of
        which a run keeps the largest.
        """
        return self.attributes._replace(frame_bytes=later.attributes.frame_bytes) == later.attributes

    def page_out(self) -> int:
        """Drop the bodies, keep their sizes; return the bytes that this freed."""
        if self.contents is None:
            return 0
        self.sizes = array("I", map(len, self.contents))
        self.contents = None
        return self.size

    def page_in(self, contents: list[bytes]) -> None:
        """Put the bodies back."""
        self.contents = contents
        self.sizes = None


class LargeRun(Run):
    """New messages of which some large ones were prepared before; these are identified by their contents."""

    __slots__ = ("made",)

    def __init__(
        self,
        seqs: range,
        contents: list[bytes],
        head: bytes,
        attributes: Attributes,
        size: int,
        made: dict[int, Any],
    ) -> None:
        super().__init__(seqs, contents, head, attributes, None, size)
        self.made = made
