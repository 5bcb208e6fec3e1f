"""Compacts a stream from time to time: one pass after the other, in steps that threads run. See
persistence.streams.compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from outcome import Error, Outcome

from amqp_server.streams.layout.keys import keys_of
from persistence.streams import compaction
from persistence.streams.compaction import EVERYTHING, Ended, Pass, Stopped, Throttle
from persistence.streams.log import Segment, StreamLog

logger = logging.getLogger("mqd.streams")

#: Memory of a key while a pass runs, bytes.
KEY_BYTES = 200
#: Time to the next pass after a disk error has ended one, ms: the disk may be full for a while.
REST_MS = 60_000


class Store(Protocol):
    def compact(self, call: Callable[[Throttle], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class Copies(Protocol):
    """The other copies of the stream, on other nodes."""

    def ask_sound_stop(self, then: Callable[[int], None]) -> None:
        """Call `then` with the offset before which no copy has a message that a later one replaces."""


class NoCopies:
    def ask_sound_stop(self, then: Callable[[int], None]) -> None:
        then(EVERYTHING)


class Compaction:
    """Compaction settings of one stream."""

    __slots__ = ("by", "dirty_percent", "keys_max", "tombstone_age_ms")

    def __init__(self, by: str, tombstone_age_ms: int, memory_bytes: int, dirty_percent: int) -> None:
        #: The declared value: key, or header:NAME.
        self.by = by
        self.tombstone_age_ms = tombstone_age_ms
        self.keys_max = max(memory_bytes // KEY_BYTES, 1)
        self.dirty_percent = dirty_percent


class Compacting:
    """The passes of one stream. All calls are on the loop's thread; other threads do the slow work."""

    __slots__ = (
        "_codec",
        "_copies",
        "_failed_at",
        "_log",
        "_name",
        "_now_ms",
        "_rests_until_ms",
        "_settings",
        "_store",
        "passes",
        "running",
        "segment_bytes",
    )

    def __init__(
        self,
        log: StreamLog,
        store: Store,
        settings: Compaction,
        segment_bytes: int,
        codec: str,
        now_ms: Callable[[], int],
        name: str,
        copies: Copies,
    ) -> None:
        self._copies = copies
        self._log = log
        self._store = store
        self._settings = settings
        #: Compacted segments are merged up to this size.
        self.segment_bytes = segment_bytes
        self._codec = codec
        self._now_ms = now_ms
        #: Name for log lines.
        self._name = name
        self.running = False
        #: End of the sealed segments when a pass failed because of a defect: the next pass waits for more
        #: segments.
        self._failed_at = -1
        self._rests_until_ms = 0
        #: Number of finished passes.
        self.passes = 0

    @property
    def stop(self) -> int:
        """The offset up to which everything was compacted."""
        return self._log.clean_stop

    def look(self) -> None:
        """Begin a pass if there is enough to do."""
        log = self._log
        if self.running or not compaction.is_due(log, self._settings.dirty_percent):
            return
        if log.sealed[-1].stop == self._failed_at or self._now_ms() < self._rests_until_ms:
            return
        self.running = True
        settings = self._settings
        keys = keys_of(settings.by)
        self._store.compact(
            lambda throttle: compaction.plan(
                self._log, keys, settings.keys_max, self.segment_bytes, throttle
            ),
            self._planned,
        )

    def _planned(self, outcome: Outcome[Pass]) -> None:
        plan = self._result(outcome)
        if plan is not None:
            self._copies.ask_sound_stop(lambda stop: self._next(plan, 0, stop))

    def _next(self, plan: Pass, number: int, sound_elsewhere: int) -> None:
        """Rewrite the next group of segments; after the last one, record that all were compacted."""
        settings, now_ms = self._settings, self._now_ms()
        keys, until_ms = keys_of(settings.by), now_ms - settings.tombstone_age_ms
        if number == len(plan.groups):
            note = partial(
                self._log.compacted,
                *(plan.latest.stop, plan.sound_stop, plan.mends),
                alone_stop=sound_elsewhere,
                now_ms=now_ms,
                until_ms=until_ms,
            )
            self._store.write(note, self._finished)
            return
        group = plan.groups[number]
        self._store.compact(
            lambda throttle: compaction.rewrite(
                *(self._log, group, plan, keys, until_ms, self._codec, throttle),
                sound_elsewhere=sound_elsewhere,
            ),
            partial(self._written, plan, number, sound_elsewhere),
        )

    def _written(
        self, plan: Pass, number: int, sound_elsewhere: int, outcome: Outcome[Segment | None]
    ) -> None:
        if isinstance(outcome, Error):
            self._result(outcome)
            return
        # The step succeeded; None means that the old segments stay.
        new = outcome.unwrap()
        if new is None:
            self._next(plan, number + 1, sound_elsewhere)
        else:
            self._store.write(
                partial(self._log.replace, plan.groups[number], new),
                partial(self._replaced, plan, number, sound_elsewhere),
            )

    def _replaced(self, plan: Pass, number: int, sound_elsewhere: int, there: bool) -> None:
        if there:
            self._next(plan, number + 1, sound_elsewhere)
        else:
            # Retention or a repair has changed the segments first: look at the current ones. Or the stream is
            # deleted.
            self.running = False
            self.look()

    def _finished(self, result: object) -> None:
        self.running = False
        self.passes += 1
        # More segments may have been sealed meanwhile, and no more publishes may follow to trigger the next
        # pass.
        self.look()

    def _result(self, outcome: Outcome[Any]) -> Any:
        """Return the result of a step; None if the pass ends with it. The stored segments have not changed
        then.
        """
        try:
            return outcome.unwrap()
        except (Stopped, Ended):
            return None
        except OSError as error:
            self._rests_until_ms = self._now_ms() + REST_MS
            logger.warning(
                "%s: compaction failed, the next try is in %d s: %r", self._name, REST_MS // 1000, error
            )
        except Exception as error:
            self._failed_at = self._log.sealed[-1].stop if self._log.sealed else -1
            logger.exception(
                "%s: compaction failed, the next try is when another segment is closed: %r", self._name, error
            )
        self.running = False
        return None


__all__ = ["Compacting", "Compaction", "Copies", "NoCopies"]
