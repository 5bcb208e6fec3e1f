"""Leaders move to a voter that reaches more of the group's members than their own node.

A leader that has lost a member which is alive hands the group over; see reach for when a member counts as
lost. The receiver must have all committed entries, and must reach more of the members by its own account, so
each such move gains at least one member. If no node reaches all members, the one that reaches most leads.

Two nodes may judge differently: each knows best which of its own links break again and again, and a peer in a
new session knows nothing of that. So a group that has come back waits longer each time before it is handed to
the same node again, up to `steady_ms`. A leader without a majority does not hand over; elections take care of
that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from quorum_queue.cluster.connectivity import Reach
from quorum_queue.cluster.replica_group import Group
from quorum_queue.cluster.replicas import Replicas
from quorum_queue.raft.errors import MembershipRefused, NotLeader
from quorum_queue.raft.leading import Leadership
from quorum_queue.raft.members import Members

logger = logging.getLogger("mqd.replication")


def transfer(replicas: Replicas, group: Group, to: str) -> bool:
    """Hand a group that this node leads to another voter; return whether that has begun."""
    try:
        group.core.transfer(to)
    except (MembershipRefused, NotLeader) as refused:
        logger.debug("replica group %d: %s", group.id, refused)
        return False
    replicas.touch(group)
    return True


class HandOver:
    def __init__(self, replicas: Replicas, reach: Reach) -> None:
        self._replicas = replicas
        self._reach = reach
        #: Groups on their way to other nodes.
        self._begun: dict[Group, str] = {}
        #: Nodes that did not take over a group, and until when they get no other, ms; this pause grows.
        self._paused: dict[str, int] = {}
        self._pause_ms: dict[str, int] = {}
        #: By group and node: until when the group is not handed to this node again, ms, and the length of
        #: that pause. Remembered until links have lasted for `steady_ms` afterwards.
        self._given: dict[tuple[int, str], tuple[int, int]] = {}

    def tick(self) -> None:
        """Look at what was handed over: then call `hand_over`."""
        self._look_at_begun()
        if self._given:
            since = self._replicas.clock.monotonic_ms() - self._replicas.options.steady_ms
            self._given = {given: rest for given, rest in self._given.items() if rest[0] > since}
        if not self._reach.lacking():
            self._paused.clear()
            self._pause_ms.clear()

    def hand_over(self) -> Iterator[None]:
        """Begin to hand over groups that another node should lead, a limited number at each tick, and look at
        one group at each step.
        """
        lacking = self._reach.lacking()
        if not lacking or not self._replicas.led_count:
            return
        moved: dict[str, int] = {}
        left = self._replicas.options.handover_groups
        for group, best in self._better_elsewhere():
            if not best:
                yield
                continue
            # Each group always picks the same node, and many groups spread over all nodes.
            to = best[group.id % len(best)]
            if transfer(self._replicas, group, to):
                self._begun[group] = to
                moved[to] = moved.get(to, 0) + 1
                left -= 1
            if not left:
                break
        for to, count in moved.items():
            reached = ", ".join(name for name in lacking if self._reach.linked(to, name))
            logger.warning("moving %d leaders to %s: it reaches %s, this node does not", count, to, reached)

    def _better_elsewhere(self) -> Iterator[tuple[Group, list[str]]]:
        """Yield the groups, the topology first, with the voters that reach most of their members; none for a
        group that this node does not lead.
        """
        gains: dict[Members, dict[str, int]] = {}
        groups = self._replicas.groups
        for group in [groups[group_id] for group_id in sorted(groups)]:
            leadership = group.core.leadership
            there = groups.get(group.id) is group
            if leadership is None or leadership.transferring or not there or not leadership.has_quorum():
                yield group, []
                continue
            members = group.core.members
            gain = gains.get(members)
            if gain is None:
                gain = gains[members] = self._gains(members)
            best = self._best(leadership, gain)
            if self._given:
                now = self._replicas.clock.monotonic_ms()
                best = [name for name in best if self._given.get((group.id, name), (0, 0))[0] <= now]
            yield group, best

    def _gains(self, members: Members) -> dict[str, int]:
        """Return the voters that reach more of these members than this node, and how many more."""
        now, found = self._replicas.clock.monotonic_ms(), dict[str, int]()
        for name in members.voters:
            if self._replicas.linked(name) and self._paused.get(name, 0) <= now:
                gain = self._reach.gain(name, members.everyone())
                if gain > 0:
                    found[name] = gain
        return found

    def _best(self, leadership: Leadership, gain: dict[str, int]) -> list[str]:
        ready = [name for name in sorted(gain) if leadership.raft.caught_up(name)]
        most = max((gain[name] for name in ready), default=0)
        return [name for name in ready if gain[name] == most]

    def _look_at_begun(self) -> None:
        """Pause for nodes that did not take over in time: proposals wait during a hand-over."""
        for group, to in list(self._begun.items()):
            leadership = group.core.leadership
            if leadership is not None and leadership.transferring == to:
                continue
            del self._begun[group]
            there = self._replicas.groups.get(group.id) is group
            if not there:
                continue
            if leadership is None:
                self._rest(group.id, to)
            elif not leadership.transferring:
                self._pause(to)

    def _rest(self, group_id: int, to: str) -> None:
        options = self._replicas.options
        _, last_ms = self._given.get((group_id, to), (0, options.reach_ms // 2))
        rest_ms = min(2 * last_ms, options.steady_ms)
        self._given[group_id, to] = self._replicas.clock.monotonic_ms() + rest_ms, rest_ms

    def _pause(self, to: str) -> None:
        now, options = self._replicas.clock.monotonic_ms(), self._replicas.options
        if self._paused.get(to, 0) > now:
            return
        pause_ms = min(2 * self._pause_ms.get(to, options.reach_ms), options.steady_ms)
        self._pause_ms[to] = pause_ms
        self._paused[to] = now + pause_ms
        logger.warning("%s did not become leader; next attempt in %d ms", to, pause_ms)
