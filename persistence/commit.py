"""The commit task: all that waits goes in one transaction, with one sync.

The transaction is filled on the loop's thread in small steps and synced in a worker thread; meanwhile the
next layer fills. Nothing is called durable before the sync has returned.

When the map or the disk is full nothing is lost: the layer stays, publishers are to be stopped (`on_full`),
and it is tried again every second. Space comes back only by settling, and the settles lie behind the layer
that does not fit. Those of turns that did nothing but settle are therefore committed ahead; what was
submitted in one turn, from one await to the next, stays together, because a dead-lettered message is an append here
and a settle there.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import trio

from persistence.errors import StorageFull
from persistence.layer import Layer
from persistence.marks import DeliveredMarks
from persistence.ports import Store

RETRY_SECONDS = 1.0
TEND_SECONDS = 1.0


class Commit:
    def __init__(self, store: Store, marks: DeliveredMarks | None = None) -> None:
        self.on_full: Callable[[bool], None] = lambda full: None
        #: Called when all done()s of a transaction were: what they led to can be sent on at once.
        self.on_durable: Callable[[], None] = lambda: None
        self._store = store
        self._pending = store.pending
        self._marks = marks
        self._worker = trio.CapacityLimiter(1)
        self._wake = trio.Event()
        self._wanted = False
        self._stopping = False
        self._full = False
        self._tended = time.monotonic()
        self._loop: trio.lowlevel.TrioToken | None = None

    def request(self, done: Callable[[], None] | None = None) -> None:
        """All that was submitted so far goes into the next transaction;

        Done() is called once it is durable.
        """
        if done is not None:
            self._pending.open.done.append(done)
        if not self._wanted:
            self._wanted = True
            self._wake.set()
        if self._loop is not None and (self._full or self._pending.is_large):
            # Not now: a turn asks for a commit several times, and more of it may follow. The loop gets to this
            # when the task that runs now has come to an await, and that is the end of its turn.
            self._loop.run_sync_soon(self._pending.close_layer, idempotent=True)

    async def barrier(self) -> None:
        """Wait until all that was submitted before is durable."""
        durable = trio.Event()
        self.request(durable.set)
        await durable.wait()

    def stop(self) -> None:
        """Let `run` return after a last commit."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Raises CommitFailed; then the node has to stop."""
        self._loop = trio.lowlevel.current_trio_token()
        try:
            await self._run()
        finally:
            self._loop = None

    async def _run(self) -> None:
        while True:
            await self._wake_up()
            stopping = self._stopping
            self._wanted = False
            await self._commit_all()
            if stopping and not self._wanted:
                if self._marks is not None:
                    self._marks.flush()
                return

    async def _wake_up(self) -> None:
        if not (self._wanted or self._stopping or self._store.has_erasures()):
            self._wake = trio.Event()
            # Marks are flushed and pages given back within a second, even if nobody commits.
            with trio.move_on_after(TEND_SECONDS):
                await self._wake.wait()
        await self._tend()

    async def _tend(self) -> None:
        now = time.monotonic()
        if now - self._tended >= TEND_SECONDS:
            self._tended = now
            self._store.tend()
            if self._marks is not None and self._marks.changed:
                await trio.to_thread.run_sync(self._marks.flush, limiter=self._worker)

    async def _commit_all(self) -> None:
        """Commit the layers that are here now; those that come meanwhile wait for the next round."""
        last = self._pending.open
        erasing = self._store.has_erasures()
        while last in self._pending.layers and (
            last or last.done or len(self._pending.layers) > 1 or erasing
        ):
            erasing = False
            await self._commit_oldest()

    async def _commit_oldest(self) -> None:
        layer = self._pending.take()
        try:
            if layer or self._store.has_erasures():
                await self._write(layer)
        except StorageFull:
            self._full = True
            self.on_full(True)
            layer = await self._commit_when_it_fits()
            self._full = False
            self.on_full(False)
        self._pending.remove(layer)
        for done in layer.done:
            done()
        if layer.done:
            self.on_durable()

    async def _write(self, layer: Layer) -> None:
        transaction = self._store.transaction(layer)
        try:
            for _ in transaction.apply():
                await trio.lowlevel.checkpoint()
            await trio.to_thread.run_sync(transaction.commit, limiter=self._worker)
        except BaseException:
            transaction.abort()
            raise
        transaction.finish()

    async def _commit_when_it_fits(self) -> Layer:
        while True:
            await trio.sleep(RETRY_SECONDS)
            behind = self._pending.behind()
            await self._commit_erasing(behind)
            layer = self._pending.merge(behind)
            with suppress(StorageFull):
                await self._write(layer)
                return layer

    async def _commit_erasing(self, layers: list[Layer]) -> None:
        """Commit those that only erase, ahead of the oldest layer.

        They stay where they are, too: settling twice is the same as once, and the batches that are not yet
        written need it.
        """
        erasing = self._pending.erasures(layers, self._store.groups.snapshot_index)
        # An empty transaction follows, which lets LMDB use the pages that were freed.
        turns = 2
        while turns or self._store.has_erasures():
            try:
                await self._write(erasing)
            except StorageFull:
                if not self._store.enlarge():
                    return
            else:
                erasing = Layer()
                turns = max(turns - 1, 0)
