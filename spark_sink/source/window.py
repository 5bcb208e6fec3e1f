"""The messages that the broker has delivered to a query and that are not settled: first buffered, then in a
batch.

When the connection is lost the broker delivers all of them again, in order. Buffered messages are simply read
again. The messages of a batch must not be read again, because Spark has them. They are recognised by their
content, and only the new tag of their delivery is kept. A delivery can match a batch only if the broker flags
it as redelivered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from spark_sink.source.deliveries import Run, digest, fingerprint


@dataclass(slots=True)
class Batch:
    """The messages of one micro-batch; `end` is the offset's count after it."""

    end: int
    runs: list[Run]
    digest: str
    identified: bool
    #: Everything up to this tag can be acked at once. None after a reconnect: then `tags` are acked one by
    #: one.
    last_tag: int | None
    tags: list[int] = field(default_factory=list)
    #: Spark has committed it.
    settled: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.runs))

    @property
    def first(self) -> str:
        return fingerprint(next(self.runs[0].contents()))


@dataclass(frozen=True, slots=True)
class Settlement:
    """Acks to send: everything up to a tag, and single tags."""

    through: int | None
    tags: tuple[int, ...]

    def __bool__(self) -> bool:
        return self.through is not None or bool(self.tags)


class Window:
    def __init__(self) -> None:
        self.buffered = 0
        self.buffered_bytes = 0
        self._runs: deque[Run] = deque()
        self._planned: deque[Batch] = deque()
        #: Acks were sent, but the broker has not answered anything since.
        self._acking: list[Batch] = []
        #: After a reconnect: content of a message → the batches that wait for it.
        self._expected: dict[bytes, deque[Batch]] = {}
        self._due: list[int] = []

    def add(self, run: Run) -> None:
        if self._expected:
            matched = self._match(run)
            if matched == len(run):
                return
            run = run.split(matched)[1] if matched else run
        self._buffer(run)

    def _buffer(self, run: Run) -> None:
        self._runs.append(run)
        self.buffered += len(run)
        self.buffered_bytes += len(run.data)

    def _match(self, run: Run) -> int:
        """Match messages that batches wait for; return how many messages of the run are handled."""
        for index, content in enumerate(run.contents()):
            if not self._expected:
                return index
            redelivered = run.redelivered(index)
            batches = self._expected.get(content) if redelivered else None
            if batches is None:
                if not redelivered:
                    # Redelivered messages are at the head of the queue: no more of them will come.
                    self._expected.clear()
                    return index
                self._buffer(run.one(index))
                continue
            batch = batches.popleft()
            if not batches:
                del self._expected[content]
            (self._due if batch.settled else batch.tags).append(run.tag(index))
        return len(run)

    @property
    def unacked(self) -> int:
        """Messages that this connection has brought and that are not acked."""
        planned = (each.count if each.last_tag is not None else len(each.tags) for each in self._planned)
        return self.buffered + len(self._due) + sum(planned)

    @property
    def expecting(self) -> bool:
        """Whether messages that a batch has may still come again."""
        return bool(self._expected)

    def expect_no_more(self) -> None:
        self._expected.clear()

    def first(self, count: int, start: int = 0) -> list[Run]:
        """Return `count` buffered messages after the first `start`, without removing them."""
        found: list[Run] = []
        for run in self._runs:
            if start >= len(run):
                start -= len(run)
                continue
            part = run.split(start)[1] if start else run
            start = 0
            if len(part) > count:
                part = part.split(count)[0] if count else part
            if not count:
                break
            found.append(part)
            count -= len(part)
        return found

    def redelivered(self, count: int) -> bool:
        """Whether each of the first `count` buffered messages was delivered before."""
        return all(run.redelivered(index) for run in self.first(count) for index in range(len(run)))

    def plan(self, position: int, limit: int, bytes_max: int) -> Batch | None:
        """Make a batch of buffered messages: at least one message, if there is one, and then within both
        limits.
        """
        taken: list[Run] = []
        while self._runs and limit and (bytes_max > 0 or not taken):
            run = self._runs.popleft()
            fitting = min(limit, run.count_within(bytes_max))
            if not taken:
                fitting = max(fitting, 1)
            if fitting < len(run):
                if not fitting:
                    self._runs.appendleft(run)
                    break
                run, rest = run.split(fitting)
                self._runs.appendleft(rest)
            taken.append(run)
            self.buffered -= len(run)
            self.buffered_bytes -= len(run.data)
            limit -= len(run)
            bytes_max -= len(run.data)
        if not taken:
            return None
        count = sum(map(len, taken))
        identified = all(run.identified() for run in taken)
        batch = Batch(position + count, taken, digest(taken), identified, taken[-1].tag(-1))
        self._planned.append(batch)
        return batch

    def find(self, first: str, whole: str, count: int, index: int = 0) -> int | None:
        """Position of so many messages with this digest, after others and not before `index`; `first` is the
        fingerprint of the first one.
        """
        for run in self.first(self.buffered - index, index):
            for content in run.contents():
                if index + count > self.buffered:
                    return None
                if fingerprint(content) == first and digest(self.first(count, index)) == whole:
                    return index
                index += 1
        return None

    def extract(self, position: int, start: int, count: int) -> Batch:
        """Make a batch of messages that come after others, which are read later."""
        taken, left = self.first(count, start), self.buffered - start - count
        self._runs = deque([*self.first(start), *self.first(left, start + count)])
        self.buffered -= count
        self.buffered_bytes -= sum(len(run.data) for run in taken)
        tags = [run.tag(index) for run in taken for index in range(len(run))]
        identified = all(run.identified() for run in taken)
        batch = Batch(position + count, taken, digest(taken), identified, None, tags)
        self._planned.append(batch)
        return batch

    def batch(self, end: int) -> Batch | None:
        """The batch that ends with this count, if it is not settled."""
        return next((batch for batch in self._planned if batch.end == end), None)

    def settle(self, count: int) -> Settlement:
        """Spark is done with everything up to `count`."""
        through: int | None = None
        tags = self._due
        self._due = []
        while self._planned and self._planned[0].end <= count:
            batch = self._planned.popleft()
            batch.settled = True
            self._acking.append(batch)
            if batch.last_tag is not None:
                through = batch.last_tag
            else:
                tags += batch.tags
        return Settlement(through, tuple(tags))

    def forget(self) -> None:
        """Drop planned batches, and leave them unacked."""
        self._planned.clear()

    def confirmed(self) -> None:
        """The broker has answered a method that was sent after the acks."""
        self._acking.clear()

    def lost(self) -> None:
        """The connection is lost, and all unacked messages will come again."""
        still = [batch for batches in self._expected.values() for batch in batches if batch.settled]
        self._runs.clear()
        self.buffered = self.buffered_bytes = 0
        self._due = []
        # An ack may or may not have arrived. If messages cannot be distinguished by their content, they are
        # read once more instead of being treated as done.
        unsure = [batch for batch in self._acking if batch.identified and batch not in still]
        self._acking.clear()
        self._expected = {}
        for batch in (*_once(still), *unsure, *self._planned):
            batch.last_tag, batch.tags = None, []
            for run in batch.runs:
                for content in run.contents():
                    self._expected.setdefault(content, deque()).append(batch)


def _once(batches: list[Batch]) -> list[Batch]:
    found: dict[int, Batch] = {}
    for batch in batches:
        found.setdefault(id(batch), batch)
    return list(found.values())
