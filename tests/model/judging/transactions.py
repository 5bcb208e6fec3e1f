"""Steps that make channels confirm, and transactions, which are seen as a whole."""

from __future__ import annotations

from pamqp import commands

from tests.model.client import wait_readable
from tests.model.judging.messages import Messages
from tests.model.programs import Step
from tests.model.spec.promises import OK, Broken
from tests.model.spec.queues import Queue


class Transactions(Messages):
    def _do_confirm(self, step: Step) -> None:
        number, channel = self._channel(step)
        self._call(
            number,
            channel.number,
            commands.Confirm.Select(),
            commands.Confirm.SelectOk,
            self.model.select(channel, "confirm"),
        )

    def _do_tx(self, step: Step) -> None:
        number, channel = self._channel(step)
        self._call(
            number,
            channel.number,
            commands.Tx.Select(),
            commands.Tx.SelectOk,
            self.model.select(channel, "tx"),
        )

    def _do_rollback(self, step: Step) -> None:
        number, channel = self._channel(step)
        self._call(
            number,
            channel.number,
            commands.Tx.Rollback(),
            commands.Tx.RollbackOk,
            self.model.rollback(channel),
        )

    def _do_commit(self, step: Step) -> None:
        number, channel = self._channel(step)
        watched = step.get("watch")
        before = self._watched(watched)
        promise = self.model.commit(channel)
        self.clients[number].send(channel.number, commands.Tx.Commit())
        counts = [queue.count() for queue in self._queues(watched or [])]
        if (
            watched
            # Elsewhere a count may show a part (docs/transactions.md).
            and self.model.broker.nodes == 1
            and OK in promise.codes
            and before is not None
            and all(low == high for low, high in counts)
        ):
            after = [low for low, _ in counts]
            while not self.clients[number].events and self.clients[number].gone is None:
                self._check_whole(watched, before, self._watched(watched), after)
                wait_readable([self.clients[number]], 0)
        self._answer(number, channel.number, "Tx.Commit", commands.Tx.CommitOk, promise)

    def _check_whole(
        self, names: list[str], before: list[int], now: list[int] | None, after: list[int]
    ) -> None:
        """What a transaction does is seen as a whole, in all queues. These were asked in this order, so a
        later one may have it before an earlier one was asked.
        """
        if now is None:
            return
        told = f"{names} had {before}, then {now}, and will have {after}"
        new = False
        for was, found, will in zip(before, now, after, strict=True):
            if was == will:
                continue
            if found not in (was, will) or (new and found == was):
                raise Broken(f"a part of a transaction was seen: {told}")
            new = found == will

    def _queues(self, names: list[str]) -> list[Queue]:
        return [queue for name in names if isinstance(queue := self.model.queues.get(name), Queue)]

    def _watched(self, names: list[str] | None) -> list[int] | None:
        """Count messages of queues, the last one first: what a transaction puts there must come together."""
        if (
            not names
            or len(self._queues(names)) != len(names)
            or any(q.consumers for q in self._queues(names))
        ):
            return None
        counts = []
        for name in names:
            found = self._look(name, 2)
            if isinstance(found, int):
                return None
            counts.append(int(found.message_count or 0))
        return counts
