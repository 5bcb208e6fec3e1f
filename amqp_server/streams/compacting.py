"""Has a stream compacted now and then: one pass after the other, in steps that threads do. See
persistence.streams.compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from outcome import Error, Outcome

from amqp_server.streams.keys import keys_of
from persistence.streams import compaction
from persistence.streams.compaction import Ended, Plan, Stopped, Throttle
from persistence.streams.log import Segment, StreamLog

logger = logging.getLogger("mqd.streams")

#: What a key takes up while a pass runs, bytes.
KEY_BYTES = 200
#: Time until another pass is begun after the disk has failed one, ms: it may be full for a while.
REST_MS = 60_000


class Store(Protocol):
    """See persistence.streams.store."""

    def compact(self, call: Callable[[Throttle], Any], done: Callable[[Outcome[Any]], None]) -> None: ...

    def write(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class Compaction:
    """What is set for one stream."""

    __slots__ = ("by", "dirty_percent", "keys_max", "tombstone_age_ms")

    def __init__(self, by: str, tombstone_age_ms: int, memory_bytes: int, dirty_percent: int) -> None:
        #: As declared: key, or header:NAME.
        self.by = by
        self.tombstone_age_ms = tombstone_age_ms
        self.keys_max = max(memory_bytes // KEY_BYTES, 1)
        self.dirty_percent = dirty_percent


class Compacting:
    """The passes of one stream. All calls on the loop's thread; threads do what takes time."""

    __slots__ = (
        "_codec",
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
    ) -> None:
        self._log = log
        self._store = store
        self._settings = settings
        #: Segments are put together as far as they are not larger.
        self.segment_bytes = segment_bytes
        self._codec = codec
        self._now_ms = now_ms
        #: For the log.
        self._name = name
        self.running = False
        #: Where sealed segments ended when a defect has failed a pass: it begins anew when there are more.
        self._failed_at = -1
        self._rests_until_ms = 0
        #: That came to their end.
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

    def _planned(self, outcome: Outcome[Plan]) -> None:
        plan = self._result(outcome)
        if plan is not None:
            self._next(plan, 0)

    def _next(self, plan: Plan, number: int) -> None:
        """Have the next group written anew; at the end, have it noted that all were."""
        if number == len(plan.groups):
            self._store.write(partial(self._log.compacted, plan.latest.stop), self._finished)
            return
        settings, group = self._settings, plan.groups[number]
        keys, until_ms = keys_of(settings.by), self._now_ms() - settings.tombstone_age_ms
        self._store.compact(
            lambda throttle: compaction.rewrite(
                self._log, group, plan.latest, keys, until_ms, self._codec, throttle
            ),
            partial(self._written, plan, number),
        )

    def _written(self, plan: Plan, number: int, outcome: Outcome[Segment | None]) -> None:
        if isinstance(outcome, Error):
            self._result(outcome)
            return
        # Nothing came up: None means that the old ones stay.
        new = outcome.unwrap()
        if new is None:
            self._next(plan, number + 1)
        else:
            self._store.write(
                partial(self._log.replace, plan.groups[number], new), partial(self._replaced, plan, number)
            )

    def _replaced(self, plan: Plan, number: int, there: bool) -> None:
        if there:
            self._next(plan, number + 1)
        else:
            # Retention or a mended damage was faster: what is there now is looked at. Or the stream is gone.
            self.running = False
            self.look()

    def _finished(self, result: object) -> None:
        self.running = False
        self.passes += 1
        # More may have been sealed meanwhile, by publishers who are done.
        self.look()

    def _result(self, outcome: Outcome[Any]) -> Any:
        """Return what a step has brought; None if the pass ends with it. What is stored is as it was."""
        try:
            return outcome.unwrap()
        except (Stopped, Ended):
            return None
        except OSError as error:
            self._rests_until_ms = self._now_ms() + REST_MS
            logger.warning("%s is not compacted for %d s: %r", self._name, REST_MS // 1000, error)
        except Exception as error:
            self._failed_at = self._log.sealed[-1].stop if self._log.sealed else -1
            logger.exception("%s is not compacted until more is sealed: %r", self._name, error)
        self.running = False
        return None


__all__ = ["Compacting", "Compaction"]
