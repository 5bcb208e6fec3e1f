"""Services that all streams of a node share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from outcome import Outcome

from amqp_server.streams.layout.layouts import Layouts
from amqp_server.streams.stream_options import StreamOptions
from amqp_server.streams.tiers.remotes import NoStores, Remotes
from persistence.streams.compaction import Throttle
from persistence.streams.compression import NONE
from persistence.streams.deduplication_file import Keeper
from persistence.streams.log import StreamLog
from quorum_queue.clock import Clock, QueueTime
from quorum_queue.memory import MemoryBudget
from quorum_queue.ports import Commits, NoTransactions, Timers, Turn, Undecided

if TYPE_CHECKING:
    from amqp_server.streams.stream_consumer import StreamConsumer


class Journal(Protocol):
    def append(
        self, queue_id: int, first_seq: int, count: int, payload: bytes | list[bytes], head_parts: int = 0
    ) -> None: ...

    def settle(self, queue_id: int, seqs: range) -> None: ...

    def annotate(self, queue_id: int, seq: int, value: bytes) -> None: ...

    def state(self, queue_id: int, value: bytes) -> None: ...

    def drop(self, queue_id: int) -> None: ...

    def recover_queue(self, queue_id: int) -> Any | None: ...


class Store(Protocol):
    def log(
        self, queue_id: int, segment_bytes: int, *, keeper: Keeper | None = None, codec: str = NONE
    ) -> StreamLog: ...

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...

    def compact(self, call: Callable[[Throttle], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def read(self, call: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def keep(self, queue_ids: Iterable[int], may_go: Callable[[int], bool] = ...) -> None: ...


class StreamServices:
    """Services that all streams of the node share."""

    __slots__ = (
        "clock",
        "commits",
        "held",
        "held_bytes",
        "journal",
        "layouts",
        "memory",
        "options",
        "queue_time",
        "remotes",
        "store",
        "tail_bytes",
        "timers",
        "turn",
        "undecided",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        queue_time: QueueTime,
        turn: Turn,
        memory: MemoryBudget,
        timers: Timers,
        journal: Journal,
        commits: Commits,
        store: Store,
        options: StreamOptions,
        remotes: Remotes | None = None,
    ) -> None:
        self.clock = clock
        self.queue_time = queue_time
        self.turn = turn
        self.memory = memory
        self.timers = timers
        self.journal = journal
        self.commits = commits
        self.store = store
        self.options = options
        #: The object stores of the node.
        self.remotes = remotes or Remotes(NoStores())
        self.layouts = Layouts()
        #: In a cluster, who decides about parts of transactions.
        self.undecided: Undecided = NoTransactions()
        #: Bytes of published messages that are not in a segment yet.
        self.tail_bytes = 0
        #: Consumers that have read ahead, the least recently served first; and the bytes that they all hold.
        self.held: dict[StreamConsumer, None] = {}
        self.held_bytes = 0

    def count_held(self, consumer: StreamConsumer, size: int) -> None:
        """Add `size`, which may be negative, to the bytes that a consumer has read ahead, and mark it as just
        served.
        """
        self.held_bytes += size
        consumer.held_bytes += size
        self.held.pop(consumer, None)
        if consumer.held_bytes:
            self.held[consumer] = None
        while self.held_bytes > self.options.read_bytes_max and len(self.held) > 1:
            next(iter(self.held)).let_go()
