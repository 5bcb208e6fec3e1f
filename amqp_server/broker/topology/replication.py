"""Changes of the topology: this node proposes them, and every node of the cluster applies them.

A node without a cluster applies a change at once, or, if it is large, as soon as its parts are prepared (see
partitions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from amqp_server.broker.declared.operations import DeclareQueue, DeclareSuperStream, Operation
from amqp_server.broker.topology.events import INTERNAL
from quorum_queue.machine import versions
from quorum_queue.ports import Refused


class Result(NamedTuple):
    """Outcome of an operation; the same on every node."""

    #: True if there was anything to change.
    changed: bool
    #: Error text for the client, if the operation could not be done.
    error: str = ""


Done = Callable[[Result | Refused], None]


class Replication(Protocol):
    """Makes changes of the topology; given to the broker's constructor in a cluster."""

    #: The user on whose behalf the next change is proposed; see broker.events.
    user: str

    @property
    def node(self) -> str: ...

    @property
    def incarnation(self) -> int:
        """The incarnation, which increases with each start of the node."""

    @property
    def clustered(self) -> bool: ...

    @property
    def has_streams(self) -> bool:
        """True if streams may be declared, because all nodes know them."""

    @property
    def has_groups(self) -> bool:
        """True if consumer groups may be declared, because all nodes know them."""

    @property
    def has_super_streams(self) -> bool:
        """True if super streams may be declared, because all nodes know them."""

    @property
    def version(self) -> int:
        """Return the version that all nodes know; see quorum_queue.machine.versions."""

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        """Propose an operation; `done` is called when it was applied on this node, or with Refused if that
        did not happen in time.

        Without `done` the operation is proposed again until it is applied.
        """

    @property
    def reaches_majority(self) -> bool:
        """False if no change can be applied now, as far as this node knows."""

    def catch_up(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True when this node has applied all changes that clients of any node have had
        answers to; with False if it does not learn that in time.
        """


class Applies(Protocol):
    """The topology of this node; see broker.topology."""

    def next_queue_id(self) -> int: ...

    def prepare(self, index: int, operation: DeclareSuperStream, then: Callable[[], object]) -> None: ...

    def apply(self, index: int, operation: Operation, user: str | None = None) -> Result: ...


class LocalReplication:
    """Replication for a node without a cluster."""

    clustered = False
    reaches_majority = True
    has_streams = True
    has_groups = True
    has_super_streams = True
    version = versions.NEWEST
    incarnation = 0

    def __init__(self, node: str) -> None:
        self.node = node
        self.user = INTERNAL
        #: Set by the broker.
        self.topology: Applies

    def propose(self, operation: Operation, done: Done | None = None) -> None:
        declares = isinstance(operation, (DeclareQueue, DeclareSuperStream))
        index = self.topology.next_queue_id() if declares else 0
        if isinstance(operation, DeclareSuperStream):
            self.topology.prepare(index, operation, partial(self._apply, index, operation, done, self.user))
        else:
            self._apply(index, operation, done, self.user)

    def catch_up(self, done: Callable[[bool], None]) -> None:
        done(True)

    def _apply(self, index: int, operation: Operation, done: Done | None, user: str) -> None:
        result = self.topology.apply(index, operation, user)
        if done is not None:
            done(result)
