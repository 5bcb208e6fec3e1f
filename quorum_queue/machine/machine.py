"""The queue machine: one deterministic state machine for classic and quorum queues.

`apply(meta, commands, effects)` is all that changes it. Time and identity come with `meta` and the commands; what is
to be done comes back as data in `effects`. It takes no clock, no randomness, iterates no sets, hashes nothing, and
raises nothing for outcomes that are to be expected. Compare rabbit_fifo in RabbitMQ and ra_machine in ra.

Commands are tuples whose first field names them:

    ("enqueue", run_without_numbers, origin, first)   first is the publisher's number of its first message
    ("attach", Consumer) ("detach", key, requeue) ("pause", key, paused) ("prefetch", key, count)
    ("window", key, Window)
    ("settle", key, low, high)                        done with these deliveries
    ("return", key, low, high)                        put them back to their places
    ("discard", key, low, high)                       rejected: to the dead-letter exchange
    ("get", Consumer)                                 basic.get: hand one message to this consumer
    ("purge",) ("configure", Settings) ("tick",) ("dead_lettered", low, high)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import asdict
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

from quorum_queue.machine.consumers import UNLIMITED, Checkout, Consumer, Consumers
from quorum_queue.machine.effects import Effects, Reason
from quorum_queue.machine.ready import Ready
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings

Command = tuple[Any, ...]

#: What one batch hands out at most; the rest waits for the next one, so that a way that fills up is noticed.
BURST_MESSAGES = 4096
BURST_BYTES = 1 << 20


class Meta(NamedTuple):
    """What comes with a batch from outside."""

    #: Time of the batch in ms.
    now_ms: int


class Machine:
    """State of one queue."""

    def __init__(self, settings: Settings, next_seq: int = 1) -> None:
        self.settings = settings
        self.next_seq = next_seq
        self.ready = Ready(settings.priority_max)
        self.consumers = Consumers(single_active=settings.single_active_consumer)
        self.unacked_count = 0
        #: Dead letters that wait for their targets, by position (at-least-once only).
        self.dead_lettering: dict[int, tuple[Run, Reason]] = {}

    def apply(self, meta: Meta, commands: Iterable[Command], effects: Effects) -> None:
        """Apply a batch of commands in order."""
        for command in commands:
            _APPLY[command[0]](self, meta, command, effects)
        self._assign(meta, effects)

    # -- publishing ------------------------------------------------------------------------------------------------

    def _enqueue(self, meta: Meta, command: Command, effects: Effects) -> None:
        _, run, origin, first = command
        settings = self.settings
        if settings.max_length is None and settings.max_length_bytes is None:
            self._accept(meta, run, effects)
            effects.confirmed.append((origin, first, first + len(run.seqs) - 1, run.attributes.persistent))
        elif settings.overflow == "drop-head":
            self._accept(meta, run, effects)
            effects.confirmed.append((origin, first, first + len(run.seqs) - 1, run.attributes.persistent))
            self._assign(meta, effects)
            self._drop_over_limit(effects)
        else:
            self._enqueue_or_refuse(meta, run, origin, first, effects)

    def _accept(self, meta: Meta, run: Run, effects: Effects) -> None:
        """Number the messages, set their deadline, and put them at the end."""
        count = len(run.seqs)
        first = self.next_seq
        self.next_seq = first + count
        run.seqs = range(first, first + count)
        ttl = self.settings.message_ttl_ms
        own = run.attributes.ttl_ms
        if own is not None and (ttl is None or own < ttl):
            ttl = own
        run.expires_at = None if ttl is None else meta.now_ms + ttl
        if self.settings.keeps_all and not run.attributes.persistent:
            run.attributes = run.attributes._replace(persistent=True)
        effects.accepted_bytes += run.size
        if effects.wants_enqueued:
            effects.enqueued.append(_as_accepted(run))
        self.ready.push(run)

    def _drop_over_limit(self, effects: Effects) -> None:
        settings, ready = self.settings, self.ready
        if settings.max_length is not None:
            while ready.count > settings.max_length:
                self._discard(ready.drop_head(ready.count - settings.max_length), "maxlen", effects)
        if settings.max_length_bytes is not None:
            while ready.count and ready.bytes > settings.max_length_bytes:
                self._discard(ready.drop_head(1), "maxlen", effects)

    def _enqueue_or_refuse(self, meta: Meta, run: Run, origin: Any, first: int, effects: Effects) -> None:
        """Take what fits, message by message where it gets tight, and refuse the rest."""
        settings, ready = self.settings, self.ready
        rest: Run | None = run
        while rest is not None:
            room = len(rest.seqs)
            if settings.max_length is not None:
                room = min(room, settings.max_length - ready.count)
            if settings.max_length_bytes is not None:
                room = min(room, 1 if ready.bytes < settings.max_length_bytes else 0)
            if room <= 0:
                if settings.overflow == "reject-publish-dlx":
                    rest.seqs = range(len(rest.seqs))
                    effects.dead_letters.append((rest, "maxlen"))
                effects.refused.append((origin, first, first + len(rest.seqs) - 1))
                return
            part = rest if room >= len(rest.seqs) else rest.take(room)
            rest = None if part is rest else rest
            count = len(part.seqs)
            self._accept(meta, part, effects)
            effects.confirmed.append((origin, first, first + count - 1, part.attributes.persistent))
            first += count
            self._assign(meta, effects)

    # -- handing out -----------------------------------------------------------------------------------------------

    def _assign(self, meta: Meta, effects: Effects) -> None:
        """Hand ready messages to consumers with room, in turns, and drop what has expired."""
        ready, consumers = self.ready, self.consumers
        while ready.count:
            if effects.burst_messages >= BURST_MESSAGES or effects.burst_bytes >= BURST_BYTES:
                effects.more = bool(consumers.takers())
                break
            level = ready.head_level()
            assert level is not None
            head = level.head()
            assert head is not None
            if head.expires_at is not None and head.expires_at < meta.now_ms:
                self._discard(ready.pop(level, len(head.seqs)), "expired", effects)
                continue
            if not consumers.count:
                break
            takers = consumers.takers()
            if not takers:
                break
            length = min(len(head.seqs), BURST_MESSAGES - effects.burst_messages)
            if effects.burst_bytes + head.size > BURST_BYTES:
                length = min(length, _fitting(head, BURST_BYTES - effects.burst_bytes))
            if len(takers) == 1:
                self._hand(takers[0], ready.pop(level, min(takers[0].room(), length)), effects)
                consumers.served(takers[0])
                continue
            turns = len(takers)
            share = min(min(taker.room() for taker in takers), -(-length // turns))
            if _one_by_one(takers):
                share, turns = 1, 1
            run = ready.pop(level, min(share * turns, length))
            count = len(run.seqs)
            if count == 1:
                self._hand(takers[0], run, effects)
            else:
                for index in range(min(turns, count)):
                    self._hand(takers[index], run.every(index, turns), effects)
            consumers.served(takers[(count - 1) % len(takers)])
        self._expire(meta, effects)

    def _hand(self, consumer: Consumer, run: Run, effects: Effects) -> None:
        first_id = consumer.next_id
        count = len(run.seqs)
        effects.burst_messages += count
        effects.burst_bytes += run.size
        consumer.next_id = first_id + count
        if consumer.no_ack:
            effects.deliveries.append((consumer, _as_delivered(run), first_id))
            effects.settled.append(run)
            return
        consumer.checkout.add(first_id, run)
        self.unacked_count += count
        if consumer.window is not None:
            consumer.window.use(count)
        effects.deliveries.append((consumer, _as_delivered(run), first_id))

    def _expire(self, meta: Meta, effects: Effects) -> None:
        """Drop expired messages at the head of the queue, and say when the next one will be due.

        As in RabbitMQ a message expires only where it would be handed out next: in a priority queue behind no other.
        """
        ready = self.ready
        while ready.count:
            level = ready.head_level()
            head = level.head() if level is not None else None
            if level is None or head is None or head.expires_at is None:
                return
            if head.expires_at > meta.now_ms:
                effects.wake_at = head.expires_at
                return
            self._discard(ready.pop(level, len(head.seqs)), "expired", effects)

    def _get(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._expire(meta, effects)
        consumer: Consumer = command[1]
        level = self.ready.head_level()
        if level is not None:
            if not consumer.no_ack:
                consumer = self.consumers.by_key.setdefault(consumer.key, consumer)
            self._hand(consumer, self.ready.pop(level, 1), effects)

    # -- settling --------------------------------------------------------------------------------------------------

    def _take(self, command: Command) -> list[Run]:
        """Take deliveries from the consumer that holds them."""
        _, key, low, high = command
        consumer = self.consumers.by_key.get(key)
        if consumer is None:
            return []
        runs = consumer.checkout.take(low, high)
        self._taken(consumer, runs)
        return runs

    def _taken(self, consumer: Consumer, runs: list[Run]) -> None:
        count = sum(len(run.seqs) for run in runs)
        self.unacked_count -= count
        if consumer.window is not None:
            consumer.window.use(-count)
        if not consumer.attached and not consumer.checkout.count:
            self.consumers.by_key.pop(consumer.key, None)

    def _settle(self, meta: Meta, command: Command, effects: Effects) -> None:
        effects.settled += self._take(command)

    def _return(self, meta: Meta, command: Command, effects: Effects) -> None:
        self._give_back(self._take(command), effects)

    def _give_back(self, runs: list[Run], effects: Effects) -> None:
        limit = self.settings.delivery_limit
        kept: list[Run] = []
        for run in runs:
            run.redelivered = True
            if limit is not None:
                run.attempts += 1
                if run.attempts > limit:
                    self._discard(run, "delivery_limit", effects)
                    continue
                effects.returned.append(_as_delivered(run))
            kept.append(run)
        if kept:
            self.ready.put_back(kept)
            if self.settings.overflow == "drop-head":
                self._drop_over_limit(effects)

    def _reject(self, meta: Meta, command: Command, effects: Effects) -> None:
        for run in self._take(command):
            self._discard(run, "rejected", effects)

    def _discard(self, run: Run, reason: Reason, effects: Effects) -> None:
        """The queue is done with these messages other than by an ack."""
        if not self.settings.dead_letter:
            effects.settled.append(run)
            return
        if not self.settings.dead_letter_at_least_once:
            effects.dead_letters.append((run, reason))
            effects.settled.append(run)
            return
        for single in run.singles():
            effects.dead_letters.append((single, reason))
            self.dead_lettering[single.seqs.start] = (single, reason)

    def _dead_lettered(self, meta: Meta, command: Command, effects: Effects) -> None:
        """The targets have these dead letters."""
        for seq in range(command[1], command[2] + 1):
            held = self.dead_lettering.pop(seq, None)
            if held is not None:
                effects.settled.append(held[0])

    # -- consumers and settings ------------------------------------------------------------------------------------

    def _attach(self, meta: Meta, command: Command, effects: Effects) -> None:
        self.consumers.attach(command[1])

    def _detach(self, meta: Meta, command: Command, effects: Effects) -> None:
        _, key, requeue = command
        consumer = self.consumers.by_key.get(key)
        if consumer is None:
            return
        self.consumers.detach(consumer)
        if requeue:
            # Copies: what was handed out in this batch is still to be sent, and what comes back is joined with others.
            runs = [run.every(0, 1) for run in consumer.checkout.take_all()]
            self._taken(consumer, runs)
            self._give_back(runs, effects)
        self.consumers.by_key.pop(key, None)
        if consumer.checkout.count:
            # At the end: in the order of detaching, as a snapshot has it.
            self.consumers.by_key[key] = consumer

    def _pause(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer = self.consumers.by_key.get(command[1])
        if consumer is not None:
            consumer.paused = command[2]

    def _prefetch(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer = self.consumers.by_key.get(command[1])
        if consumer is not None:
            consumer.prefetch = command[2]

    def _window(self, meta: Meta, command: Command, effects: Effects) -> None:
        consumer = self.consumers.by_key.get(command[1])
        if consumer is not None:
            consumer.window = command[2]

    def _purge(self, meta: Meta, command: Command, effects: Effects) -> None:
        effects.settled += self.ready.clear()

    def _configure(self, meta: Meta, command: Command, effects: Effects) -> None:
        self.settings = command[1]
        if self.settings.overflow == "drop-head":
            self._drop_over_limit(effects)

    def _tick(self, meta: Meta, command: Command, effects: Effects) -> None:
        """Time passed; `apply` expires what is due."""

    # -- the whole state -------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as plain data, deterministic down to the byte when it is encoded."""
        return {
            "settings": asdict(self.settings),
            "next_seq": self.next_seq,
            "ready": [_plain(run) for run in self.ready.runs()],
            "dead_lettering": [[reason, _plain(run)] for run, reason in self.dead_lettering.values()],
            "active": None if self.consumers.active is None else self.consumers.active.key,
            "consumers": [
                {
                    "key": consumer.key,
                    "no_ack": consumer.no_ack,
                    "prefetch": consumer.prefetch,
                    "priority": consumer.priority,
                    "exclusive": consumer.exclusive,
                    "paused": consumer.paused,
                    "attached": consumer.attached,
                    "next_id": consumer.next_id,
                    "held": [
                        [first, _plain(run)]
                        for first, run in zip(consumer.checkout.starts, consumer.checkout.runs, strict=True)
                    ],
                }
                for consumer in self._consumers_in_turn()
            ],
        }

    def _consumers_in_turn(self) -> list[Consumer]:
        attached = list(self.consumers.attached())
        return attached + [held for held in self.consumers.by_key.values() if not held.attached]

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Machine:
        """Build a machine from what `snapshot` returned; sinks and windows are the host's to put back."""
        machine = cls(Settings(**state["settings"]), state["next_seq"])
        for plain in state["ready"]:
            run = _run(plain)
            if run.redelivered:
                machine.ready.put_back([run])
            else:
                machine.ready.push(run)
        for reason, plain in state["dead_lettering"]:
            run = _run(plain)
            machine.dead_lettering[run.seqs.start] = (run, reason)
        for fields in state["consumers"]:
            consumer = Consumer(
                fields["key"],
                no_ack=fields["no_ack"],
                prefetch=fields["prefetch"],
                priority=fields["priority"],
                exclusive=fields["exclusive"],
            )
            consumer.paused, consumer.next_id = fields["paused"], fields["next_id"]
            for first, plain in fields["held"]:
                consumer.checkout.add(first, _run(plain))
            machine.unacked_count += consumer.checkout.count
            if fields["attached"]:
                machine.consumers.attach(consumer)
            else:
                consumer.attached = False
                machine.consumers.by_key[consumer.key] = consumer
        if state["active"] is not None:
            machine.consumers.active = machine.consumers.by_key[state["active"]]
        return machine

    def digest(self) -> bytes:
        """16 bytes that are equal on replicas in the same state, however their runs happen to be cut."""
        digest = blake2b(digest_size=16)
        state = self.snapshot()
        for plain in state.pop("ready"):
            _digest_run(digest.update, plain)
        for consumer in state["consumers"]:
            for first, plain in consumer.pop("held"):
                digest.update(f"{consumer['key']}".encode())
                for offset, single in enumerate(_run(plain).singles()):
                    digest.update(f"{first + offset}".encode())
                    _digest_run(digest.update, _plain(single))
        digest.update(repr(state).encode())
        return digest.digest()


def _fitting(run: Run, room_bytes: int) -> int:
    """Return how many messages of a run begin within the room. Where runs are cut must not change what a batch holds."""
    sizes = map(len, run.contents) if run.contents is not None else run.sizes or ()
    return 1 + bisect_left(list(accumulate(sizes))[:-1], room_bytes)


def _one_by_one(takers: list[Consumer]) -> bool:
    """Must messages go out singly? So it is where room is shared, and for consumers of one channel: what a publisher
    sent through one queue arrives on one channel in order (AMQP 0-9-1, 4.7), whichever of its consumers gets it."""
    windows = [taker.window for taker in takers if taker.window is not None]
    if any(window.room() < UNLIMITED for window in windows):
        return True
    return len({id(window): None for window in windows}) < len(windows)


def _as_delivered(run: Run) -> Run:
    """Return the run as the effect carries it: later settles cut the machine's own copy."""
    copy = Run(run.seqs, run.contents, run.head, run.attributes, run.expires_at, run.size)
    copy.sizes, copy.heads = run.sizes, run.heads
    copy.redelivered, copy.attempts = run.redelivered, run.attempts
    return copy


def _as_accepted(run: Run) -> Run:
    """Return a copy of the run for the log: handing out cuts the original within the same batch."""
    copy = Run(
        run.seqs, run.contents and list(run.contents), run.head, run.attributes, run.expires_at, run.size
    )
    copy.heads = run.heads and list(run.heads)
    return copy


def _plain(run: Run) -> list[Any]:
    return [
        [run.seqs.start, run.seqs.stop, run.seqs.step],
        None if run.contents is None else list(run.contents),
        None if run.sizes is None else list(run.sizes),
        run.head,
        None if run.heads is None else list(run.heads),
        list(run.attributes),
        run.expires_at,
        run.redelivered,
        run.attempts,
        run.size,
    ]


def _run(plain: list[Any]) -> Run:
    seqs, contents, sizes, head, heads, attributes, expires_at, redelivered, attempts, size = plain
    run = Run(range(*seqs), contents and list(contents), head, Attributes(*attributes), expires_at, size)
    run.heads = heads and list(heads)
    if sizes is not None:
        run.page_in(None)  # type: ignore[arg-type]
        run.sizes = _sizes(sizes)
    run.redelivered, run.attempts = redelivered, attempts
    return run


def _sizes(values: list[int]) -> Any:
    from array import array

    return array("I", values)


def _digest_run(update: Callable[[bytes], None], plain: list[Any]) -> None:
    """Feed a run message by message: position, routing, content or its length, flags.

    Without the frame size: a run keeps the largest, so it depends on the cut.
    """
    run = _run(plain)
    attributes = tuple(run.attributes._replace(frame_bytes=0))
    sizes = list(map(len, run.contents)) if run.contents is not None else list(run.sizes or ())
    for index, seq in enumerate(run.seqs):
        update(
            repr(
                (seq, run.head_of(index), sizes[index], attributes, run.expires_at)
                + (run.redelivered, run.attempts)
            ).encode()
        )


_APPLY: dict[str, Callable[[Machine, Meta, Command, Effects], None]] = {
    "enqueue": Machine._enqueue,
    "attach": Machine._attach,
    "detach": Machine._detach,
    "pause": Machine._pause,
    "prefetch": Machine._prefetch,
    "settle": Machine._settle,
    "return": Machine._return,
    "discard": Machine._reject,
    "get": Machine._get,
    "window": Machine._window,
    "purge": Machine._purge,
    "configure": Machine._configure,
    "tick": Machine._tick,
    "dead_lettered": Machine._dead_lettered,
}

__all__ = ["Checkout", "Command", "Effects", "Machine", "Meta", "Settings"]
