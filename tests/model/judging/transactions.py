"""Steps that make channels confirm, and transactions, which are seen as a whole."""

from __future__ import annotations

from pamqp import commands

from tests.model.client import wait_readable
from tests.model.judging.messages import Messages
from tests.model.judging.requests import OWN
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
        watched = self._queues(step.get("watch") or [])
        promise = self.model.commit(channel)
        self.clients[number].send(channel.number, commands.Tx.Commit())
        counts = [queue.count() for queue in watched]
        if (
            watched
            # In a cluster each queue takes its part by itself.
            and self.model.broker.nodes == 1
            and OK in promise.codes
            and all(low == high for low, high in counts)
            and not any(queue.consumers for queue in watched)
        ):
            self._watch(number, watched, [low for low, _ in counts])
        self._answer(number, channel.number, "Tx.Commit", commands.Tx.CommitOk, promise)

    def _watch(self, number: int, queues: list[Queue], whole: list[int]) -> None:
        """Another client tries to get a message: if it gets one, all of them must be there."""
        client = self.clients[number]
        while not client.events and client.gone is None:
            own, channel = self._channel({"client": OWN, "channel": 2})
            watcher, name = self.clients[own], queues[-1].name
            watcher.send(channel.number, commands.Basic.Get(queue=name))
            answers = (commands.Basic.GetOk, commands.Basic.GetEmpty)
            arrived = self._await(watcher, channel.number, answers)
            if arrived is not None and isinstance(arrived.method, commands.Basic.GetOk):
                there = [self._counted(queue.name) for queue in queues]
                there[-1] += 1
                # The next one that gets it has the flag.
                watcher.send(
                    channel.number, commands.Basic.Nack(arrived.method.delivery_tag or 0, requeue=True)
                )
                if there != whole:
                    raise Broken(f"a part of a transaction was seen: {there} of {whole} messages were there")
                return
            wait_readable([client], 0)

    def _counted(self, name: str) -> int:
        found = self._look(name, 3)
        return 0 if isinstance(found, int) else int(found.message_count or 0)

    def _queues(self, names: list[str]) -> list[Queue]:
        """Return these queues, if nobody but the transaction uses them."""
        own = [name for name in names if name in ("t1", "t2")]
        return [queue for name in own if isinstance(queue := self.model.queues.get(name), Queue)]
