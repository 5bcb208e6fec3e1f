"""What hosts have in common whose commands are applied later: in a log that nodes share, or on another node.

Commands leave this node without the objects that they name: publishers become numbers, consumers their keys, and both
are found again here when the answers come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from quorum_queue.cluster.guests import Guest
from quorum_queue.machine import codec
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import Command
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.ports import Refused

Key = tuple[Any, ...]


class _Publish:
    """A publisher's messages of one command: those from `first` to `last`, by its numbers, wait for an answer."""

    __slots__ = ("batch", "first", "last", "origin")

    def __init__(self, origin: Any, first: int, last: int) -> None:
        self.origin = origin
        #: The last batch that carries any of them.
        self.batch = 0
        self.first = first
        self.last = last


class Away:
    """Keeps the publishers, consumers and waiters of one queue on this node.

    There may be thousands at rest: slots, and lists rather than deques, which take 700 bytes when they are empty.
    """

    __slots__ = (
        "_attaching",
        "_barriers",
        "_consumers",
        "_getting",
        "_last_token",
        "_next_ids",
        "_publishes",
        "_purging",
        "_sinks",
        "closed",
        "delivered_count",
        "pending",
        "published_count",
        "queue",
    )

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.pending: list[Command] = []
        self.closed = False
        self.published_count = self.delivered_count = 0
        #: Attached consumers by the keys that they have here, as they would have to be attached again.
        self._consumers: dict[Key, Consumer] = {}
        #: Where deliveries go, for getters, too, and for consumers that still hold something.
        self._sinks: dict[Key, Any] = {}
        self._next_ids: dict[Key, int] = {}
        self._publishes: dict[int, _Publish] = {}
        self._last_token = 0
        self._attaching: dict[Key, Callable[[str | None], None]] = {}
        self._getting: dict[Key, deque[Callable[[Run | Refused | None], None]]] = {}
        self._purging: dict[int, Callable[[int | Refused], None]] = {}
        #: (batch, what to call when it was applied)
        self._barriers: list[tuple[int, Callable[..., None]]] = []

    # -- what the queue was declared to be -------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        raise NotImplementedError

    @property
    def counts_bytes(self) -> bool:
        return self.settings.max_length_bytes is not None

    @property
    def wants_ids(self) -> bool:
        return self.settings.deduplicates

    @property
    def certain(self) -> bool:
        return self.settings.dead_letter_at_least_once

    @property
    def resident_bytes(self) -> int:
        """Bodies are kept for the node, not for the queue."""
        return 0

    # -- commands --------------------------------------------------------------------------------------------------

    def submit(self, *commands: Command) -> None:
        self.pending += commands
        self.turn()

    def turn(self) -> None:
        raise NotImplementedError

    def attach(self, consumer: Consumer, done: Callable[[str | None], None]) -> None:
        if self.closed:
            done("the queue is gone")
            return
        self._attaching[consumer.key] = done
        self._consumers[consumer.key] = consumer
        self._sinks[consumer.key] = consumer.sink
        self.pending.insert(0, ("attach", consumer))
        self.turn()

    def get(self, consumer: Consumer, done: Callable[[Run | Refused | None], None]) -> None:
        if self.closed:
            done(None)
            return
        self._sinks[consumer.key] = consumer.sink
        consumer.next_id = max(consumer.next_id, self._next_ids.get(consumer.key, 0))
        self._getting.setdefault(consumer.key, deque()).append(done)
        self.submit(("get", consumer))

    def purge(self, done: Callable[[int | Refused], None]) -> None:
        if self.closed:
            done(0)
            return
        token = self._token()
        self._purging[token] = done
        self.submit(("purge", token))

    def _token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _outgoing(self) -> list[Command]:
        """Take what is pending, with numbers in the places of publishers."""
        pending, self.pending = self.pending, []
        commands: list[Command] = []
        for command in pending:
            verb = command[0]
            if verb in ("enqueue", "enqueue_once"):
                token = None
                if command[2] is not None:
                    token = self._token()
                    last = command[3] + len(command[1].seqs) - 1
                    self._publishes[token] = _Publish(command[2], command[3], last)
                commands.append((verb, command[1], token, *command[3:]))
                continue
            if verb == "pause" and command[1] in self._consumers:
                self._consumers[command[1]].paused = command[2]
            elif verb == "detach":
                self._consumers.pop(command[1], None)
                if command[2]:
                    # Whatever is still on its way to it goes back to the queue.
                    self._sinks.pop(command[1], None)
                    self._next_ids.pop(command[1], None)
            commands.append(command)
        return commands

    # -- answers ---------------------------------------------------------------------------------------------------

    def _attached(self, key: Key, refused: str | None) -> None:
        done = self._attaching.pop(key, None)
        if refused is not None:
            self._consumers.pop(key, None)
            self._sinks.pop(key, None)
        if done is not None:
            done(refused)
        elif refused is not None:
            # It was attached once, and could not be again.
            self.queue.consumer_lost(key)

    def _confirmed(self, token: int, first: int, last: int, *, refused: bool = False) -> None:
        publish = self._publishes.get(token)
        if publish is None:
            return
        if publish.first < first:
            # For those before there was no answer: a snapshot stood in for what became of them.
            self._confirmed(token, publish.first, first - 1, refused=self._doubtful)
        # The machine answers for the messages of one command in their order.
        publish.first = last + 1
        if publish.first > publish.last:
            del self._publishes[token]
        if refused:
            publish.origin.refused(first, last)
        else:
            self.published_count += last - first + 1
            publish.origin.confirmed(first, last)

    def _deliver(self, key: Key, consumer: Consumer | None, run: Run, first_id: int) -> None:
        """Hand a run with its bodies to whoever holds it here."""
        sink = self._sinks.get(key)
        if sink is None:
            # Its channel closed meanwhile, and the command to take back what it holds is on its way.
            self._got_nothing(key)
            return
        count = len(run.seqs)
        self._next_ids[key] = first_id + count
        self.delivered_count += count
        sink.deliver(consumer, run, first_id)
        waiting = self._getting.get(key)
        if waiting:
            done = waiting.popleft()
            if not waiting:
                del self._getting[key]
            done(run)

    @property
    def _doubtful(self) -> bool:
        """May the queue have refused what was never answered?"""
        return True

    def _got_nothing(self, key: Key) -> None:
        waiting = self._getting.get(key)
        if waiting:
            done = waiting.popleft()
            if not waiting:
                del self._getting[key]
            done(None)

    def _purged(self, token: int, count: int) -> None:
        done = self._purging.pop(token, None)
        if done is not None:
            done(count)

    def _passed(self, number: int) -> None:
        """Batches up to this one were applied."""
        while self._barriers and self._barriers[0][0] <= number:
            self._barriers.pop(0)[1]()

    def hand_over(self, to: Away) -> None:
        """Another host serves the queue here from now on: its clients' consumers move there.

        What they hold goes back to the queue, and what is on its way may have arrived or not: it is refused. Other
        nodes that came here for the queue are told to go elsewhere.
        """
        self._end(confirm=False, why=Refused("the queue has moved; try again"))
        guests = dict.fromkeys(sink for sink in self._sinks.values() if isinstance(sink, Guest))
        for guest in guests:
            guest.moved()
        self._sinks = {key: sink for key, sink in self._sinks.items() if sink not in guests}
        for key, consumer in self._consumers.items():
            if key not in self._sinks:
                continue
            consumer.next_id = self._next_ids.get(key, 0)
            to._consumers[key] = consumer
            to.pending.append(("attach", consumer))
        to._sinks = self._sinks
        to._next_ids = self._next_ids
        # An answer to an earlier one may still come.
        to._last_token = max(to._last_token, self._last_token)
        to.turn()
        self._consumers, self._sinks, self._next_ids = {}, {}, {}
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    def _end(self, *, confirm: bool, why: Refused) -> None:
        """Answer everybody who waits. `confirm`: what was on its way to a queue that was deleted went nowhere."""
        publishes, self._publishes = self._publishes, {}
        for publish in publishes.values():
            origin = publish.origin
            (origin.confirmed if confirm else origin.refused)(publish.first, publish.last)
        pending, self.pending = self.pending, []
        for command in pending:
            if command[0] in ("enqueue", "enqueue_once") and command[2] is not None:
                last = command[3] + len(command[1].seqs) - 1
                (command[2].confirmed if confirm else command[2].refused)(command[3], last)
        attaching, self._attaching = self._attaching, {}
        for key, attached in attaching.items():
            self._consumers.pop(key, None)
            attached(why.text)
        getting, self._getting = self._getting, {}
        for waiting in getting.values():
            for got in waiting:
                got(why)
        purging, self._purging = self._purging, {}
        for purged in purging.values():
            purged(why)
        barriers, self._barriers = self._barriers, []
        for _, passed in barriers:
            passed(why)


def cut(commands: Iterable[Command], size_max: int) -> Iterable[list[Command]]:
    """Cut commands into batches of about this size. A single message may be larger."""
    batch: list[Command] = []
    size = 0
    for command in commands:
        if command[0] in ("enqueue", "enqueue_once"):
            for part in _pieces(command, size_max):
                more = codec.size(part[1])
                if batch and size + more > size_max:
                    yield batch
                    batch, size = [], 0
                batch.append(part)
                size += more
            continue
        batch.append(command)
        size += 32
        if size > size_max:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _pieces(command: Command, size_max: int) -> Iterable[Command]:
    verb, run, token, first, *ids = command
    while codec.size(run) > size_max and len(run.seqs) > 1:
        count = max(1, len(run.seqs) * size_max // (2 * codec.size(run)))
        front = run.take(count)
        yield (verb, front, token, first, *(names[:count] for names in ids))
        ids = [names[count:] for names in ids]
        first += count
    yield (verb, run, token, first, *ids)
