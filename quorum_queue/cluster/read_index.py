"""How a node's copy catches up with everything that clients of other nodes have had answers to.

A member applies entries a moment after the leader has committed them, and seconds later if the node stood
still. An answer from its copy, such as a count of messages, would then be older than confirms that other
clients have. So the member asks the leader how far the log is committed (the *read index*), and answers when
it has applied as much.

The leader may have been replaced without noticing it. So before it answers, a majority of the voters tells it
that they know of no later term: then no later leader had committed anything when it was asked. It also waits
until an entry of its own term is committed, before which it does not know how far earlier leaders came.
Nothing is written for this; questions that come meanwhile share the next round.

Without a majority there is no answer; after `read_index_timeout_ms` the caller goes on with what the node
knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from quorum_queue.cluster import frames
from quorum_queue.host import Ended
from quorum_queue.machine.versions import SEALS
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from quorum_queue.cluster.replica_group import Group

_FEATURE: Final = f"machine/{SEALS}"


class MemberHost(Protocol):
    """The host of a queue that this node is a member of."""

    ended: Ended

    @property
    def group(self) -> Group: ...

    def barrier(self, done: Callable[..., None]) -> None: ...


class Read(NamedTuple):
    """A caller on this node."""

    ticket: int
    deadline_ms: int
    #: Called with whether the copy has caught up.
    done: Callable[[bool], None]


class Round:
    """A leader's question to the voters."""

    __slots__ = ("askers", "heard", "index", "number", "term")

    def __init__(self, number: int, term: int, index: int, askers: dict[str, int]) -> None:
        self.number = number
        self.term = term
        #: The commit when the round began.
        self.index = index
        #: The ticket of each node that asked before that.
        self.askers = askers
        #: Voters that know of no later term.
        self.heard: dict[str, None] = {}


class Reads:
    """The reads of one group on this node. A group without any has no such object."""

    __slots__ = ("applying", "askers", "round", "sent_to", "ticked", "waiting")

    def __init__(self) -> None:
        #: Reads without an index, in the order of their tickets.
        self.waiting: list[Read] = []
        #: Reads with the index that must be applied first.
        self.applying: list[tuple[int, Read]] = []
        #: Leader, term and ticket of the last question.
        self.sent_to = ("", 0, 0)
        #: As the leader: nodes that wait for the next round.
        self.askers: dict[str, int] = {}
        self.round: Round | None = None
        #: True after a tick: what was lost on the way is sent again.
        self.ticked = False

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.applying or self.askers or self.round)


def begin(group: Group, done: Callable[[bool], None]) -> None:
    """Call `done` with True when this member has applied everything that was committed before this call, or
    with False when it does not learn that in time.
    """
    replicas = group.replicas
    if replicas.groups.get(group.id) is not group:
        done(False)
        return
    reads = _reads(group)
    deadline_ms = replicas.clock.monotonic_ms() + replicas.options.read_index_timeout_ms
    reads.waiting.append(Read(replicas.ticket(), deadline_ms, done))
    replicas.touch(group)


def catch_up(host: MemberHost, done: Callable[..., None]) -> None:
    """Call `done` when the group of a host has caught up, and the host has passed a barrier. If the group
    does not catch up in time, `done` is called then, whatever the barrier does.
    """
    answered = False

    def once(*why: Refused) -> None:
        nonlocal answered
        if not answered:
            answered = True
            done(*why)

    def caught_up(known: bool) -> None:
        if known or host.ended:
            host.barrier(once)
        else:
            once()

    if host.ended:
        host.barrier(done)
    else:
        begin(host.group, caught_up)


def _reads(group: Group) -> Reads:
    if group.reads is None:
        group.reads = Reads()
    return group.reads


def received(group: Group, peer: str, kind: int, first: int, second: int) -> None:
    """Take a frame of another member."""
    core, replicas = group.core, group.replicas
    if kind == frames.LOOK:
        if group.is_leader and peer in core.members.everyone():
            askers = _reads(group).askers
            askers[peer] = max(askers.get(peer, 0), second)
            if core.leadership is not None:
                # It will wait until it knows that the entries up to the index are committed.
                core.leadership.tell_all()
            replicas.touch(group)
    elif kind == frames.LEADS:
        # A member that has lost its memory may have forgotten a later term.
        if first >= core.term and not core.amnesiac:
            replicas.send(peer, frames.stands(group.id, first, second))
    elif group.reads is not None and kind == frames.STANDS:
        current = group.reads.round
        if current is not None and (current.term, current.number) == (first, second):
            current.heard[peer] = None
            replicas.touch(group)
    elif group.reads is not None and kind == frames.SEEN:
        _has_index(group, group.reads, first, second)
        replicas.touch(group)


def go_on(group: Group) -> None:
    """Do what can be done now; called at the end of each turn in which something happened in the group."""
    reads = group.reads
    if reads is None:
        return
    again, reads.ticked = reads.ticked, False
    if reads.waiting:
        _ask(group, reads, again=again)
    if group.core.leadership is None:
        reads.askers, reads.round = {}, None
    elif reads.askers or reads.round is not None:
        _answer(group, reads, again=again)
    _pass(group, reads)
    if reads.idle and group.reads is reads:
        group.reads = None


def close(group: Group) -> None:
    """The group is closed on this node."""
    reads, group.reads = group.reads, None
    if reads is not None:
        for read in (*[read for _, read in reads.applying], *reads.waiting):
            read.done(False)


def _ask(group: Group, reads: Reads, *, again: bool) -> None:
    core, replicas, ticket = group.core, group.replicas, reads.waiting[-1].ticket
    leader = core.leader
    wanted = leader, core.term, ticket
    if not leader or (wanted == reads.sent_to and not again):
        return
    if leader == replicas.node:
        reads.sent_to = wanted
        reads.askers[leader] = ticket
    elif replicas.linked(leader):
        if not _knows(group, leader):
            # A leader of an earlier version: go on with what this node knows, as that version does.
            _has_index(group, reads, ticket, group.applied)
            return
        reads.sent_to = wanted
        replicas.send(leader, frames.look(group.id, core.term, ticket))


def _answer(group: Group, reads: Reads, *, again: bool) -> None:
    """As the leader: go on with the round, and begin the next one."""
    core, replicas = group.core, group.replicas
    leadership = core.leadership
    assert leadership is not None
    while True:
        current = reads.round
        if current is not None and current.term != core.term:
            # The nodes ask again.
            current = reads.round = None
        if current is None:
            if not reads.askers or core.commit < leadership.first_index:
                return
            askers, reads.askers = reads.askers, {}
            current = reads.round = Round(replicas.ticket(), core.term, core.commit, askers)
            again = True
        voters = core.members.voters
        for name in voters:
            if name == replicas.node or (replicas.linked(name) and not _knows(group, name)):
                current.heard[name] = None
            elif again and name not in current.heard:
                replicas.send(name, frames.leads(group.id, current.term, current.number))
        again = False
        if not _is_supported(current, voters):
            return
        reads.round = None
        for node, ticket in current.askers.items():
            if node == replicas.node:
                _has_index(group, reads, ticket, current.index)
            else:
                replicas.send(node, frames.seen(group.id, ticket, current.index))


def _is_supported(current: Round, voters: tuple[str, ...]) -> bool:
    """Return whether a majority knows of no later leader."""
    return 2 * sum(name in current.heard for name in voters) > len(voters)


def _knows(group: Group, name: str) -> bool:
    return _FEATURE in group.replicas.links.features_of(name)


def _has_index(group: Group, reads: Reads, ticket: int, index: int) -> None:
    """All reads up to this ticket need the log up to this index."""
    count = 0
    while count < len(reads.waiting) and reads.waiting[count].ticket <= ticket:
        reads.applying.append((index, reads.waiting[count]))
        count += 1
    del reads.waiting[:count]


def _pass(group: Group, reads: Reads) -> None:
    """Answer the callers whose entry is applied, and those that have waited too long."""
    now, applied = group.replicas.clock.monotonic_ms(), group.applied
    passed = [read for index, read in reads.applying if index <= applied]
    late = [read for index, read in reads.applying if index > applied and read.deadline_ms <= now]
    late += [read for read in reads.waiting if read.deadline_ms <= now]
    if not passed and not late:
        return
    reads.applying = [each for each in reads.applying if each[0] > applied and each[1].deadline_ms > now]
    reads.waiting = [read for read in reads.waiting if read.deadline_ms > now]
    for read in passed:
        read.done(True)
    for read in late:
        read.done(False)


__all__ = ["Reads", "begin", "catch_up", "close", "go_on", "received"]
