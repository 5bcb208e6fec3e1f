"""Messages, and their copies in queues."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any


class Presence(enum.IntEnum):
    """What the model knows about a copy: whether a client that asks now finds it."""

    MAYBE = 0
    #: It is or will be there, but a client that asks at once may not find it yet.
    COMING = 1
    SURE = 2


class Flag(enum.Enum):
    """What `redelivered` may be when the copy is delivered next."""

    NO = (False,)
    YES = (True,)
    EITHER = (False, True)


#: In place of the step in which a copy left: it never was there, or is lost for good.
NEVER = -2


@dataclass(frozen=True)
class Message:
    #: Its message-id, so that a delivery tells which message it is.
    number: int
    size: int
    exchange: str
    key: str
    priority: int | None = None
    expiration_ms: int | None = None
    persistent: bool = True
    headers: dict[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        # Streams compress batches: what looks like chance fills segments.
        return hashlib.shake_128(b"%d" % self.number).digest(self.size)

    @property
    def keys(self) -> list[str]:
        return [self.key, *self.headers.get("CC", []), *self.headers.get("BCC", [])]


@dataclass(frozen=True)
class Death:
    """An entry of x-death."""

    queue: str
    reason: str
    exchange: str
    keys: tuple[str, ...]
    count: int


@dataclass(eq=False)
class Choice:
    """Copies of a message of which only one is real, since its exchange chose a queue."""

    message: Message
    step: int
    #: Queues by routing key, of an exchange that chooses by it.
    chosen: dict[str, str] | None
    copies: list[Copy] = field(default_factory=list)
    #: True if the queue that was chosen may have refused it.
    refused: bool = False
    #: Name of the queue that was chosen, once it was seen.
    taken: str = ""

    def see(self, copy: Copy, queue: str) -> str | None:
        """The copy in this queue is the real one. Return what is wrong with that, if anything is."""
        if self.taken and self.taken != queue:
            return f"came to {queue} and to {self.taken}, of which its exchange had to choose one"
        self.taken = queue
        for other in self.copies:
            if other is not copy and not other.gone:
                other.leave(NEVER)
        if self.chosen is not None:
            known = self.chosen.setdefault(self.message.key, queue)
            if known != queue:
                return f"came to {queue}, and others with the key {self.message.key} came to {known}"
        return None


@dataclass(eq=False)
class Copy:
    """A message in one queue."""

    message: Message
    priority: int
    #: Steps in which it was sent and in which it was known to have arrived: copies whose spans overlap may be
    #: in either order, unless one channel sent both (`lane`, `sent`).
    sent: int
    lane: str
    presence: Presence
    arrived: int | None = None
    #: Order of the copies within one lane.
    ordinal: int = 0
    #: True in a quorum queue, where those that came back come first.
    strict: bool = False
    #: True if it came before all nodes were upgraded: quorum queues have no priorities then, and put what is
    #: returned back to its place.
    old: bool = False
    held: bool = False
    gone: bool = False
    #: Step in which it was last delivered, became ready, or left.
    delivered_at: int = -1
    ready_at: int = -1
    gone_at: int = -1
    flag: Flag = Flag.NO
    #: Fewest and most times that it was returned.
    returns: tuple[int, int] = (0, 0)
    #: Earliest and latest time at which its TTL ends.
    expiry: tuple[float, float] | None = None
    deaths: tuple[Death, ...] = ()
    #: False if it died for one of two reasons.
    deaths_sure: bool = True
    #: True if it is on the disk that it is there, and that it is gone.
    stored: bool = False
    safe: bool = False
    #: True if it had left before a kill, which the disk may not know.
    left_before: bool = False
    #: A dead letter's copy in the queue that it left, while one of the two may still be the real one.
    source: Copy | None = None
    letters: list[Copy] = field(default_factory=list)
    choice: Choice | None = None
    doomed: bool = False
    #: How long it may be in this queue.
    ttl_ms: int | None = None
    #: Its message group.
    group: str | None = None
    #: Channel that holds it, and the tag of its consumer; "" by a get.
    holder: tuple[Any, str] | None = None
    #: True before its time, which is between these two; and whether it waits because it came back.
    waits: bool = False
    due: tuple[float, float] | None = None
    came_back: bool = False
    #: It may be a duplicate that the queue does not take.
    repeated: bool = False
    #: It expired when the policy of its queue changed, before or after that.
    vague: bool = False
    #: Its offset in the stream that a group reads, once a client has seen it.
    offset: int = -1
    #: Keys and exchange of the copy, which dead-lettering changes.
    exchange: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"message {self.message.number}"

    @property
    def ready(self) -> bool:
        return not self.held and not self.gone and not self.waits

    def precedes(self, other: Copy) -> bool:
        """True if the copy has to be delivered before the other one, where both are ready."""
        if self.strict and (self.old or other.old) and self._ranks_otherwise(other):
            return False
        if self.strict and (self.flag is not Flag.NO or other.flag is not Flag.NO):
            # Those that came back come first, in the order of their return, which nobody here knows.
            return self.flag is Flag.YES and other.flag is Flag.NO
        if self.priority != other.priority:
            return self.priority > other.priority
        if self.lane == other.lane:
            return self.ordinal < other.ordinal
        return self.arrived is not None and self.arrived < other.sent

    def _ranks_otherwise(self, other: Copy) -> bool:
        return self.priority != other.priority or self.flag is not Flag.NO or other.flag is not Flag.NO

    @property
    def may_be_retried(self) -> bool:
        """True as long as it waits, or may wait, because it came back."""
        return self.came_back and self.due is not None

    def wait(self, due: tuple[float, float], *, came_back: bool = False) -> None:
        self.waits, self.due, self.came_back = True, due, came_back

    def look_at_time(self, now: float, step: int) -> bool:
        """When its wait ends it is on its way, and surely there a moment later. True if that changed."""
        if self.due is None:
            return False
        before = self.waits, self.due
        if self.waits and now >= self.due[0]:
            self.waits, self.ready_at = False, step
            self.presence = min(self.presence, Presence.COMING)
        if now > self.due[1]:
            self.due = None
            if self.presence is Presence.COMING:
                self.presence = Presence.SURE
        return before != (self.waits, self.due)

    def has_expired(self, now: float) -> bool:
        return self.expiry is not None and now > self.expiry[1]

    def may_have_expired(self, now: float) -> bool:
        return self.expiry is not None and now >= self.expiry[0]

    def leave(self, step: int) -> None:
        self.gone, self.held, self.gone_at = True, False, step
        self.waits, self.due = False, None

    def doubt(self) -> None:
        """Its message may never have come."""
        self.presence = Presence.MAYBE
        for letter in self.letters:
            letter.doubt()

    def put_back(self, step: int) -> None:
        """Return it to its place."""
        self.held, self.gone, self.ready_at, self.flag = False, False, step, Flag.YES


def on_their_way(copies: Iterable[Copy], identity: str, lane: str) -> list[Copy]:
    """Return those with this `x-deduplication-id` that others have sent, and of which nobody has heard."""
    return [
        copy
        for copy in copies
        if copy.arrived is None
        and copy.lane != lane
        and copy.message.headers.get("x-deduplication-id") == identity
    ]


def died(
    deaths: tuple[Death, ...], queue: str, reason: str, exchange: str, keys: tuple[str, ...]
) -> tuple[Death, ...]:
    """x-death after one more death: the newest comes first, and each pair of queue and reason once."""
    for index, death in enumerate(deaths):
        if (death.queue, death.reason) == (queue, reason):
            return (replace(death, count=death.count + 1), *deaths[:index], *deaths[index + 1 :])
    return (Death(queue, reason, exchange, keys, 1), *deaths)
