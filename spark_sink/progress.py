"""How far a query is behind the ends of its streams: the figures that Spark's Kafka source reports itself.

Spark takes no such figures from a source in Python, but a query's progress has the offsets that they follow
from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_sink.source.offsets import BadCheckpoint
from spark_sink.streams.offsets import Offsets, Partition, from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


@dataclass(frozen=True, slots=True)
class Behind:
    """Number of messages that a source had not read, of each partition, at the end of a micro-batch."""

    partitions: Mapping[Partition, int]

    @property
    def total(self) -> int:
        return sum(self.partitions.values())

    @property
    def metrics(self) -> dict[str, str]:
        """The figures with the names and in the form that the Kafka source gives them."""
        counts = self.partitions.values()
        return {
            "minOffsetsBehindLatest": str(min(counts)),
            "maxOffsetsBehindLatest": str(max(counts)),
            "avgOffsetsBehindLatest": str(self.total / len(counts)),
        }


def behind_latest(progress: StreamingQueryProgress) -> list[Behind]:
    """Return the lag of each source that is a stream, in the order of the query's sources.

    `progress` is a query's `lastProgress`, one of its `recentProgress`, or that of a listener's event.
    """
    found: list[Behind] = []
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        if end is not None and latest:
            counts = {each: max(latest[each] - end.get(each, 0), 0) for each in sorted(latest)}
            found.append(Behind(counts))
    return found


def _offsets(given: Any) -> Offsets | None:
    """Return the offsets of a stream; None if these are another source's."""
    value = json.loads(given) if isinstance(given, str) else given
    if not isinstance(value, dict):
        return None
    try:
        return from_json(value)
    except BadCheckpoint:
        return None


__all__ = ["Behind", "Partition", "behind_latest"]
