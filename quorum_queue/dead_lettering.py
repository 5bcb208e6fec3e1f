"""Dead letters of a queue on this node.

Their bodies may have left memory. Then they wait until the disk can give them without a wait, all later ones wait
behind them, and their records stay: so a letter and its message never leave the disk in different commits.
"""

from __future__ import annotations

from collections import deque

from quorum_queue.machine.effects import Effects, Reason
from quorum_queue.machine.run import Run
from quorum_queue.paging import Paging

#: A dead letter that found no taker is tried again after this time.
DEAD_LETTER_RETRY_MS = 1_000


class DeadLettering(Paging):
    """The part of a host that sends dead letters."""

    #: Held dead letters, by position, that wait for the disk or whose targets have not answered yet.
    _letters_sent: dict[int, None]
    #: Dead letters that wait for the disk, in order.
    _letters_waiting: deque[tuple[Run, Reason]]
    #: So many of the first of them can be read without a wait, once no store has any of these to read.
    _letters_asked: int
    _letters_cold: int
    _wake_at: int | None

    def _send_dead_letters(self, effects: Effects) -> None:
        letters = effects.dead_letters
        if not self._letters_waiting and all(run.contents is not None for run, _ in letters):
            for run, reason in letters:
                self._send_letter(run, reason)
            return
        later = dict.fromkeys(id(run) for run, _ in letters)
        effects.settled = [run for run in effects.settled if id(run) not in later]
        self._letters_waiting += letters
        held = self.machine.dead_lettering
        self._letters_sent.update(
            dict.fromkeys(run.seqs.start for run, _ in letters if run.seqs.start in held)
        )
        self._send_waiting_letters()

    def _send_waiting_letters(self) -> None:
        """Send the dead letters whose bodies can be read without a wait, and forget their messages."""
        waiting, sent = self._letters_waiting, list[Run]()
        while waiting and self._letters_are_at_hand():
            run, reason = waiting.popleft()
            self._letters_asked -= 1
            if self._send_late(run, reason):
                sent.append(run)
        if self._forget(sent):
            self.services.commits.request()

    def _send_late(self, run: Run, reason: Reason) -> bool:
        """Send a dead letter that has waited; return whether its message leaves the queue with that."""
        seq = run.seqs.start
        held = seq in self._letters_sent
        if held and seq not in self.machine.dead_lettering:
            # The disk has lost it.
            del self._letters_sent[seq]
        else:
            self._send_letter(run, reason)
        return not held

    def _letters_are_at_hand(self) -> bool:
        if self._letters_cold:
            return False
        if self._letters_asked > 0:
            return True
        runs: list[Run] = []
        self._letters_asked = size = 0
        for run, _ in self._letters_waiting:
            self._letters_asked += 1
            size += run.size
            if run.contents is None:
                runs.append(run)
            if size >= self.services.read_ahead.memory_bytes:
                break
        self._letters_cold = self._ask(runs, self._letters_came)
        return not self._letters_cold

    def _letters_came(self) -> None:
        """The disk has given what was asked for."""
        self._letters_cold -= 1
        if not self._letters_cold and not self.ended:
            self._turn.schedule(self)

    def _flush_letters(self) -> None:
        """Send all that wait: the queue goes."""
        while self._letters_waiting:
            self._send_late(*self._letters_waiting.popleft())

    def _send_letter(self, run: Run, reason: Reason) -> None:
        if run.contents is None and not self._load(run, keep=True):
            for _, part in self._what_is_left(run):
                self.services.dead_letters.dead_letter(self.queue, part, reason, None)
        elif self.holds_dead_letters and run.seqs.start in self.machine.dead_lettering:
            self._send_certainly(run, reason)
        else:
            self.services.dead_letters.dead_letter(self.queue, run, reason, None)

    def _send_certainly(self, run: Run, reason: Reason) -> None:
        """Send a dead letter that is held until its targets have it."""
        first, last = run.seqs[0], run.seqs[-1]
        self._letters_sent[first] = None

        def done(taken: bool) -> None:
            self._letters_sent.pop(first, None)
            if self.ended:
                return
            if taken:
                self.submit(("dead_lettered", first, last))
            else:
                self._wake_by(self.services.clock.monotonic_ms() + DEAD_LETTER_RETRY_MS)

        self.services.dead_letters.dead_letter(self.queue, run, reason, done)

    def _retry_dead_letters(self) -> None:
        for seq, (run, reason) in list(self.machine.dead_lettering.items()):
            if seq not in self._letters_sent:
                self._send_certainly(run, reason)

    def _wake_by(self, at_ms: int) -> None:
        """Have a timer set for this time of the monotonic clock, or one before it."""
        if self._wake_at is None or self._wake_at > at_ms:
            self._wake_at = at_ms
            self.services.timers.wake(self, at_ms)

    def _forget(self, settled: list[Run]) -> bool:
        """Delete the entries of settled messages and give their memory back; say whether the journal was written."""
        raise NotImplementedError
