"""Messages that leave a queue other than by an ack, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.spec.messages import NEVER, Copy, Death, Flag, Message, Presence, died
from tests.model.spec.queues import Queue
from tests.model.spec.state import State


@dataclass(eq=False)
class Letters(State):
    def dead_letter(self, queue: Queue, copy: Copy, reason: str, *, certain: bool) -> None:
        """A message leaves a queue other than by an ack; for sure, or perhaps."""
        if copy.gone:
            return
        letters_presence = self._letters_presence(queue, copy, reason, certain)
        if not copy.doomed or not copy.letters:
            # Or it did not die before, when there was no place to go to.
            copy.letters = self._letters(queue, copy, reason, letters_presence)
            copy.doomed = True
            if reason != "expired" and copy.may_have_expired(self.now + self.lasts_s):
                for letter in copy.letters:
                    letter.deaths_sure = False
        else:
            for letter in copy.letters:
                letter.presence = max(letter.presence, letters_presence)
                if letter.deaths and letter.deaths[0].reason != reason:
                    # For which of the two reasons is not known.
                    letter.deaths_sure = False
        if certain:
            copy.leave(self.step)
            for letter in copy.letters:
                letter.source = None
        else:
            copy.presence = Presence.MAYBE

    def _letters_presence(self, queue: Queue, copy: Copy, reason: str, certain: bool) -> Presence:
        if not certain or copy.vague or copy.presence is Presence.MAYBE:
            return Presence.MAYBE
        prompt = self.broker.prompt and reason != "expired" and not self.troubled
        return (
            Presence.SURE
            if prompt and queue.settings.dead_letter_strategy == "at-most-once"
            else Presence.COMING
        )

    def _letters(self, queue: Queue, copy: Copy, reason: str, presence: Presence) -> list[Copy]:
        exchange = queue.settings.dead_letter_exchange
        if exchange is None or exchange not in self.exchanges:
            return []
        message = copy.message
        headers = dict(message.headers)
        own = queue.settings.dead_letter_key
        keys = [own] if own is not None else [copy.key, *headers.get("CC", [])]
        deaths = died(copy.deaths, queue.name, reason, copy.exchange, (copy.key,))
        targets = self._route(exchange, keys, headers)
        letters = []
        for name in sorted(targets):
            target = self.queues.get(name)
            if not isinstance(target, Queue) or target.kind == "stream-group":
                continue
            if _in_cycle(name, deaths):
                continue
            self.ordinal += 1
            bare = Message(
                message.number,
                message.size,
                message.exchange,
                message.key,
                message.priority,
                None,
                message.persistent,
                {k: v for k, v in headers.items() if k != "x-deduplication-id"},
            )
            here = presence
            if not target.reachable and queue.settings.dead_letter_strategy == "at-most-once":
                here = Presence.MAYBE
            # Messages of different priorities expire in the order in which they came, or of their priority,
            # and so do those that a limit drops: it may drop several at once.
            ranked = reason in ("expired", "maxlen")
            lane = f"from {queue.name}" + (f" {copy.priority}" if ranked else "")
            if reason == "expired" and self.broker.expires_anywhere is not False:
                # So do those of different TTLs, and those that came back.
                lane += f" {copy.ttl_ms}" if copy.flag is Flag.NO else f" {self.ordinal}"
            # It may have expired long before that is certain.
            sent = copy.sent if reason == "expired" else self.step
            if here is Presence.MAYBE or (
                reason != "expired" and copy.may_have_expired(self.now + self.lasts_s)
            ):
                # Nor is it known which of them died first.
                lane += f" {self.ordinal}"
            letter, outcomes = target.offer(
                bare, sent, lane, self.ordinal, here, exchange, keys[0], is_letter=True
            )
            if "nack" in outcomes and target.settings.overflow == "reject-publish-dlx":
                refused = here if outcomes == {"nack"} else Presence.MAYBE
                self._refuse_letter(target, bare, (exchange, keys[0]), refused, (deaths, copy.deaths_sure))
            if letter is None:
                continue
            letter.deaths, letter.source, letter.deaths_sure = deaths, copy, copy.deaths_sure
            letter.returns = (0, 0)
            if presence is Presence.SURE:
                target.arrived(letter)
            letters.append(letter)
            target.trim()
        return letters

    def _refuse_letter(
        self,
        target: Queue,
        message: Message,
        came_by: tuple[str, str],
        presence: Presence,
        deaths: tuple[tuple[Death, ...], bool],
    ) -> None:
        """A full queue dead-letters a dead letter that it refuses."""
        exchange, key = came_by
        copy = Copy(message, 0, self.step, "", presence, ordinal=self.ordinal, exchange=exchange, key=key)
        copy.deaths, copy.deaths_sure = deaths
        target.copies.append(copy)
        self.dead_letter(target, copy, "maxlen", certain=True)

    def settled_source(self, copy: Copy) -> None:
        """The copy was seen: its source is not in its queue any more, and no letter was made of it."""
        source = copy.source
        if source is not None and not source.gone:
            source.leave(self.step)
            for letter in source.letters:
                # Of a vague one there are letters by two policies, of which one set is the real one.
                if not source.vague and not letter.left_before:
                    letter.presence = max(letter.presence, Presence.COMING)
        copy.source = None
        if copy.doomed:
            for letter in copy.letters:
                if not letter.held:
                    letter.leave(NEVER)
            copy.letters, copy.doomed = [], False

    def letters_lost(self) -> None:
        """After a kill: of what is in doubt, transient letters may be lost, and it may die again."""
        for queue in self.queues.values():
            for copy in queue.copies if isinstance(queue, Queue) else ():
                if copy.doomed and not copy.gone and all(each.gone_at == NEVER for each in copy.letters):
                    copy.letters, copy.doomed = [], False


def _in_cycle(queue: str, deaths: tuple[Any, ...]) -> bool:
    """True if a message would come to a queue in which it has died, without a rejection since."""
    for index, death in enumerate(deaths):
        if death.queue == queue:
            return all(each.reason != "rejected" for each in deaths[: index + 1])
    return False
