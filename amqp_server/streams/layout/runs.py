"""Messages of a stream in the form of other queues, for gets of single messages and for consumers behind a
link.
"""

from __future__ import annotations

from persistence.streams.batch import Batch
from quorum_queue.machine.attributes import Attributes
from quorum_queue.machine.run import Run


def run_of(batch: Batch) -> Run:
    """Return a batch as a run."""
    heads: list[bytes] = []
    contents: list[bytes] = []
    items = bytes(batch.items)
    at = largest = 0
    for shape in batch.shapes:
        largest = max(largest, shape.second + 8, shape.third)
        for start in range(at, at + shape.count * shape.size, shape.size):
            head_stop = start + 1 + shape.first
            heads.append(items[start + 1 : head_stop])
            contents.append(items[head_stop + 1 : start + shape.size])
        at += shape.count * shape.size
    attributes = Attributes(True, 0, None, 1, largest)
    run = Run(range(batch.base, batch.base + len(contents)), contents, heads[0], attributes)
    if any(head != heads[0] for head in heads):
        run.heads = heads
    run.redelivered = items[0] == 1
    return run


__all__ = ["run_of"]
