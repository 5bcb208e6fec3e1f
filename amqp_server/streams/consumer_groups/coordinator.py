"""The leader's part of a consumer group in a cluster: it watches the streams, and proposes which messages to
hand to which member.

Proposals are checked again when they are applied, so they may be late or out of date. Each partition has one
proposal in progress at a time. See quorum_queue.consumer_groups.replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amqp_server.streams.consumer_groups.member_reading import Watching
from quorum_queue.consumer_groups.group import Member
from quorum_queue.consumer_groups.partition import UNKNOWN, Partition
from quorum_queue.host import Key
from quorum_queue.ports import Refused

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost


class Coordinator:
    """State that only the leader has. On other nodes it is empty."""

    #: For mypyc; see `let_go`.
    __deletable__ = ("_host",)

    def __init__(
        self,
        host: ConsumerGroupMemberHost,
        streams: Callable[[], list[Any]],
        has_heard_of: Callable[[int], bool],
    ) -> None:
        self._host = host
        self._streams = streams
        self._has_heard_of = has_heard_of
        self._watching: dict[int, Watching] = {}
        #: True if the set of streams may have changed.
        self.stale = True
        #: Streams that may have messages to hand out.
        self._ready: dict[int, None] = {}
        #: Proposals that are not applied yet, by stream: the batch, the member, and how much of its room it
        #: takes. `_planning` has those of this turn.
        self._planned: dict[int, tuple[int, Key, int]] = {}
        self._planned_gets: dict[Key, int] = {}
        self._planning: list[tuple[int, Key, int]] = []
        self._planning_gets: list[Key] = []
        #: Getters without a message for which this node catches up with the streams, and for which it has.
        self._catching_up: dict[Key, None] = {}
        self._caught_up: dict[Key, None] = {}
        #: Members whose room was promised to one partition when another partition had messages for them.
        self._turned_away: dict[Key, None] = {}
        #: Order of the last service of each stream: the least recently served ones come first.
        self._served: dict[int, int] = {}
        self._serves = 0

    def begin_anew(self) -> None:
        """Another node leads, or this node leads again: forget the proposals."""
        self._planned, self._planned_gets = {}, {}
        self._planning, self._planning_gets, self._turned_away = [], [], {}
        self._catching_up, self._caught_up = {}, {}
        self._ready = dict.fromkeys(self._host.replica.group.partitions)

    def close(self) -> None:
        """Stop watching the streams."""
        for watching in self._watching.values():
            watching.close()
        self._watching = {}

    def sent(self, number: int) -> None:
        """The proposals of this turn are in batches up to this one."""
        for stream_id, key, count in self._planning:
            self._planned[stream_id] = number, key, count
        for key in self._planning_gets:
            self._planned_gets[key] = number
        self._planning, self._planning_gets = [], []

    def applied(self, number: int) -> None:
        """Called when own batches up to this one were applied."""
        for stream_id, (batch, key, _) in list(self._planned.items()):
            if batch <= number:
                del self._planned[stream_id]
                self._ready[stream_id] = None
                if key in self._turned_away:
                    self._ask_again(key)
        for key, batch in list(self._planned_gets.items()):
            if batch <= number:
                del self._planned_gets[key]

    def _ask_again(self, key: Key) -> None:
        """The messages promised to a member were handed out, or the proposal came too late: its other
        partitions may use the room now.
        """
        del self._turned_away[key]
        member = self._host.replica.group.members.get(key)
        if member is not None:
            self._ready.update(dict.fromkeys([each.stream_id for each in member.owned]))

    def has_to_lead(self) -> bool:
        replica = self._host.replica
        group = replica.group
        return bool(
            self.stale
            or self._ready
            or group.freed
            or group.roomy
            or replica.getting
            or replica.dead
            or len(group.partitions) != len(self._watching)
        )

    def coordinate(self) -> None:
        """Make the proposals that are due."""
        if self.stale:
            self.stale = False
            self._look_for_streams()
        self._watch_streams()
        group, ready = self._host.replica.group, self._ready
        freed, group.freed = group.freed, {}
        roomy, group.roomy = group.roomy, {}
        ready.update(dict.fromkeys([each.stream_id for each in freed]))
        for member in roomy:
            ready.update(dict.fromkeys([each.stream_id for each in member.owned]))
        if self._host.replica.getting:
            self._serve_getters()
        self._ready = {}
        order = sorted(ready, key=lambda each: self._served.get(each, 0)) if len(ready) > 1 else list(ready)
        taken = [*self._planned, *[stream_id for stream_id, _, _ in self._planning]]
        for stream_id in order:
            partition = group.partitions.get(stream_id)
            if partition is not None and stream_id not in taken:
                self._plan(partition)

    def _look_for_streams(self) -> None:
        known = self._host.replica.group.partitions
        streams = {each.queue_id: each.name for each in self._streams()}
        come = [[stream_id, name] for stream_id, name in streams.items() if stream_id not in known]
        # A stream that this node does not know yet does not count as deleted.
        gone = [each for each in known if each not in streams and self._has_heard_of(each)]
        if come or gone or not self._host.replica.known:
            self._host.pending.append(("streams", come, gone))

    def _watch_streams(self) -> None:
        partitions, watching = self._host.replica.group.partitions, self._watching
        for stream_id in [each for each in watching if each not in partitions]:
            watching.pop(stream_id).close()
        for stream_id, partition in partitions.items():
            found = watching.get(stream_id)
            if found is None:
                stream = self._host.stream(stream_id)
                if stream is None:
                    continue
                start = self._host.options.start if partition.cursor == UNKNOWN else None
                found = watching[stream_id] = Watching(self._host, self, stream, start)
            found.attach()

    def began(self, watching: Watching, offset: int) -> None:
        if self._host.group.is_leader:
            self._host.submit(("begin", watching.stream.queue_id, offset))

    def grew(self, stream_id: int) -> None:
        if stream_id not in self._ready:
            self._ready[stream_id] = None
            self._host.schedule()

    def _room(self, member: Member) -> int:
        """Return the room of a member without the room that is promised already."""
        room = member.room()
        for _, key, count in self._planned.values():
            if key == member.key:
                room -= count
        for _, key, count in self._planning:
            if key == member.key:
                room -= count
        return room

    def _plan(self, partition: Partition) -> None:
        """Propose to hand out the next messages of a partition."""
        stream_id = partition.stream_id
        watching, member = self._watching.get(stream_id), partition.active()
        offsets = watching.offsets() if watching is not None else None
        if offsets is None or partition.cursor == UNKNOWN:
            return
        if offsets.stop < partition.cursor:
            # The stream has just moved away from this node, which does not know its end yet. Messages that
            # came back are not new, so nothing tells when it does.
            self._ready[stream_id] = None
            self._host.retry()
        span = partition.upcoming()
        if span.low < offsets.start:
            # The message is deleted.
            self._host.pending.append(("passed", stream_id, span.low, offsets.start))
            self._planning.append((stream_id, (), 0))
            return
        if member is None or span.low >= offsets.stop or partition.is_full(self._host.options.spans_max):
            return
        room = self._room(member)
        if room <= 0:
            if member.room() > 0:
                self._turned_away[member.key] = None
            return
        stop = min(span.stop, offsets.stop, span.low + room)
        self._host.pending.append(("hand", stream_id, member.key, span.low, stop))
        self._planning.append((stream_id, member.key, stop - span.low))
        self._serves += 1
        self._served[stream_id] = self._serves

    def _serve_getters(self) -> None:
        """Propose messages for clients that wait for single messages."""
        group = self._host.replica.group
        taken = {stream_id for stream_id, _, _ in self._planning}
        for key in self._host.replica.getting:
            if key in self._planned_gets or key in self._planning_gets:
                continue
            getter = group.getters.get(key) or Member(key, channel=key[:-2])
            waits = not self._host.group.informed
            for partition in sorted(
                group.partitions.values(), key=lambda each: self._served.get(each.stream_id, 0)
            ):
                stream_id = partition.stream_id
                watching = self._watching.get(stream_id)
                offsets = watching.offsets() if watching is not None else None
                if offsets is None or stream_id in self._planned or stream_id in taken:
                    waits = True
                    continue
                low = partition.upcoming().low
                if partition.cursor == UNKNOWN or low < offsets.start:
                    waits = True
                    continue
                if low < offsets.stop and partition.is_open_to(getter):
                    taken.add(stream_id)
                    self._host.pending.append(("hand", stream_id, key, low, low + 1))
                    self._planning.append((stream_id, (), 0))
                    self._planning_gets.append(key)
                    self._serves += 1
                    self._served[stream_id] = self._serves
                    waits = True
                    break
            if waits or key in self._catching_up:
                continue
            if key in self._caught_up:
                del self._caught_up[key]
                self._host.pending.append(("nothing", key))
                self._planning_gets.append(key)
            else:
                self._catch_up(key)

    def _catch_up(self, key: Key) -> None:
        """Look for messages that were confirmed before the get, and that this node may not know yet."""
        catching_up = self._catching_up
        catching_up[key] = None

        def caught_up(*why: Refused) -> None:
            if catching_up is self._catching_up:
                del catching_up[key]
                self._caught_up[key] = None
                self._host.schedule()

        all_caught_up([each.stream.host for each in self._watching.values()], caught_up)

    def let_go(self) -> None:
        """Drop the reference to the closed host, to break the reference cycle."""
        del self._host


def all_caught_up(hosts: list[Any], done: Callable[..., None]) -> None:
    """Call `done` when all these hosts have caught up; see quorum_queue.ports.Host."""
    left = len(hosts)

    def caught_up(*why: Refused) -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    for host in hosts:
        host.catch_up(caught_up)
    if not hosts:
        done()


__all__ = ["Coordinator", "all_caught_up"]
