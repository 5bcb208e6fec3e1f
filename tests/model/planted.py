"""Bugs that are planted in an mqd, to see whether the model finds them.

Each is a function that replaces a method before the broker starts. Only a pure mqd can have them: methods of
compiled classes can't be replaced.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster.mqd import TROUBLED

VARIABLE = "MQD_TEST_BUG"
ROOT = str(Path(__file__).parents[2])
BUGS: dict[str, Callable[[], None]] = {}
#: Bugs that need three nodes.
CLUSTERED = frozenset({"stale-conditions", "offset-skipped", "lost-when-the-version-is-raised"})


def started_with(name: str | None) -> tuple[Sequence[str], dict[str, str]]:
    """The program and environment of an mqd with this bug, or without one."""
    if name is None:
        return TROUBLED, {}
    start = f"import sys; sys.path.append({ROOT!r}); from {__name__} import main; raise SystemExit(main())"
    return (sys.executable, "-P", "-c", start), {VARIABLE: name}


def main() -> int | None:
    from amqp_server.build import BUILD

    assert BUILD == "pure", "a bug can be planted in a pure mqd only"
    BUGS[os.environ[VARIABLE]]()
    from tests.cluster.troubled_mqd import main as run

    return run()


def bug(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS[name] = plant
        return plant

    return note


def _machine() -> Any:
    from quorum_queue.machine import machine

    return machine


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _dead_of(batch: Any, keys: Any) -> set[int]:
    """Numbers of the tombstones in a batch."""
    numbers: list[bool] = []
    for shape in batch.shapes:
        numbers += [keys.is_tombstone(shape)] * shape.count
    return {number for number, dead in enumerate(numbers) if dead}


# -- what is stored ------------------------------------------------------------------------------------------


@bug("lost-when-a-failed-queue-restarts")
def _lost() -> None:
    """What the queue stored last is not read again."""
    from amqp_server.broker.recovery import stored_queues

    def make(fill: Any) -> Any:
        def planted(record: Any, settings: Any, recovered: Any, *rest: Any) -> Any:
            records = list(recovered.records)[:-1]
            return fill(record, settings, replace(recovered, records=iter(records)), *rest)

        return planted

    from amqp_server.broker.recovery.failures import Failures

    def revived(revive: Any) -> Any:
        def planted(self: Any, failure: Any) -> None:
            _replace(stored_queues, "fill", make)
            revive(self, failure)

        return planted

    _replace(Failures, "revive", revived)


@bug("priority-forgotten-by-restart")
def _priority() -> None:
    from amqp_server.broker.recovery import stored_queues

    def make(unsettled: Any) -> Any:
        def planted(run: Any, settled: Any) -> Any:
            run.attributes = run.attributes._replace(priority=0)
            return unsettled(run, settled)

        return planted

    _replace(stored_queues, "_unsettled", make)


@bug("no-flag-after-kill")
def _flag() -> None:
    from persistence.delivered_marks import DeliveredMarks

    _replace(DeliveredMarks, "mark", lambda mark: lambda self, slot, seq: None)


@bug("deduplication-forgets-at-restart")
def _dedup() -> None:
    from amqp_server.broker.recovery import stored_queues

    _replace(stored_queues, "_restore_names", lambda restore: lambda *_: None)


@bug("group-position-lost")
def _group() -> None:
    from amqp_server.streams.consumer_groups.positions import GroupPlaces

    _replace(GroupPlaces, "store", lambda store: lambda self, partition: None)


@bug("tombstones-dropped-early")
def _tombstones() -> None:
    """A tombstone goes, and the messages that it deleted stay."""
    from persistence.streams import compaction

    def make(add: Any) -> Any:
        def planted(self: Any, batch: Any, keys: Any) -> Any:
            dead = _dead_of(batch, KEYS[0])
            return add(self, batch, [None if n in dead else key for n, key in enumerate(keys)])

        return planted

    def kept(call: Any) -> Any:
        def planted(self: Any, batch: Any) -> Any:
            numbers, _ = call(self, batch)
            dead = _dead_of(batch, KEYS[0])
            return [n for n in numbers if n not in dead], False

        return planted

    KEYS: list[Any] = []

    def plan(make_plan: Any) -> Any:
        def planted(log: Any, keys: Any, *rest: Any) -> Any:
            KEYS[:] = [keys]
            return make_plan(log, keys, *rest)

        return planted

    _replace(compaction.Latest, "add", make)
    _replace(compaction._Kept, "__call__", kept)
    _replace(compaction, "plan", plan)


@bug("deleted-key-comes-back")
def _deleted_key() -> None:
    """A tombstone deletes only what came since the last pass of compaction: an older value stays, and the
    tombstone goes when it is old.
    """
    from persistence.streams import compaction

    KEYS: list[Any] = []
    DELETED: set[bytes] = set()
    CLEAN = [0]

    def add(note: Any) -> Any:
        def planted(self: Any, batch: Any, keys: Any) -> Any:
            dead = _dead_of(batch, KEYS[0])
            for number, key in enumerate(keys):
                if key is not None:
                    (DELETED.add if number in dead else DELETED.discard)(key)
            return note(self, batch, keys)

        return planted

    def kept(call: Any) -> Any:
        def planted(self: Any, batch: Any) -> Any:
            newest = self._newest
            if batch.stop <= CLEAN[0]:
                self._newest = {key: at for key, at in newest.items() if key not in DELETED}
            try:
                return call(self, batch)
            finally:
                self._newest = newest

        return planted

    def plan(make_plan: Any) -> Any:
        def planted(log: Any, keys: Any, *rest: Any) -> Any:
            KEYS[:], CLEAN[0] = [keys], log.clean_stop
            DELETED.clear()
            return make_plan(log, keys, *rest)

        return planted

    _replace(compaction.Latest, "add", add)
    _replace(compaction._Kept, "__call__", kept)
    _replace(compaction, "plan", plan)


@bug("group-forgets-what-is-unacked")
def _unacked() -> None:
    """Of what a consumer group has handed out before acked messages, it stores all but the last part."""
    from quorum_queue.consumer_groups.partition import Partition

    _replace(Partition, "pending", lambda pending: lambda self: pending(self)[:-1])


@bug("protection-not-asked")
def _unprotected() -> None:
    """A client deletes a queue that an operator has protected from deletion."""
    from amqp_server.broker.topology.queue import Queue

    _replace(Queue, "check_protection", lambda check: lambda self: None)


@bug("any-gaps-of-a-group")
def _any_gaps() -> None:
    """A member of a group gets new messages however many gaps there are."""
    from quorum_queue.consumer_groups.partition import Partition

    _replace(Partition, "is_full", lambda is_full: lambda self, most: False)


@bug("gaps-keep-back-what-came-back")
def _gaps() -> None:
    """Where there are too many gaps, messages that came back are not handed out either."""
    from quorum_queue.consumer_groups.partition import Partition

    _replace(Partition, "is_full", lambda is_full: lambda self, most: self.span_count > most)


@bug("name-evicted")
def _evicted() -> None:
    """A new name takes the place of the one that was not used for longest, and is not refused."""
    from amqp_server.streams.layout.named_offsets import Names

    def make(put: Any) -> Any:
        def planted(self: Any, name: str, offset: int) -> Any:
            found = put(self, name, offset)
            if len(self.offsets) > self._most:
                self.delete(next(iter(self.offsets)))
            return found

        return planted

    _replace(Names, "put", make)
    _replace(Names, "admits", lambda admits: lambda self, name, taken, new: True)


# -- the queue machine ---------------------------------------------------------------------------------------


@bug("stale-conditions")
def _stale() -> None:
    """Conditions and counts are looked up in the copy at hand."""
    from amqp_server.broker.topology.queue import Queue

    _replace(Queue, "barrier", lambda barrier: lambda self, done, *, again=True: done())


@bug("bytes-not-compared-with-the-room")
def _bytes() -> None:
    """A queue below its limit in bytes takes a message of any size."""
    machine = _machine()

    def planted(self: Any, meta: Any, run: Any, origin: Any, first: int, effects: Any) -> None:
        settings, ready = self.settings, self.ready
        for single in run.singles():
            full = settings.max_length is not None and ready.count >= settings.max_length
            full = full or (
                settings.max_length_bytes is not None and ready.bytes >= settings.max_length_bytes
            )
            if full:
                effects.refused.append((origin, first, first))
            else:
                self._accept(meta, single, effects)
                effects.confirmed.append((origin, first, first, single.attributes.persistent))
                self._assign(meta, effects)
            first += 1

    machine.Machine._enqueue_or_refuse = planted


@bug("any-size-into-an-empty-queue")
def _any_size() -> None:
    """A queue with a limit in bytes takes a message of any size that comes alone, while it is empty."""
    machine = _machine()

    def make(enqueue: Any) -> Any:
        def planted(self: Any, meta: Any, run: Any, *rest: Any) -> None:
            settings = self.settings
            if len(run.seqs) == 1 and not self._waiting_bytes():
                self.settings = replace(settings, max_length_bytes=None)
            try:
                enqueue(self, meta, run, *rest)
            finally:
                self.settings = settings

        return planted

    _replace(machine.Machine, "_enqueue_or_refuse", make)


@bug("no-ttl-after-requeue")
def _ttl() -> None:
    def make(give_back: Any) -> Any:
        def planted(self: Any, runs: Any, effects: Any) -> None:
            for run in runs:
                run.expires_at = None
            give_back(self, runs, effects)

        return planted

    _replace(_machine().Machine, "_give_back", make)


@bug("letter-lost-at-overflow")
def _letter() -> None:
    def make(discard: Any) -> Any:
        def planted(self: Any, run: Any, reason: str, effects: Any) -> None:
            if reason == "maxlen":
                effects.settled.append(run)
            else:
                discard(self, run, reason, effects)

        return planted

    _replace(_machine().Machine, "_discard", make)


@bug("letter-doubled-at-overflow")
def _doubled() -> None:
    def make(parts: Any) -> Any:
        def planted(self: Any, queue: Any, run: Any, reason: str, done: Any, letter: Any) -> Any:
            if reason == "maxlen":
                yield from parts(self, queue, run, reason, None, None)
            yield from parts(self, queue, run, reason, done, letter)

        return planted

    from amqp_server.broker.dead_letter import DeadLetterSender

    _replace(DeadLetterSender, "_parts", make)


@bug("deaths-not-counted")
def _deaths() -> None:
    from amqp_server.broker import dead_letter

    _replace(dead_letter, "_long", lambda long: lambda number: long(1))


@bug("prefetch-exceeded")
def _prefetch() -> None:
    from quorum_queue.machine.consumers import Consumer

    def make(room: Any) -> Any:
        return lambda self: room(self) + (1 if self.prefetch and not self.no_ack and not self.paused else 0)

    _replace(Consumer, "room", make)


@bug("two-active-consumers")
def _active() -> None:
    from quorum_queue.machine.consumers import Consumers

    def make(takers: Any) -> Any:
        def planted(self: Any, most: int) -> Any:
            self.single_active = False
            try:
                return takers(self, most)
            finally:
                self.single_active = True

        return lambda self, most: planted(self, most) if self.single_active else takers(self, most)

    _replace(Consumers, "takers", make)


@bug("returned-to-the-tail")
def _tail() -> None:
    """A returned message gets the position of a new one."""
    from quorum_queue.machine.order.level import Level

    def make(_: Any) -> Any:
        def planted(self: Any, runs: Any) -> None:
            for run in runs:
                for single in run.singles() if run.seqs.step != 1 else (run,):
                    single.ready = True
                    self.main.append(single)

        return planted

    _replace(Level, "put_back", make)


@bug("delivery-limit-off-by-one")
def _limit() -> None:
    def make(give_back: Any) -> Any:
        def planted(self: Any, meta: Any, runs: Any, effects: Any, *, failed: bool) -> None:
            for run in runs:
                run.attempts -= run.attempts == 1
            give_back(self, meta, runs, effects, failed=failed)

        return planted

    _replace(_machine().Machine, "_give_back", make)


# -- topology ------------------------------------------------------------------------------------------------


@bug("alternate-skipped-if-mandatory")
def _alternate() -> None:
    from amqp_server.channel import publish

    def make(make_route: Any) -> Any:
        def planted(channel: Any, key: bytes, method: Any) -> Any:
            exchange = channel.vhost.router.get(method.exchange)
            if exchange is None or not method.mandatory:
                return make_route(channel, key, method)
            alternate, exchange.alternate = exchange.alternate, None
            try:
                return make_route(channel, key, method)
            finally:
                exchange.alternate = alternate

        return planted

    _replace(publish, "make_route", make)
    for module in list(sys.modules.values()):
        if getattr(module, "make_route", None) is not None:
            module.make_route = publish.make_route  # type: ignore[attr-defined]


@bug("unbound-but-routed")
def _unbound() -> None:
    """A connection notices too late that the topology has changed, and routes by its memo until then."""
    from amqp_server.connection.incoming import Incoming

    noticed: dict[int, tuple[int, int]] = {}

    def make(forget: Any) -> Any:
        def planted(self: Any) -> None:
            generation, looks = noticed.get(id(self), (0, 0))
            looks = looks + 1 if generation == self.broker.generation else 0
            noticed[id(self)] = self.broker.generation, looks
            if looks > 5:
                forget(self)

        return planted

    _replace(Incoming, "forget_old_routes", make)


@bug("policy-not-for-existing-queues")
def _policy() -> None:
    from amqp_server.broker.topology.queue import Queue

    _replace(Queue, "apply_policies", lambda apply: lambda self: None)


@bug("exclusive-queue-open-to-others")
def _exclusive() -> None:
    from amqp_server.broker.topology.queue import Queue

    _replace(Queue, "owned_by", lambda owned: lambda self, number: True)


@bug("rollback-publishes")
def _rollback() -> None:
    from amqp_server.channel.transactions.tx import Transaction

    def make(rollback: Any) -> Any:
        def planted(self: Any) -> None:
            settlements, self.settlements = self.settlements, []
            self.commit(acks=False)
            self.settlements = settlements
            rollback(self)

        return planted

    _replace(Transaction, "rollback", make)


@bug("earlier-producer-commits")
def _producer() -> None:
    """Nobody looks whether a later start of a producer has shut out the one that publishes or commits."""
    from amqp_server.channel.transactions.tx import Transaction

    _replace(Transaction, "check_producer", lambda check: lambda self: None)


@bug("earlier-transaction-left-open")
def _left_open() -> None:
    """A producer that begins again does not end the open transactions of its earlier starts."""
    from amqp_server.broker.open_transactions import OpenTransactions

    _replace(OpenTransactions, "shut_out", lambda shut_out: lambda self, key, epoch: None)


@bug("epochs-forgotten-at-restart")
def _epochs() -> None:
    """A node that starts again does not know which producers it has shut out."""
    from amqp_server.broker.transactions import LocalTransactions

    _replace(LocalTransactions, "recover", lambda recover: lambda self: None)


@bug("queues-max-passed")
def _queues_max() -> None:
    """Only single queues are counted, not the partitions of a super stream."""
    from amqp_server.broker import room

    def make(refused: Any) -> Any:
        def planted(vhost: Any, name: str, most: Any, count: int = 1) -> str | None:
            return None if count > 1 else refused(vhost, name, most)

        return planted

    _replace(room, "queues_refused", make)


@bug("read-not-asked-by-groups")
def _read() -> None:
    """The permission to read the stream is not asked when a group is declared."""
    from amqp_server.broker.access.permissions import Permissions

    def make(check: Any) -> Any:
        def planted(self: Any, user: str, vhost: str, kind: str, name: str, access: str) -> None:
            if access != "read" or not name.startswith("s"):
                check(self, user, vhost, kind, name, access)

        return planted

    _replace(Permissions, "check", make)


@bug("read-permission-remembered")
def _remembered() -> None:
    """Who was permitted to read a stream once may go on to do so."""
    from amqp_server.broker.access.permissions import Permissions

    permitted: set[tuple[str, str, str]] = set()

    def make(check: Any) -> Any:
        def planted(self: Any, user: str, vhost: str, kind: str, name: str, access: str) -> None:
            if access != "read" or kind != "queue" or not name.startswith("s"):
                check(self, user, vhost, kind, name, access)
            elif (user, vhost, name) not in permitted:
                check(self, user, vhost, kind, name, access)
                permitted.add((user, vhost, name))

        return planted

    _replace(Permissions, "check", make)


@bug("lost-when-the-version-is-raised")
def _raised() -> None:
    """When the last node is upgraded, each quorum queue loses what was in it."""
    Machine = _machine().Machine

    def make(raise_version: Any) -> Any:
        def planted(self: Any, meta: Any, command: Any, effects: Any) -> None:
            raise_version(self, meta, command, effects)
            self._purge(meta, ("purge",), effects)

        return planted

    _replace(Machine, "_raise_version", make)
    _machine()._APPLY["version"] = Machine._raise_version


@bug("retry-at-once")
def _at_once() -> None:
    """A message whose consumer wants it later comes again at once."""
    Machine = _machine().Machine

    def make(retry: Any) -> Any:
        def planted(self: Any, meta: Any, command: Any, effects: Any) -> None:
            retry(self, meta, (*command[:4], 0, command[5]), effects)

        return planted

    _replace(Machine, "_retry", make)
    _machine()._APPLY["retry"] = Machine._retry


@bug("cancelled-comes-back")
def _cancelled() -> None:
    """A waiting message that was cancelled goes back to its queue."""
    from amqp_server.management.changes.internal_session import Direct

    def make(ack: Any) -> Any:
        async def planted(self: Any, got: Any) -> None:
            pass

        return planted

    _replace(Direct, "ack", make)


# -- streams -------------------------------------------------------------------------------------------------


@bug("offset-skipped")
def _skipped() -> None:
    """A reader that begins with the first message begins one too late."""
    from amqp_server.streams.readers import StreamReaders

    def make(begins: Any) -> Any:
        def planted(self: Any, consumer: Any, offset: int) -> None:
            begins(self, consumer, offset + (offset == 0 and self.end_offset > 3))

        return planted

    _replace(StreamReaders, "_begins", make)


@bug("part-of-a-transaction-first")
def _part() -> None:
    """A commit hands over a few messages in each turn, and queues do not hold them back."""
    from amqp_server.channel.transactions import tx

    _replace(tx, "PARTS_AT_ONCE", lambda parts: 10)
    _replace(tx, "_hold", lambda hold: lambda hosts, held: None)

    def make(end_parts: Any) -> Any:
        def planted(self: Any) -> Any:
            for _ in end_parts(self):
                # Longer than a turn may be: other clients have theirs in between.
                time.sleep(0.01)
                yield

        return planted

    _replace(tx.LargeEnd, "_end_parts", make)


if __name__ == "__main__":
    raise SystemExit(main())
