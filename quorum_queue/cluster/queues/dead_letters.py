"""One node sends the dead letters of a quorum queue on.

The node that proposed an entry sends its at-most-once dead letters when it applies the entry; no other node
does. Every new leader applies entries of earlier terms, and so does every node that restarts: they cannot
know whether the letters were sent already.

With x-dead-letter-strategy=at-least-once the queue holds dead letters until their targets have them, and the
log records that: so the next leader knows which ones are left. It sends those again with their source, and a
target that has taken one already only confirms it (see quorum_queue.machine.letters).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from quorum_queue.cluster.queues import contents
from quorum_queue.empty import NO_DICT, NO_LIST
from quorum_queue.held_letters import AT_ONCE, FOLLOWING, RETRY_MS, HeldLetters
from quorum_queue.machine import versions
from quorum_queue.machine.effects import Reason
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.replicated import Applied
from quorum_queue.machine.run import Run

#: Returned by `next` when all targets of a dead letter have it.
_SENT: Final = object()
#: With more held letters than this, a sending does not look for the lowest position.
LOOK_MAX: Final = 1_000

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.member_host import GroupHost


class Waiting(NamedTuple):
    """A dead letter that waits for its body."""

    run: Run
    reason: Reason
    places: contents.Places
    #: True if the queue holds it until its targets have it.
    held: bool


def send_applied(host: GroupHost, applied: Applied) -> None:
    """Send the dead letters of this entry."""
    held = host.replica.machine.dead_lettering
    leads, proposed = host.group.is_leader, host.group.proposed(applied.index)
    for run, reason in applied.dead_letters:
        if run.seqs.start in held:
            if leads:
                _send_held(host, run, reason)
        elif proposed:
            _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), held=False)


def send_held(host: GroupHost) -> None:
    """As the leader, send held dead letters that are not on their way, those that waited longest first."""
    letters, held = _letters(host), host.replica.machine.dead_lettering
    if letters is not None:
        letters.forget_lost(held)
        if _send_more(host, letters, held):
            send_waiting(host)


def _send_more(
    host: GroupHost, letters: HeldLetters, held: dict[int, tuple[Run, Reason]], most: int = AT_ONCE
) -> bool:
    """Let more held letters wait to be sent; return whether no others waited already."""
    waited = bool(host.dead_letters_waiting)
    for seq in letters.next(held, most):
        run, reason = held[seq]
        _wait(host, Waiting(run.every(0, 1), reason, host.replica.find(run.seqs), held=True))
    return not waited and bool(host.dead_letters_waiting)


def _letters(host: GroupHost) -> HeldLetters | None:
    held = host.replica.machine.dead_lettering
    if host.held_letters is None and held:
        host.held_letters = HeldLetters(held)
    return host.held_letters


def _send_held(host: GroupHost, run: Run, reason: Reason) -> None:
    letters = _letters(host)
    if letters is not None and run.seqs.start not in letters:
        letters.sent(run.seqs.start)
        _send(host, run.every(0, 1), reason, host.replica.find(run.seqs), held=True)


def _letter(host: GroupHost, seq: int) -> Letter | None:
    """Return the identity of a dead letter for its targets; None while a
    member may run a version without it.
    """
    machine = host.replica.machine
    if machine.version < versions.LETTERS:
        return None
    held = machine.dead_lettering
    return Letter(host.queue_id, seq, min(held, default=seq) if len(held) <= LOOK_MAX else 0)


def _send(host: GroupHost, run: Run, reason: Reason, places: contents.Places, *, held: bool) -> None:
    _wait(host, Waiting(run, reason, places, held))
    if len(host.dead_letters_waiting) == 1:
        send_waiting(host)


def _wait(host: GroupHost, letter: Waiting) -> None:
    if host.dead_letters_waiting is NO_LIST:
        host.dead_letters_waiting = []
    host.dead_letters_waiting.append(letter)


def begin_to_lead(host: GroupHost) -> None:
    """Send all held letters: those that the last leader has sent may not have arrived."""
    host.held_letters = None
    host.dead_letters_waiting = [each for each in host.dead_letters_waiting if not each.held] or NO_LIST


def send_waiting(host: GroupHost) -> None:
    """Send the dead letters whose bodies can be read without a wait."""
    waiting, waits = host.dead_letters_waiting, host.dead_letters_warming.waits
    turn = host.services.turn
    while waiting or host.dead_letter_parts is not None:
        if turn.is_full():
            turn.later(host.dead_letters_warming, host.dead_letters_warming.go_on)
            return
        if host.dead_letter_parts is not None:
            if next(host.dead_letter_parts, _SENT) is _SENT:
                host.dead_letter_parts = None
            continue
        run, places = waiting[0].run, waiting[0].places
        try:
            found = contents.find(host, places, lambda: _go_on(host), waits)
        except contents.BodyGone:
            found = None
        else:
            if found is None:
                return
        letter = waiting.pop(0)
        if found is not None:
            run.contents = found
            host.dead_letter_parts = hand_over(host, letter)
    host.dead_letters_warming.given = NO_DICT


def _go_on(host: GroupHost) -> None:
    if not host.ended:
        send_waiting(host)


def hand_over(host: GroupHost, letter: Waiting) -> Iterator[bool] | None:
    """Send a letter; if it has many targets, return an iterator whose steps send it."""
    run, reason, target = letter.run, letter.reason, host.services.dead_letters
    if not letter.held:
        return target.dead_letter(host.queue, run, reason, None)
    seq = run.seqs.start

    def done(taken: bool) -> None:
        letters = host.held_letters
        if host.ended or not host.group.is_leader or letters is None:
            return
        if not taken:
            letters.refused(seq)
            host.wake_at(host.services.clock.monotonic_ms() + RETRY_MS)
            return
        held = host.replica.machine.dead_lettering
        letters.taken(seq, held)
        host.submit(("dead_lettered", seq, seq))
        if _send_more(host, letters, held, FOLLOWING):
            # Not here: the answer may have come at once.
            host.services.turn.later(host.dead_letters_warming, host.dead_letters_warming.go_on)

    return target.dead_letter(host.queue, run, reason, done, _letter(host, seq))
