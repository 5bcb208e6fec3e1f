"""What clients of transactions did and saw, and a judge of it: each transaction has happened as a whole or
not at all, nobody saw one before its commit, and what one has taken no other one takes.

Every message has a name of its own. A transaction takes messages out of queues or consumer groups (it acks
them), and puts others into queues and streams. In the end all queues are emptied and all streams read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Transaction:
    name: str
    #: Messages that it acks, and those that it publishes, in order, by queue or stream.
    taken: list[str] = field(default_factory=list)
    put: dict[str, list[str]] = field(default_factory=dict)
    #: When its client sent tx.commit, s; None if it never did.
    sent_at: float | None = None
    #: True after commit-ok, False if nothing of it may happen, None if its client does not know.
    committed: bool | None = False

    def puts(self) -> Iterator[tuple[str, str]]:
        for place, messages in self.put.items():
            for message in messages:
                yield place, message


@dataclass
class Reading:
    """What one reader has seen of a stream, from one offset on: offset, message, and when, s."""

    stream: str
    seen: list[tuple[int, str, float]] = field(default_factory=list)


@dataclass
class History:
    #: Messages that were there before all transactions.
    first: list[str] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    #: What queues and groups had in the end, and streams that were read as a whole then.
    left: dict[str, list[str]] = field(default_factory=dict)
    streams: dict[str, Reading] = field(default_factory=dict)
    #: Streams that a group reads: each message of one is taken, or the group has it in the end.
    grouped: set[str] = field(default_factory=set)

    def judge(self) -> list[str]:
        """Return all that is wrong."""
        return [*self._transactions(), *self._messages(), *self._streams()]

    # -- transactions ----------------------------------------------------------------------------------------

    def _is_there(self) -> set[str]:
        """The messages that somebody saw."""
        there = {message for messages in self.left.values() for message in messages}
        there |= {message for reading in self._all_readings() for _, message, _ in reading.seen}
        return there | {message for transaction in self.transactions for message in transaction.taken}

    def _all_readings(self) -> list[Reading]:
        return [*self.readings, *self.streams.values()]

    def happened(self) -> list[Transaction]:
        there = self._is_there()
        return [
            each
            for each in self.transactions
            if each.committed or any(message in there for _, message in each.puts())
        ]

    def _transactions(self) -> Iterator[str]:
        there = self._is_there()
        for transaction in self.transactions:
            seen = [message for _, message in transaction.puts() if message in there]
            missing = [message for _, message in transaction.puts() if message not in there]
            if seen and transaction.committed is False:
                yield f"{transaction.name} was rolled back, and somebody saw {seen}"
            elif seen and missing:
                yield f"of {transaction.name} somebody saw {seen}, and nobody {missing}"
            elif missing and transaction.committed:
                yield f"{transaction.name} was committed, and nobody saw {missing}"
        written = {message: each for each in self.transactions for _, message in each.puts()}
        for reading in self._all_readings():
            for _, message, at in reading.seen:
                sent_at = written[message].sent_at if message in written else 0.0
                if sent_at is None or at < sent_at:
                    yield f"{message} was in {reading.stream} before the commit of {written[message].name}"

    # -- messages that are taken -----------------------------------------------------------------------------

    def _messages(self) -> Iterator[str]:
        """Each message of a queue, or of a stream that a group reads, is taken once, or still there."""
        happened = self.happened()
        taken = Counter(message for each in happened for message in each.taken)
        left = Counter(message for messages in self.left.values() for message in messages)
        for message, count in taken.items():
            if count > 1:
                names = [each.name for each in happened if message in each.taken]
                yield f"{message} was taken by {names}"
            if left[message]:
                yield f"{message} was taken, and is there again"
        for message, count in left.items():
            if count > 1:
                yield f"{message} is there {count} times"
        kept = self.grouped | self.left.keys()
        put = [message for each in happened for place, message in each.puts() if place in kept]
        for message in [*self.first, *put]:
            if not taken[message] and not left[message]:
                yield f"{message} is lost"

    # -- streams ---------------------------------------------------------------------------------------------

    def _streams(self) -> Iterator[str]:
        for reading in self._all_readings():
            offsets = [offset for offset, _, _ in reading.seen]
            if offsets != list(range(offsets[0], offsets[0] + len(offsets)) if offsets else []):
                yield f"a reader of {reading.stream} saw the offsets {_around_a_gap(offsets)}"
            whole = {offset: message for offset, message, _ in self.streams[reading.stream].seen}
            for offset, message, _ in reading.seen:
                if whole.get(offset) != message:
                    yield f"{reading.stream} had {message} at {offset}, and then {whole.get(offset)}"
        for name, reading in self.streams.items():
            places: dict[str, int] = {}
            for offset, message, _ in reading.seen:
                if message in places:
                    yield f"{message} is in {name} twice"
                places[message] = offset
            for transaction in self.happened():
                found = [places[message] for message in transaction.put.get(name, ()) if message in places]
                if found and found != list(range(found[0], found[0] + len(found))):
                    yield f"the messages of {transaction.name} in {name} are at {found}"


def _around_a_gap(offsets: list[int]) -> Iterable[int]:
    for place in range(1, len(offsets)):
        if offsets[place] != offsets[place - 1] + 1:
            return offsets[max(0, place - 2) : place + 2]
    return offsets
