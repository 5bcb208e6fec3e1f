"""Dead letters of a queue on this node.

Their bodies may have left memory. Then they wait until the bodies can be read without waiting for the disk,
all later ones wait behind them, and their records stay: so a letter arrives and its message leaves the disk
in the same commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from quorum_queue.empty import NO_DEQUE
from quorum_queue.held_letters import AT_ONCE, FOLLOWING, RETRY_MS, HeldLetters
from quorum_queue.machine.effects import Effects, Reason
from quorum_queue.machine.run import Run
from quorum_queue.paging import Paging

if TYPE_CHECKING:
    from quorum_queue.ports import Commits

#: Dead letters that are sent before the turn may end.
LETTERS_MAX: Final = 4


class WaitingLetters(NamedTuple):
    """Messages that have died and are not sent yet."""

    run: Run
    reason: Reason
    #: Messages that leave the queue when they are sent.
    leave: bool
    #: Messages that are held until their targets have them.
    held: bool


class WideLetter:
    """Dead letters with many targets, which get them over several turns, or letters that take long to
    prepare.
    """

    __slots__ = ("_begun", "_commits", "_go_on", "_granted", "_over", "_parts", "leaving", "may_go_on")

    def __init__(
        self,
        parts: Iterator[bool],
        leaving: Run | None,
        commits: Commits | None,
        go_on: Callable[[], None],
    ) -> None:
        """`commits` is the journal's, if the letters leave it: all changes then reach the disk at once. It
        holds other changes back, so it is asked when the letters are prepared. `go_on` is called when it
        permits.
        """
        self._parts = parts
        #: Messages that leave the queue when everything is sent.
        self.leaving = leaving
        self._commits = commits
        self._go_on = go_on
        self._begun = self._granted = self._over = False
        self.may_go_on = True

    def _begin(self) -> None:
        commits = self._commits
        if commits is None:
            return
        self.may_go_on = False

        def granted() -> None:
            assert commits is not None
            if self._over:
                # Meanwhile the letters were all sent at once, or dropped.
                commits.release()
                return
            self._granted = self.may_go_on = True
            self._go_on()

        commits.hold(granted)

    def send_some(self) -> bool:
        """Prepare a part, or send to some targets; False if all have it."""
        for prepared in self._parts:
            if prepared and not self._begun:
                self._begun = True
                self._begin()
            return True
        return False

    def end(self) -> None:
        """The letter was sent, or will never be sent."""
        self._over = True
        if self._granted and self._commits is not None:
            self._granted = False
            self._commits.release()


class DeadLettering(Paging):
    """The part of a host that sends dead letters."""

    #: Those that the queue holds; None if it has never held any.
    _held_letters: HeldLetters | None
    #: Dead letters that wait for the disk or for a later turn, in order.
    _letters_waiting: deque[WaitingLetters]
    #: Number of dead letters at the front that can be read without a wait, once no store is reading for them
    #: any more.
    _letters_asked: int
    _letters_cold: int
    _letters_under_way: bool
    #: The letters that are being sent, if they have many targets.
    _letter_wide: WideLetter | None
    _wake_at: int | None

    def _send_dead_letters(self, effects: Effects) -> None:
        """Send dead letters in order. Letters that need not be held leave the queue then."""
        settled = {id(run) for run in effects.settled}
        leaving = {id(run) for run, _ in effects.dead_letters if id(run) in settled}
        effects.settled = [run for run in effects.settled if id(run) not in leaving]
        held = self.machine.dead_lettering if self.holds_dead_letters else {}
        for run, reason in effects.dead_letters:
            is_held = run.seqs.start in held
            if is_held:
                self._note_sent(run.seqs.start)
            self._wait_with(WaitingLetters(run, reason, id(run) in leaving, is_held))
        self._send_waiting_letters()

    def _note_sent(self, seq: int) -> None:
        if self._held_letters is None:
            self._held_letters = HeldLetters(self.machine.dead_lettering)
        self._held_letters.sent(seq)

    def _wait_with(self, letters: WaitingLetters) -> None:
        if self._letters_waiting is NO_DEQUE:
            self._letters_waiting = deque()
        self._letters_waiting.append(letters)

    def _send_waiting_letters(self) -> None:
        """Send as many as can be read without a wait, but not in an overdue turn: queues that send each other
        dead letters would never let the turn end, and their targets take the turn's time, too.
        """
        if self._letters_under_way:
            # An answer came at once and has applied commands.
            return
        self._letters_under_way = True
        wrote, letters = False, 1
        try:
            while self._letters_can_go_on():
                if self._turn.is_full(letters):
                    self._turn.later(self, self.apply_pending)
                    break
                wrote = self._send_next() or wrote
                letters += LETTERS_MAX
        finally:
            self._letters_under_way = False
        if wrote:
            self.services.commits.request()

    def _letters_can_go_on(self) -> bool:
        if self._letter_wide is not None:
            return self._letter_wide.may_go_on
        if self.machine.holds and not self.ended:
            # They may be of a transaction that is not complete, and must not be seen before it is.
            return False
        return bool(self._letters_waiting) and self._letters_are_at_hand()

    def _send_next(self) -> bool:
        """Send the first few letters, or one letter to some of many targets; return whether the journal was
        written.
        """
        if self._letter_wide is not None:
            return not self._letter_wide.send_some() and self._wide_is_sent(self._letter_wide)
        run, reason, leave, held = self._letters_waiting[0]
        if len(run.seqs) > LETTERS_MAX:
            run = run.take(LETTERS_MAX)
        else:
            self._letters_waiting.popleft()
            self._letters_asked -= 1
            if not self._letters_waiting:
                self._letters_waiting = NO_DEQUE
        if held and run.seqs.start not in self.machine.dead_lettering:
            # The disk has lost the body.
            if self._held_letters is not None:
                self._held_letters.gone(run.seqs.start)
            return False
        parts = self._send_letters(run, reason, held=held)
        if parts is None:
            return leave and self._forget([run])
        stored = leave and self.journalled and run.attributes.persistent
        commits = self.services.commits if stored else None
        self._letter_wide = WideLetter(parts, run if leave else None, commits, self._wide_may_go_on)
        return False

    def _wide_may_go_on(self) -> None:
        self._turn.schedule(self)

    def _wide_is_sent(self, wide: WideLetter) -> bool:
        self._letter_wide = None
        wrote = wide.leaving is not None and self._forget([wide.leaving])
        # The targets apply the last part in this turn, before the store continues.
        wide.end()
        return wrote

    def _letters_are_at_hand(self) -> bool:
        if self._letters_cold:
            return False
        if self._letters_asked > 0:
            return True
        runs: list[Run] = []
        self._letters_asked = size = 0
        for run, *_ in self._letters_waiting:
            self._letters_asked += 1
            size += run.size
            if run.contents is None:
                runs.append(run)
            if size >= self.services.read_ahead.memory_bytes:
                break
        self._letters_cold = self._ask(runs, self._letters_came)
        return not self._letters_cold

    def _letters_came(self) -> None:
        """The disk has read the bodies."""
        self._letters_cold -= 1
        if not self._letters_cold and self.ended != "failed":
            self._turn.schedule(self)

    @property
    def _has_letters(self) -> bool:
        return bool(self._letters_waiting) or self._letter_wide is not None

    def _send_letters(self, run: Run, reason: Reason, *, held: bool) -> Iterator[bool] | None:
        if run.contents is None and not self._load(run, keep=not self.ended):
            if held and self._held_letters is not None:
                self._held_letters.refused(run.seqs.start)
            for _, part in self._what_is_left(run):
                for _ in self.services.dead_letters.dead_letter(self.queue, part, reason, None) or ():
                    pass
            return None
        if held:
            return self._send_certainly(run, reason)
        return self.services.dead_letters.dead_letter(self.queue, run, reason, None)

    def _send_certainly(self, run: Run, reason: Reason) -> Iterator[bool] | None:
        """Send a dead letter that is held until its targets have it."""
        first, last = run.seqs[0], run.seqs[-1]

        def done(taken: bool) -> None:
            letters = self._held_letters
            if self.ended or letters is None:
                return
            if not taken:
                letters.refused(first)
                self._wake_by(self.services.clock.monotonic_ms() + RETRY_MS)
                return
            letters.taken(first, self.machine.dead_lettering)
            self.submit(("dead_lettered", first, last))
            self._send_held(letters, FOLLOWING)

        return self.services.dead_letters.dead_letter(self.queue, run, reason, done)

    def _retry_dead_letters(self) -> None:
        held = self.machine.dead_lettering
        if self._held_letters is None:
            self._held_letters = HeldLetters(held)
        self._held_letters.forget_lost(held)
        self._send_held(self._held_letters, AT_ONCE)
        self._send_waiting_letters()

    def _send_held(self, letters: HeldLetters, most: int) -> None:
        """Let so many held letters, at most, wait to be sent."""
        held = self.machine.dead_lettering
        for seq in letters.next(held, most):
            run, reason = held[seq]
            self._wait_with(WaitingLetters(run, reason, leave=False, held=True))

    def _wake_by(self, at_ms: int) -> None:
        """Set a timer for this time of the monotonic clock, or use an earlier one."""
        if self._wake_at is None or self._wake_at > at_ms:
            self._wake_at = at_ms
            self.services.timers.wake(self, at_ms)

    def _forget(self, settled: list[Run]) -> bool:
        """Delete the entries of settled messages and release their memory; return whether the journal was
        written.
        """
        raise NotImplementedError
