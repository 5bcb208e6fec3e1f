"""Connections and channels: what clients hold, have published, and wait for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.model.spec.messages import Choice, Copy, Message
from tests.model.spec.queues import Consumer, Queue
from tests.model.spec.streams import Log, Reader


@dataclass
class User:
    name: str
    #: Patterns of configure, write and read.
    permissions: tuple[str, str, str] = (".*", ".*", ".*")
    #: Limit of channels on all its connections together.
    channels_max: int | None = None

    def may(self, what: str, name: str) -> bool:
        pattern = self.permissions[("configure", "write", "read").index(what)]
        return bool(pattern) and re.search(pattern, name or "amq.default") is not None


@dataclass(eq=False)
class Session:
    client: int
    user: User
    node: str
    channels: dict[int, Channel] = field(default_factory=dict)


@dataclass(eq=False)
class Held:
    """A delivery that waits for its ack."""

    copy: Copy | None
    queue: Queue | Log
    consumer: Consumer | None
    reader: Reader | None = None
    offset: int = -1
    #: Those of a whole batch.
    offsets: tuple[int, ...] = ()
    #: When the step began in which it was delivered.
    since: float = 0.0


@dataclass(eq=False)
class Publishing:
    """A publish that waits for its confirm."""

    message: Message
    copies: list[tuple[Queue, Copy]]
    outcomes: set[str]
    logs: list[Log] = field(default_factory=list)
    #: Dead letters that a refusal made of it.
    letters: list[Copy] = field(default_factory=list)
    #: True while it has to be returned first.
    to_return: bool = False


@dataclass(eq=False)
class Channel:
    session: Session
    number: int
    confirming: bool = False
    transactional: bool = False
    prefetch: int = 0
    global_prefetch: int = 0
    #: By delivery tag.
    unacked: dict[int, Held] = field(default_factory=dict)
    last_tag: int = 0
    consumers: dict[str, Consumer] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    #: Consumers whose queue was deleted.
    ended: dict[str, Consumer] = field(default_factory=dict)
    #: Readers whose stream was deleted, and in which step.
    ended_readers: dict[str, tuple[Reader, int]] = field(default_factory=dict)
    last_publish: int = 0
    #: By number of the publish.
    unconfirmed: dict[int, Publishing] = field(default_factory=dict)
    returns: list[Publishing] = field(default_factory=list)
    #: Of an open transaction.
    tx_publishes: list[tuple[Message, set[str], Choice | None, bool]] = field(default_factory=list)
    tx_settles: list[tuple[str, int, Held]] = field(default_factory=list)
    #: What the client has called itself, and the number of this start of it.
    producer: tuple[str, int] | None = None
    #: Codes with which the broker may, or has to, close it now.
    closing: set[int] = field(default_factory=set)
    #: Codes with which it may close it, or not.
    may_close: set[int] = field(default_factory=set)

    @property
    def lane(self) -> str:
        return f"{id(self.session)}-{self.number}"

    def is_later_than(self, other: Channel) -> bool:
        """True if the same producer has begun again on this channel."""
        if self.producer is None or other.producer is None:
            return False
        return self.producer[0] == other.producer[0] and self.producer[1] > other.producer[1]


@dataclass
class Delivered:
    """A message that a client got, whatever way."""

    tag: int
    number: int
    redelivered: bool
    exchange: str
    key: str
    headers: dict[str, Any]
    size: int
    consumer: str = ""
    remaining: int = 0

    @property
    def deaths(self) -> tuple[tuple[str, str, int], ...]:
        table = self.headers.get("x-death") or []
        return tuple((str(d["queue"]), str(d["reason"]), int(d["count"])) for d in table)
