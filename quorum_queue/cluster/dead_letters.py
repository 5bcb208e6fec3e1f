"""The leader of a quorum queue sends its dead letters on.

Where they must not be lost (x-dead-letter-strategy: at-least-once) the queue holds them until their targets have them,
and the log says when that is: so the next leader knows which ones are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.cluster import contents
from quorum_queue.local import DEAD_LETTER_RETRY_MS
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.run import Run

if TYPE_CHECKING:
    from quorum_queue.cluster.group_host import GroupHost


def send(host: GroupHost, letters: list[tuple[Run, Reason]]) -> None:
    """Send those on that are not on their way yet."""
    held = host.replica.machine.dead_lettering
    if len(host.dead_letters_sent) > len(held):
        host.dead_letters_sent = {seq: None for seq in host.dead_letters_sent if seq in held}
    for run, reason in letters:
        certain = host.certain and run.seqs.start in held
        if certain and run.seqs.start in host.dead_letters_sent:
            continue
        _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), certain=certain)


def _send(host: GroupHost, run: Run, reason: Reason, places: contents.Places, *, certain: bool) -> None:
    try:
        found = contents.find(host, places, lambda: _send(host, run, reason, places, certain=certain))
    except contents.BodyGone:
        return
    if found is None:
        return
    run.contents = found
    target = host.services.dead_letters
    if not certain:
        target.dead_letter(host.queue, run, reason, None)
        return
    seq = run.seqs.start
    host.dead_letters_sent[seq] = None

    def done(taken: bool) -> None:
        if host.ended or not host.group.is_leader:
            return
        if taken:
            # It counts as sent until that is applied.
            host.submit(("dead_lettered", seq, seq))
        else:
            host.dead_letters_sent.pop(seq, None)
            host.wake_at(host.services.clock.monotonic_ms() + DEAD_LETTER_RETRY_MS)

    target.dead_letter(host.queue, run, reason, done)
