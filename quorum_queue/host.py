"""The common part of all hosts of queues: pending commands, and clients that wait for answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

from quorum_queue.empty import NO_DICT, NO_LIST
from quorum_queue.machine.attributes import ALL, MAJORITY
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import ENQUEUES, Command
from quorum_queue.machine.parts import READY, TransactionId
from quorum_queue.machine.peeking import Look, Seen
from quorum_queue.machine.record.states import Found
from quorum_queue.machine.seal import SEALED, Sealed, outcome
from quorum_queue.machine.settings import Settings
from quorum_queue.message_status.answers import NO_RECORD
from quorum_queue.ports import EXCLUSIVE, Got, Hosted, KeptParts, Order, Preparing, Refused, Turn

Key = tuple[Any, ...]
Peeked = Callable[[list[Seen] | Refused], None]

#: A host serves its queue ("") until the queue is deleted, is served by another host, or fails here.
Ended = Literal["", "deleted", "moved", "failed"]

DELETED = Refused("the queue was deleted")
MOVED = Refused("the queue has moved; try again")
NOT_HERE = Refused("the messages of the queue are not on this node")
_ENDED_TEXTS = {
    "deleted": DELETED.text,
    "moved": MOVED.text,
    "failed": "the queue has failed on this node; try again",
}


class Asking:
    """Clients that wait for answers of one queue."""

    __slots__ = (
        "attaching",
        "barriers",
        "getting",
        "held",
        "looking",
        "preparing",
        "purging",
        "sealing",
    )

    def __init__(self) -> None:
        #: By consumer key or by token.
        self.attaching: dict[Key, Callable[[str | None], None]] = {}
        self.getting: dict[Key, deque[Callable[[Got | Refused | None], None]]] = {}
        self.purging: dict[int, Callable[[int | Refused], None]] = {}
        self.sealing: dict[int, Callable[[Sealed | Refused], None]] = {}
        self.preparing: dict[int, Callable[[int | Refused], None]] = {}
        #: Questions about messages, at another node.
        self.looking: dict[int, Callable[[Found | Refused], None]] = {}
        #: (number of a batch, the function to call when it was applied)
        self.barriers: list[tuple[int, Callable[..., None]]] = []
        #: Who waits for the end of a transaction, and the function to call then.
        self.held: list[tuple[Callable[..., None], Callable[[], None]]] = NO_LIST


class _Nobody(Asking):
    """No client waits: the shared object of idle queues."""

    __slots__ = ()

    def __init__(self) -> None:
        self.attaching = self.getting = self.purging = self.sealing = NO_DICT
        self.looking = self.preparing = NO_DICT
        self.barriers = self.held = NO_LIST


NOBODY: Final[Asking] = _Nobody()


class QueueHost:
    """See quorum_queue.ports.Host.

    Thousands of queues may be idle: so it has slots, and no empty containers of its own.
    """

    __slots__ = (
        "_last_token",
        "_turn",
        "asking",
        "ended",
        "pending",
        "queue",
    )

    #: See quorum_queue.ports.Host and Recipient.
    shares_windows = False
    in_journal = True
    takes_parts = False
    is_queue = True
    parts_have_acks = True
    peeks = False

    def __init__(self, queue: Hosted, turn: Turn) -> None:
        #: The topology's queue.
        self.queue = queue
        self._turn = turn
        self.pending: list[Command] = []
        self.ended: Ended = ""
        #: Clients that wait. Read only; see `begin_asking`.
        self.asking: Asking = NOBODY
        self._last_token = 0

    # -- what the queue is set to do -------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        raise NotImplementedError

    def configure(self, settings: Settings) -> None:
        pass

    @property
    def takes_kinds(self) -> bool:
        """True if the messages of one run may have different attributes."""
        return False

    @property
    def counts_bytes(self) -> bool:
        """True if the queue has a limit in bytes: then it needs to know how many bytes of a content count."""
        return self.settings.max_length_bytes is not None

    @property
    def may_refuse(self) -> bool:
        """True if the queue refuses publishes now, or when it is full."""
        return self.settings.may_refuse

    @property
    def wants_ids(self) -> bool:
        """True if the queue needs something of its messages' headers: because it drops messages that it has
        taken before, records them, or has message groups.
        """
        settings = self.settings
        return settings.deduplicates or self.records or bool(settings.group_header)

    @property
    def records(self) -> bool:
        """True if the queue keeps a record of messages, and so needs their message-ids."""
        return self.settings.records

    @property
    def holds_dead_letters(self) -> bool:
        """True if dead letters are held until their targets have them."""
        return self.settings.dead_letter_at_least_once

    @property
    def parts(self) -> KeptParts | None:
        """The parts of transactions that the queue keeps, if its state is here."""
        return None

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that wait before they are ready again."""
        return 0

    def counts(self) -> tuple[int, int, int, int]:
        host: Any = self
        return host.consumer_count, host.ready_count, host.unacked_count, 0

    def order(self) -> Order | None:
        return None

    def oldest_age_ms(self) -> int | None:
        return None

    def came_ms(self, position: int) -> int | None:
        return None

    @property
    def partition_count(self) -> int:
        """Number of streams that a consumer group reads; 0 for all other queues."""
        return 0

    def partitions_changed(self) -> None:
        """Streams were declared or deleted. Only hosts of consumer groups react."""

    # -- commands --------------------------------------------------------------------------------------------

    def begin_large(self, content: bytes, head: bytes, channel: int) -> Preparing | None:
        return None

    def submit(self, *commands: Command) -> None:
        """Apply these commands after all pending ones."""
        self.pending += commands
        self._turn.schedule(self)

    def hold(self) -> None:
        pass

    def unhold(self) -> None:
        pass

    def apply_pending(self) -> None:
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """`apply_pending` raised: the state of this host cannot be trusted any more."""
        self.queue.host_failed(error)

    def barrier(self, done: Callable[..., None]) -> None:
        raise NotImplementedError

    def catch_up(self, done: Callable[..., None]) -> None:
        """See quorum_queue.ports.Host: all commands of all clients come here."""
        self.barrier(done)

    def can_settle(self, key: Key, low: int, high: int) -> bool:
        """See quorum_queue.ports.Host."""
        return True

    def attach(self, consumer: Consumer, done: Callable[[str | None], None]) -> None:
        """Attach a consumer; see quorum_queue.ports.Host."""
        if self.ended:
            done(self.ended_text)
            return
        self.begin_asking().attaching[consumer.key] = done
        self.submit(("attach", consumer))

    def get(self, consumer: Consumer, done: Callable[[Got | Refused | None], None]) -> None:
        """Deliver one message to a consumer that is not attached (basic.get)."""
        if self.ended:
            done(None if self.ended == "deleted" else Refused(self.ended_text))
            return
        consumer.attached = False
        self.begin_asking().getting.setdefault(consumer.key, deque()).append(done)
        self.submit(("get", consumer))

    def purge(self, done: Callable[[int | Refused], None]) -> None:
        """Drop all ready messages."""
        if self.ended:
            done(0 if self.ended == "deleted" else Refused(self.ended_text))
            return
        token = self._token()
        self.begin_asking().purging[token] = done
        self.submit(("purge", token))

    def prepare(
        self,
        transaction: TransactionId,
        count: int,
        queues: list[int],
        done: Callable[[int | Refused], None],
        level: int = MAJORITY,
    ) -> None:
        """See quorum_queue.ports.Host."""
        if self.ended:
            # What a transaction sends to a queue that is deleted is lost with the queue.
            done(READY if self.ended == "deleted" else Refused(self.ended_text))
            return
        token = self._token()
        self.begin_asking().preparing[token] = self._when_all(done) if level == ALL else done
        self.submit(("prepare", token, transaction, count, queues, level))

    def _when_all(self, done: Callable[[int | Refused], None]) -> Callable[[int | Refused], None]:
        """Return what answers when all members have a part of a transaction, where this host knows that."""
        return done

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        self.seal_here(condition, done)

    def seal_here(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        """Look whether the queue meets the condition as far as this node knows, and delete it then.

        This is right where the deletion is applied at once; in a cluster something may come in between.
        """

        # Hosts have the counts as properties or as constants.
        host: Any = self

        def decide(refused: Refused | None = None) -> None:
            if refused is not None and self.ended != "deleted":
                done(refused)
                return
            ready: int = host.ready_count + host.delayed_count
            found = Sealed(outcome(condition, consumers=host.consumer_count, ready=ready), ready)
            done(found)
            if found.outcome == SEALED:
                self.queue.sealed()

        self.barrier(decide)

    def when_over(self, then: Callable[[], None]) -> None:
        then()

    def _seal_in_order(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        """Seal the queue after all pending commands and before all later ones."""
        if self.ended:
            done(Sealed(SEALED, 0) if self.ended == "deleted" else Refused(self.ended_text))
            return
        token = self._token()
        self.begin_asking().sealing[token] = done
        self.submit(("seal", token, condition))

    @property
    def ended_text(self) -> str:
        """Text for clients that come too late."""
        return _ENDED_TEXTS.get(self.ended, "")

    def _token(self) -> int:
        self._last_token += 1
        return self._last_token

    def begin_asking(self) -> Asking:
        """Return the waiting clients, so that the caller can add one."""
        if self.asking is NOBODY:
            self.asking = Asking()
        return self.asking

    def message_status(self, message_id: bytes, done: Callable[[Found | Refused], None]) -> None:
        """Look what became of a message, after everything that any client has had answers to."""
        done(NO_RECORD)

    def ms_until(self, time_ms: int) -> int:
        return 0

    def peek(self, look: Look, done: Peeked) -> None:
        """See quorum_queue.ports.Host."""
        done(Refused(self.ended_text) if self.ended else NOT_HERE)

    # -- answers ---------------------------------------------------------------------------------------------

    def _attached(self, key: Key, refused: str | None) -> bool:
        """Answer the client that waits for its consumer to be attached; return whether there was one."""
        done = self.asking.attaching.pop(key, None)
        if done is not None:
            done(EXCLUSIVE if refused == "exclusive" else refused)
        return done is not None

    def _got(self, key: Key, got: Got | None) -> None:
        """Answer the first client that waits for a message of this getter."""
        getting = self.asking.getting
        waiting = getting.get(key)
        if waiting:
            done = waiting.popleft()
            if not waiting:
                del getting[key]
            done(got)

    def _purged(self, token: int, count: int) -> None:
        done = self.asking.purging.pop(token, None)
        if done is not None:
            done(count)

    def answer_prepare(self, token: int, outcome: int | Refused) -> None:
        """Answer the transaction that waits for its part here."""
        done = self.asking.preparing.pop(token, None)
        if done is not None:
            done(outcome)

    def _answer_seal(self, token: int, found: Sealed | Refused) -> None:
        """Answer the client that waits for this seal."""
        done = self.asking.sealing.pop(token, None)
        if done is not None:
            done(found)

    def _passed(self, number: int) -> None:
        """Batches up to this one were applied."""
        while self.asking.barriers and self.asking.barriers[0][0] <= number:
            self.asking.barriers.pop(0)[1]()

    def _pass_all(self) -> None:
        """All commands before the barriers were applied, or never will be."""
        asking = self.asking
        if asking.barriers:
            barriers, asking.barriers = asking.barriers, []
            why = (Refused(self.ended_text),) if self.ended == "failed" else ()
            for _, passed in barriers:
                passed(*why)

    def _refuse_askers(self, why: Refused) -> None:
        """Answer all clients whose requests will not be applied."""
        asking, self.asking = self.asking, NOBODY
        for attached in asking.attaching.values():
            attached(why.text)
        for waiting in asking.getting.values():
            for got in waiting:
                got(why)
        for purged in asking.purging.values():
            purged(why)
        for prepared in asking.preparing.values():
            prepared(READY if why == DELETED else why)
        for found in asking.sealing.values():
            found(Sealed(SEALED, 0) if why == DELETED else why)
        for looked in asking.looking.values():
            looked(why)
        for _, passed in asking.barriers:
            passed(why)
        for waits, _ in asking.held:
            waits(why)


def answer_publishes(commands: list[Command], *, gone: bool) -> None:
    """Answer the publishers of all messages among these commands, which will not be applied. `gone`: because
    the queue was deleted.
    """
    for command in commands:
        if command[0] in ENQUEUES and command[2] is not None:
            last = command[3] + len(command[1].seqs) - 1
            (command[2].gone if gone else command[2].refused)(command[3], last)


__all__ = ["DELETED", "MOVED", "Ended", "Got", "Key", "QueueHost", "answer_publishes"]
