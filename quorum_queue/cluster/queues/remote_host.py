"""A queue that lives on another node: its commands go there over the link, and their results come back.

While the link is up, clients notice no difference. When it breaks, the outcome of publishes on their way is
unknown: they are refused, so their publisher tries again. Consumers are cancelled, as RabbitMQ cancels those
of a queue whose node went down, and the queue's home gives their messages to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from quorum_queue.cluster import frames
from quorum_queue.cluster.ports import Links
from quorum_queue.cluster.queues import events
from quorum_queue.cluster.queues.deferred_host import DeferredHost, cut
from quorum_queue.host import DELETED, MOVED
from quorum_queue.machine.entries import encode_batch
from quorum_queue.machine.seal import SEALED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.versions import KINDS, RECORD
from quorum_queue.message_status import answers
from quorum_queue.ports import ConsumerState, Hosted, Refused, Turn

#: Commands of one turn are cut into frames of about this size.
FRAME_BYTES = 1 << 20


class RemoteHost(DeferredHost):
    """This node's host of a queue that another node serves."""

    __slots__ = (
        "_avoid",
        "_drained",
        "_farewell",
        "_home",
        "_incarnation",
        "_last_sent",
        "_links",
        "_node",
        "_session",
        "_session_since",
        "_settings",
        "_stats",
        "_unanswered",
        "_unconfirmed_barriers",
        "_version",
        "name",
        "queue_id",
    )

    def __init__(
        self,
        queue: Hosted,
        queue_id: int,
        name: str,
        settings: Settings,
        links: Links,
        turn: Turn,
        *,
        node: str,
        incarnation: int,
        home: Callable[[str], str],
        version: Callable[[], int] | None = None,
    ) -> None:
        """`home` returns the node to ask, if possible another one than its argument; `version` what all nodes
        can do.
        """
        super().__init__(queue, turn)
        self.queue_id = queue_id
        self.name = name
        self._settings = settings
        self._links = links
        self._node = node
        self._incarnation = incarnation
        self._home = home
        self._version = version
        #: The node that last said that it does not serve the queue.
        self._avoid = ""
        #: Number of the last batch sent. Numbers are tokens, so no earlier host of this node has used them.
        self._last_sent = 0
        #: Numbers of the sent batches without all their answers, in order. A batch that has to catch up with
        #: the queue's log is answered later than those behind it.
        self._unanswered: dict[int, None] = {}
        #: Called once all sent batches are answered; nothing more is sent meanwhile.
        self._drained: Callable[[], None] | None = None
        #: Called when the home has answered the last batch, which went to it after the queue's deletion: what
        #: it sent to clients of this node arrives before that.
        self._farewell: list[Callable[[], None]] | None = None
        self._stats = events.Stats(0, 0, 0, 0)
        #: Barriers that the home has passed, whose publishes it has not on its disk yet: the last publish
        #: before each.
        self._unconfirmed_barriers: deque[tuple[int, Callable[..., None]]] = deque()
        #: The node that serves this host at present, while the link to it is up, and the first batch that it
        #: got.
        self._session = ""
        self._session_since = 1

    takes_parts = True

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def takes_kinds(self) -> bool:
        return self._version is not None and self._version() >= KINDS

    def configure(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def ready_count(self) -> int:
        return self._stats.ready

    @property
    def ready_bytes(self) -> int:
        return self._stats.ready_bytes

    @property
    def unacked_count(self) -> int:
        return self._stats.unacked

    @property
    def unacked_bytes(self) -> int:
        return 0

    @property
    def consumer_count(self) -> int:
        return self._stats.consumers

    def consumers(self) -> Iterator[ConsumerState]:
        """This node's consumers; only the queue's home knows the others."""
        for key, consumer in list(self._consumers.items()):
            yield ConsumerState(
                (self._node, self._incarnation, *key),
                consumer.no_ack,
                consumer.exclusive,
                consumer.own_prefetch,
                consumer.priority,
                True,
            )

    # -- sending
    # ---------------------------------------------------------------------------------------------------

    def _send_pending(self) -> None:
        if self._session and self._session not in self._links.connected():
            # This host was not told yet.
            self.link_down(self._session)
            if self.ended:
                return
        if self._drained is not None:
            return
        home = self._session or self._home(self._avoid)
        if not self._session:
            self._session_since = self._last_token + 1
        if self._pending_barriers:
            # Its answer says how full the queue is.
            self.pending.append(("touch",))
        for commands in cut(self._outgoing(), FRAME_BYTES):
            self._last_sent = self._token()
            batch = encode_batch(self._node, self._incarnation, self._last_sent, commands, levels=True)
            if not home or not self._links.send(home, frames.queue(self.queue_id, batch)):
                self._end(self._down())
                if not self._session and self._consumers:
                    # They came from another host and were not attached here yet.
                    self._lose_consumers()
                return
            self._session = home
            self._unanswered[self._last_sent] = None
        self._sent(self._last_sent, applied=False)

    def _sent(self, number: int, *, applied: bool) -> None:
        token = self._last_token
        self._pending_barriers = [self._confirmed_first(token, done) for done in self._pending_barriers]
        super()._sent(number, applied=applied)

    def _confirmed_first(self, token: int, done: Callable[..., None]) -> Callable[..., None]:
        """Return a barrier that also waits until publishes up to this one are answered: a commit needs them
        on disk.
        """

        def passed(*why: Refused) -> None:
            if why or self._first_publish() > token:
                done(*why)
            else:
                self._unconfirmed_barriers.append((token, done))

        return passed

    def _first_publish(self) -> int:
        """Return the number of the first publish without an answer, or one that is higher than any."""
        return next(iter(self._publishes), self._last_token + 1)

    def _pass_barriers(self) -> None:
        barriers = self._unconfirmed_barriers
        while barriers and self._first_publish() > barriers[0][0]:
            barriers.popleft()[1]()

    def _refuse_askers(self, why: Refused) -> None:
        super()._refuse_askers(why)
        barriers, self._unconfirmed_barriers = self._unconfirmed_barriers, deque()
        for _, done in barriers:
            done(why)

    def _down(self) -> Refused:
        home = self._home(self._avoid)
        if not home:
            return Refused(f"no node that has queue '{self.name}' can be reached")
        return Refused(f"home node '{home}' of queue '{self.name}' is down or inaccessible")

    @property
    def records(self) -> bool:
        # The home may be a node that does not know such commands.
        known = self._version is None or self._version() >= RECORD
        return self._settings.records and known

    def message_status(self, message_id: bytes, done: answers.Done) -> None:
        if self.ended or not self.records:
            done(Refused(self.ended_text) if self.ended else answers.NO_RECORD)
            return
        token = self._token()
        self.begin_asking().looking[token] = done
        self.submit(("status", token, message_id))

    def touch(self) -> None:
        self.submit(("touch",))

    def catch_up(self, done: Callable[..., None]) -> None:
        """The home catches up before it answers a batch with a tick; see guests."""
        self.submit(("tick",))
        self.barrier(done)

    def seal(self, condition: int, done: Callable[[Sealed | Refused], None]) -> None:
        self._seal_in_order(condition, done)

    def _heard_of_seal(self, token: int, found: Sealed) -> None:
        """A sealed queue is deleted by its home: answer when it is.

        If the home of a queue on one node stops before that, the seal and the deletion are gone with it, and
        a deletion by this node could come much later.
        """
        done = self.asking.sealing.get(token)
        if done is None or found.outcome != SEALED:
            self._answer_seal(token, found)
        else:
            self.asking.sealing[token] = partial(_when_deleted, found, done)

    def wake(self) -> None:
        """Sets no timers: the queue's home does."""

    def drain(self, then: Callable[[], None]) -> None:
        """Stop sending, and call back when all sent batches are answered. Later commands stay pending."""
        self._drained = then
        self._look_whether_drained()

    def resume(self) -> None:
        """Resume sending."""
        self._drained = None
        self._turn.schedule(self)

    def _look_whether_drained(self) -> None:
        if self._drained is not None and not self._unanswered:
            drained, self._drained = self._drained, None
            drained()

    def hand_over(self, to: DeferredHost, *, failed: bool = False) -> None:
        if self._session and self._sinks:
            commands = [("detach", key, True) for key in self._sinks]
            self._last_sent = self._token()
            batch = encode_batch(self._node, self._incarnation, self._last_sent, commands)
            self._links.send(self._session, frames.queue(self.queue_id, batch))
        super().hand_over(to, failed=failed)

    def _release(self) -> None:
        """Release nothing: all data is on another node."""

    def close(self) -> None:
        if self.ended:
            return
        self.ended = "deleted"
        self._refuse_publishes()
        if self._session and self._sinks:
            # Deletions come another way, and may be faster than deliveries.
            self._last_sent = self._token()
            batch = encode_batch(self._node, self._incarnation, self._last_sent, [])
            if self._links.send(self._session, frames.queue(self.queue_id, batch)):
                self._farewell = []
                return
        self._end(DELETED)

    def when_over(self, then: Callable[[], None]) -> None:
        if self._farewell is None:
            then()
        else:
            self._farewell.append(then)

    def _is_over(self) -> None:
        """Nothing more comes for clients of this node."""
        over, self._farewell = self._farewell, None
        self._end(DELETED)
        for then in over or ():
            then()

    def link_down(self, node: str) -> None:
        """The link to the queue's home has broken."""
        if self._session != node:
            return
        self._session = ""
        if self._farewell is not None:
            self._is_over()
            return
        self._unanswered.clear()
        # Unsent commands go to another home, if there is one.
        unsent = self._take_unsent()
        self._end(self._down())
        self._lose_consumers()
        self._put_unsent(unsent)
        self._look_whether_drained()

    def _lose_consumers(self) -> None:
        self._consumers.clear()
        self._sinks.clear()
        self._next_ids.clear()
        self.queue.consumers_lost()

    # -- receiving
    # -------------------------------------------------------------------------------------------------

    @property
    def _answers_in_order(self) -> bool:
        """False: a classic queue refuses, and confirms transient messages, at once, and persistent ones when
        they are on disk. The home answers for every message.
        """
        return False

    def received(self, found: list[tuple[Any, ...]]) -> None:
        """Take events from the queue's home; see events.decode."""
        for event in found:
            kind = event[0]
            if kind == events.DELIVERED:
                self._deliver(event[1], None, event[3], event[2])
            elif kind == events.CONFIRMED:
                self._confirmed(event[1], event[2], event[3])
            elif kind == events.REFUSED:
                self._confirmed(event[1], event[2], event[3], refused=True)
            elif kind == events.ATTACHED:
                self._attached(tuple(event[1]), event[2])
            elif kind == events.GOT_NOTHING:
                self._got(tuple(event[1]), None)
            elif kind == events.PURGED:
                self._purged(event[1], event[2])
            elif kind == events.PREPARED:
                self.answer_prepare(event[1], MOVED if event[2] == events.UNKNOWN else event[2])
            elif kind == events.STATUS:
                looked = self.asking.looking.pop(event[1], None)
                if looked is not None:
                    looked(event[2])
            elif kind == events.SEALED:
                if event[2] == events.UNKNOWN:
                    self._answer_seal(event[1], MOVED)
                else:
                    self._heard_of_seal(event[1], Sealed(event[2], event[3]))
            elif self._farewell is not None and kind in (events.MOVED, events.DONE):
                if event[1] == self._last_sent:
                    self._is_over()
            elif kind == events.MOVED:
                if self._is_of_session(event[1]):
                    self._avoid = self._session
                    self.link_down(self._session)
            elif kind == events.DONE:
                self._stats = events.Stats(*event[2:])
                if self._is_of_session(event[1]):
                    self._answered(event[1])
            else:
                raise frames.FrameError(f"an event of kind {kind}")
        if self._unconfirmed_barriers:
            self._pass_barriers()

    def _answered(self, number: int) -> None:
        """This batch has all its answers."""
        unanswered = self._unanswered
        unanswered.pop(number, None)
        self._passed(next(iter(unanswered)) - 1 if unanswered else self._last_sent)
        self._look_whether_drained()

    def _is_of_session(self, number: int) -> bool:
        """Whether the batch of this number went to the node that serves this host now. Other nodes, or this
        one for an earlier host, may still answer theirs.
        """
        return bool(self._session) and number >= self._session_since


def _when_deleted(found: Sealed, done: Callable[[Sealed | Refused], None], answer: Sealed | Refused) -> None:
    """The queue was deleted, or its home cannot be reached any more."""
    done(answer if isinstance(answer, Refused) else found)
