"""Runs of messages with different attributes."""

from __future__ import annotations

from itertools import cycle, islice

from quorum_queue.machine.run import Attributes, Run


def in_turns(run: Run, others: list[Attributes]) -> list[Attributes]:
    """Let messages with the run's attributes and with others take turns; return those of each message."""
    mine = run.attributes
    found = [mine]
    for other in others:
        # In these a run's messages do not differ.
        other = other._replace(persistent=mine.persistent, channel=mine.channel)
        if other not in found:
            found.append(other)
    each = list(islice(cycle(found), len(run.seqs)))
    if len(set(each)) > 1:
        run.kinds, run.table = bytearray(map(found.index, each)), found
    return each
