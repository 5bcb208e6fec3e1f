"""One node sends the dead letters of a quorum queue on.

Those that are sent at most once leave where their entry was proposed, when it is applied there, and nowhere else. Any
leader applies entries of the terms before its own, and so does every node that starts again: nobody can tell then
whether the letters left already.

Where they must not be lost (x-dead-letter-strategy: at-least-once) the queue holds them until their targets have them,
and the log says when that is: so the next leader knows which ones are left. It sends those again; where they come from
goes with them, and a target that has taken one already only confirms it (see quorum_queue.machine.letters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_queue.cluster import contents
from quorum_queue.local import DEAD_LETTER_RETRY_MS
from quorum_queue.machine import versions
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.replicated import Applied
from quorum_queue.machine.run import Run

#: Among so many letters that are held the lowest position is looked for at each sending.
LOOK_MAX = 1_000

if TYPE_CHECKING:
    from quorum_queue.cluster.group_host import GroupHost


def send_applied(host: GroupHost, applied: Applied) -> None:
    """Send those on that this entry brought."""
    held = _held(host)
    leads, proposed = host.group.is_leader, host.group.proposed(applied.index)
    for run, reason in applied.dead_letters:
        if run.seqs.start in held:
            if leads:
                _send_held(host, run, reason)
        elif proposed:
            _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), held=False)


def send_held(host: GroupHost) -> None:
    """The leader sends those on that the queue holds and that are not on their way yet."""
    for run, reason in list(_held(host).values()):
        _send_held(host, run, reason)


def _held(host: GroupHost) -> dict[int, tuple[Run, Reason]]:
    """Return what the queue holds, by position; forget what was sent and is not held any more."""
    held = host.replica.machine.dead_lettering
    if len(host.dead_letters_sent) > len(held):
        host.dead_letters_sent = {seq: None for seq in host.dead_letters_sent if seq in held}
    return held


def _send_held(host: GroupHost, run: Run, reason: Reason) -> None:
    if run.seqs.start not in host.dead_letters_sent:
        _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), held=True)


def _letter(host: GroupHost, seq: int) -> Letter | None:
    """Return what targets know a letter by; nothing as long as a member may be of a version without."""
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
