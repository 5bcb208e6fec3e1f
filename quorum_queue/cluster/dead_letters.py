"""One node sends the dead letters of a quorum queue on.

The node that proposed an entry sends its at-most-once dead letters when it applies the entry; no other node
does. Every new leader applies entries of earlier terms, and so does every node that restarts: they cannot
know whether the letters were sent already.

With x-dead-letter-strategy=at-least-once the queue holds dead letters until their targets have them, and the
log records that: so the next leader knows which ones are left. It sends those again with their source, and a
target that has taken one already only confirms it (see quorum_queue.machine.letters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.cluster import contents
from quorum_queue.dead_lettering import DEAD_LETTER_RETRY_MS
from quorum_queue.machine import versions
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.replicated import Applied
from quorum_queue.machine.run import Run

#: Each sending looks for the lowest position among at most so many held letters.
LOOK_MAX = 1_000

if TYPE_CHECKING:
    from quorum_queue.cluster.group_host import GroupHost


def send_applied(host: GroupHost, applied: Applied) -> None:
    """Send the dead letters of this entry."""
    held = _held(host)
    leads, proposed = host.group.is_leader, host.group.proposed(applied.index)
    for run, reason in applied.dead_letters:
        if run.seqs.start in held:
            if leads:
                _send_held(host, run, reason)
        elif proposed:
            _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), held=False)


def send_held(host: GroupHost) -> None:
    """As the leader, send the held dead letters that are not on their way yet."""
    for run, reason in list(_held(host).values()):
        _send_held(host, run, reason)


def _held(host: GroupHost) -> dict[int, tuple[Run, Reason]]:
    """Return the held dead letters by position; forget sent ones that are no longer held."""
    held = host.replica.machine.dead_lettering
    if len(host.dead_letters_sent) > len(held):
        host.dead_letters_sent = {seq: None for seq in host.dead_letters_sent if seq in held}
    return held


def _send_held(host: GroupHost, run: Run, reason: Reason) -> None:
    if run.seqs.start not in host.dead_letters_sent:
        _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), held=True)


def _letter(host: GroupHost, seq: int) -> Letter | None:
    """Return the identity of a dead letter for its targets; None while a member may run a version without it."""
    machine = host.replica.machine
    if machine.version < versions.LETTERS:
        return None
    held = machine.dead_lettering
    return Letter(host.queue_id, seq, min(held, default=seq) if len(held) <= LOOK_MAX else 0)


def _send(host: GroupHost, run: Run, reason: Reason, places: contents.Places, *, held: bool) -> None:
    try:
        found = contents.find(host, places, lambda: _send(host, run, reason, places, held=held))
    except contents.BodyGone:
        return
    if found is None:
        return
    run.contents = found
    target = host.services.dead_letters
    if not held:
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

    target.dead_letter(host.queue, run, reason, done, _letter(host, seq))
