"""All Raft groups of this node, without I/O: passes frames to their cores, and gathers the work that the
cores request.

In one turn (see amqp_server.turn) the batches that reached a leader become entries, and every dirty group
returns what to write, send and apply. All writes go into the layer of the next commit (one transaction for
all groups), and messages that must wait for the disk leave when that commit is done. An idle group costs
nothing: it has no timer, and the heartbeats belong to the links, one for each pair of nodes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from quorum_queue.boundary import Boundary
from quorum_queue.clock import Clock
from quorum_queue.cluster import entry_batching, frames, read_index
from quorum_queue.cluster.bodies import BodyCache
from quorum_queue.cluster.options import ReplicationOptions
from quorum_queue.cluster.ports import Commits, Links, Store
from quorum_queue.cluster.replica_group import Foresee, Group, StateMachine
from quorum_queue.cluster.snapshots import compaction, transfer
from quorum_queue.cluster.snapshots.lost_entries import LostEntries
from quorum_queue.cluster.unopened_groups import UnopenedGroups
from quorum_queue.machine import versions
from quorum_queue.ports import Timers, Turn
from quorum_queue.raft.core import Raft
from quorum_queue.raft.errors import CodecError
from quorum_queue.raft.log import Log
from quorum_queue.raft.members import HardState, Members
from quorum_queue.raft.messages import (
    APPEND,
    COMMIT,
    NORMAL,
    RESIGN,
    Entry,
    Message,
    decode_message,
    encode_message,
)
from quorum_queue.raft.options import Options

if TYPE_CHECKING:
    from quorum_queue.cluster.queues.last_messages import LastMessages

logger = logging.getLogger("mqd.replication")

_RAFT = bytes((frames.RAFT,))
#: A leader that this node heard from within this time stays leader, ms.
OTHERS_HEARD_MS: Final = 2_000


class Written:
    """The writes of one commit for one group, and the messages that may leave afterwards."""

    __slots__ = ("group", "hard", "index", "messages", "term")

    def __init__(
        self, group: Group, hard: HardState | None, index: int, term: int, messages: tuple[Message, ...]
    ) -> None:
        self.group = group
        self.hard = hard
        #: Of the last entry; 0 if there is none.
        self.index = index
        self.term = term
        self.messages = messages


class Stopped:
    """A group that has stopped on this node, with its view of the other members' progress."""

    __slots__ = ("heard_ms", "last_index")

    def __init__(self, last_index: int) -> None:
        self.last_index = last_index
        #: When a leader last reported a commit beyond the last entry of this node's log.
        self.heard_ms = 0


class Replicas:
    """The groups of one node."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        *,
        store: Store,
        commits: Commits,
        links: Links,
        clock: Clock,
        timers: Timers,
        options: ReplicationOptions,
        raft: Options,
        boundary: Boundary,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.own = (node, incarnation)
        self.store = store
        self.commits = commits
        self.links = links
        self.clock = clock
        self.timers = timers
        self.options = options
        self.raft_options = raft
        self._single_options = replace(raft, apply_entries_max=raft.apply_single_max)
        #: The version that all nodes of the cluster know; see quorum_queue.machine.versions.
        self.version: Callable[[], int] = lambda: versions.NEWEST
        #: All calls to a group go through it: an exception of one group stops only that group.
        self.contain = boundary.contain
        self.groups: dict[int, Group] = {}
        self.dirty: dict[Group, None] = {}
        #: Writes that became durable since the group was last carried out.
        self._synced: dict[Group, list[Written]] = {}
        #: Groups that want ticks.
        self.active: dict[Group, None] = {}
        #: Bytes of this node's batches that are not applied here yet.
        self.flight_bytes = 0
        self.led_count = 0
        #: The incarnation of each known node that is up, None for those that are down.
        self.incarnations: dict[str, int | None] = {node: incarnation}
        #: Since when each of the latter is unreachable, ms of the monotonic clock.
        self.down_since: dict[str, int] = {}
        self._written: list[Written] = []
        self._written_bytes = 0
        #: For each commit under way, when it takes too long.
        self._writing: deque[int] = deque()
        #: True while the disk does not accept writes: this node leads nothing.
        self.stalled = self._full = False
        #: True if this node is about to stop.
        self.draining = False
        self._transfers: dict[Group, None] = {}
        self.unopened = UnopenedGroups(options.unopened_bytes_max)
        self.lost_entries = LostEntries(self)
        #: How often this node has left a group since it started.
        self._left: dict[int, int] = {}
        #: Groups that have stopped here because they failed.
        self._stopped: dict[int, Stopped] = {}
        #: How often a group has forgotten its log since this start.
        self._forgotten: dict[int, int] = {}
        self.bodies = BodyCache(options.bodies_bytes)
        #: Dead letters of closed groups that have not been sent yet.
        self.last_messages: dict[int, LastMessages] = {}
        #: Tickets begin with the number of the start, a time in ms, so that no earlier start has used them.
        self._last_ticket = incarnation << 20
        #: Groups that were closed or stopped in this turn.
        self._closed: list[Group] = []
        #: News that not all groups know: what to do with each group; and the number of news before.
        self._news: list[Callable[[Group], None]] = []
        self._told = 0

    # -- groups ----------------------------------------------------------------------------------------------

    def open(
        self,
        group_id: int,
        machine: StateMachine,
        *,
        members: Members,
        hard: HardState,
        log: Log,
        applied: int,
        changes: Iterable[tuple[int, Members]] = (),
        amnesiac: int = 0,
    ) -> Group:
        """Start a group of which this node is a member. The machine is at the entry `applied`."""
        core = Raft(
            self.node,
            group_id,
            members=members,
            hard=hard,
            log=log,
            options=self._single_options if machine.single else self.raft_options,
            changes=changes,
            amnesiac=amnesiac,
        )
        self._stopped.pop(group_id, None)
        group = self.groups[group_id] = Group(self, group_id, core, machine, applied=applied)
        group.told = self.news_count
        self.touch(group)
        for message in self.unopened.take_messages(group_id):
            self.contain(group, self._step, group, message)
        return group

    def close(self, group: Group, *, keep: bool = False) -> None:
        """Close a group and delete all its stored data, unless it is to be kept for now."""
        if self.groups.get(group.id) is group:
            self._leave_out(group)
            if not keep:
                self.drop(group.id)

    def finish_messages(self, group_id: int) -> None:
        """This node becomes a member of a group again: delete its stored data
        of the earlier membership now.
        """
        last = self.last_messages.get(group_id)
        if last is not None:
            last.finish()

    def drop(self, group_id: int) -> None:
        """Delete the stored data of a group that is not open."""
        self._stopped.pop(group_id, None)
        self.store.drop(group_id)
        self.commits.request()

    def stop(self, group: Group) -> None:
        """Stop a group on this node: it does not vote, lead or take entries. Its stored data is kept."""
        if self.groups.get(group.id) is group:
            if group.is_leader:
                # Otherwise its followers would trust it for as long as the links are up.
                for peer in group.core.members.everyone():
                    if peer != self.node:
                        self.post(group.id, Message(RESIGN, self.node, peer, group.core.term))
            self._leave_out(group)
            self._stopped[group.id] = Stopped(group.core.log.last_index)

    def others_go_on(self, group_id: int) -> bool:
        """Return whether the other members commit entries that this node never had: they are a majority
        without this one, so it may begin again with an empty log.
        """
        stopped = self._stopped.get(group_id)
        return stopped is not None and self.clock.monotonic_ms() - stopped.heard_ms < OTHERS_HEARD_MS

    def new_memory(self, group_id: int) -> int:
        """Return a number that no earlier memory of this node for this group had: it has forgotten its votes.

        Starts of the process are times in ms, so there is room between two of them.
        """
        times = self._forgotten.get(group_id, 0)
        self._forgotten[group_id] = times + 1
        return self.incarnation + times

    def _leave_out(self, group: Group) -> None:
        del self.groups[group.id]
        self.dirty.pop(group, None)
        self._synced.pop(group, None)
        self.active.pop(group, None)
        self._transfers.pop(group, None)
        self.flight_bytes -= sum(len(flight.payload) for flight in group.flights)
        group.flights = group.early = group.unsynced = ()
        if group.leading:
            self.led_count -= 1
        self._closed.append(group)
        read_index.close(group)

    def leave(self, group_id: int) -> None:
        """This node has left a group. It may become a member again."""
        self._left[group_id] = self._left.get(group_id, 0) + 1

    def gone(self, group_id: int) -> None:
        """The group was deleted, and no later one has its number: forget what was counted for it."""
        self._left.pop(group_id, None)
        self._forgotten.pop(group_id, None)
        self.lost_entries.gone(group_id)

    def own_in(self, group_id: int) -> tuple[str, int]:
        """Return the node and incarnation that this node's batches for a group begin with.

        The numbers of batches begin with 1 in each membership. For the group, a node that returns is a
        further start of that node. Starts of processes are times in ms, so there is room for such numbers
        between two of them.
        """
        times = self._left.get(group_id)
        return self.own if times is None else (self.node, self.incarnation + times)

    def ticket(self) -> int:
        """Return a number, higher than all before, for a batch whose leader is to tell when it is on its
        disk.
        """
        self._last_ticket += 1
        return self._last_ticket

    @property
    def message_bytes_max(self) -> int:
        """The most that a message may take, with its frames, in the entry of a group."""
        options = self.options
        if self.version() < versions.LARGE_ENTRIES:
            return options.earlier_message_bytes_max
        return options.message_bytes_max

    def touch(self, group: Group) -> None:
        """Something happened in a group: process it at the end of the turn."""
        self.dirty[group] = None

    # -- links -----------------------------------------------------------------------------------------------

    def linked(self, node: str) -> bool:
        return node in self.links.connected()

    def send(self, peer: str, parts: list[bytes]) -> bool:
        return self.links.send(peer, parts)

    def link_up(self, peer: str) -> None:
        """A link is up: call `tell`."""
        self._news.append(partial(self._link_up, peer))
        self.lost_entries.ask_again()

    def link_down(self, peer: str) -> None:
        """A link is down: call `tell`."""
        self.lost_entries.link_down(peer)
        self._news.append(partial(self._link_down, peer))

    @property
    def news_count(self) -> int:
        """Number of news for all groups since the start."""
        return self._told + len(self._news)

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def tell(self) -> Iterator[None]:
        """Tell all groups about the changes of links and of this node, one group at each step. A group that
        gets a frame before its step is told first, so that it sees news and frames in their order.
        """
        until = self.news_count
        for group in list(self.groups.values()):
            if group.told < until and self.groups.get(group.id) is group:
                self._tell(group)
                yield
        del self._news[: until - self._told]
        self._told = until

    def _tell(self, group: Group) -> None:
        news = self._news[group.told - self._told :]
        group.told = self.news_count
        for each in news:
            self.contain(group, each, group)

    def _group_of(self, group_id: int) -> Group | None:
        """Return a group that is open here, up to date for a frame."""
        group = self.groups.get(group_id)
        if group is not None and group.told != self.news_count:
            self._tell(group)
            # It may have failed.
            return self.groups.get(group_id)
        return group

    def _link_up(self, peer: str, group: Group) -> None:
        group.link_changed(peer)
        # A peer matters to a group only if it leads the group, or follows this node in it.
        if group.core.leader in (self.node, peer) and peer in group.core.members.everyone():
            group.core.in_contact(peer)
            self.touch(group)

    def _link_down(self, peer: str, group: Group) -> None:
        transfer.peer_gone(group, peer)
        group.forget_askers(peer)
        group.link_changed(peer)
        if peer in group.core.members.everyone():
            group.core.lost_contact(peer)
            self.touch(group)

    def received(self, peer: str, frame: memoryview) -> None:
        """Take one frame. Raises frames.FrameError, CodecError: the peer is broken."""
        kind = frame[0]
        if kind == frames.RAFT:
            group_id, message = decode_message(frame, 1)
            group = self._group_of(group_id)
            if group is not None:
                self.contain(group, self._step, group, message)
            elif group_id in self._stopped:
                self._watch(self._stopped[group_id], message)
            else:
                self.unopened.keep_message(group_id, message, len(frame))
        elif kind == frames.BATCH:
            group_id, payload = frames.parse_batch(frame)
            group = self._group_of(group_id)
            # A node that is no longer a member sees neither the results of its batches nor its own removal.
            if group is not None and group.is_leader and peer in group.core.members.everyone():
                group.take(payload)
        elif kind == frames.EARLY:
            group_id, term, ticket, payload = frames.parse_early(frame)
            group = self._group_of(group_id)
            if group is not None and group.is_leader and peer in group.core.members.everyone():
                # Batches of an earlier term may not all have arrived; they will come again.
                group.take(payload, peer if term == group.core.term else "", ticket)
        elif kind in (frames.SYNCED, frames.AWAIT, frames.REACHED):
            self._received_about_levels(peer, kind, frame)
        elif kind in (frames.LOOK, frames.SEEN, frames.LEADS, frames.STANDS):
            group_id, first, second, _ = frames.parse_early(frame)
            group = self.groups.get(group_id)
            if group is not None:
                self.contain(group, read_index.received, group, peer, kind, first, second)
        elif kind == frames.STATE:
            piece = frames.parse_state(frame)
            group = self._group_of(piece.group)
            if group is None or self.unopened.has_pieces(piece.group):
                self.unopened.keep_piece(peer, piece)
            else:
                self.contain(group, transfer.receive_state, group, peer, piece)
        elif kind == frames.FETCH:
            group_id, indexes = frames.parse_fetch(frame)
            group = self._group_of(group_id)
            if group is None:
                transfer.answer_fetch(self, peer, group_id, indexes)
            else:
                self.contain(group, transfer.answer_fetch, self, peer, group_id, indexes)
        elif kind == frames.ENTRIES:
            group_id, found = frames.parse_entries(frame)
            group = self._group_of(group_id)
            if group is not None:
                self.contain(group, transfer.receive_entries, group, peer, found)
        elif kind == frames.SEEK:
            group_id, questions = frames.parse_seek(frame)
            group = self._group_of(group_id)
            if group is not None:
                self.contain(group, self.lost_entries.answer, peer, group, questions)
        elif kind == frames.SOUGHT:
            group_id, leader_term, answers = frames.parse_sought(frame)
            group = self._group_of(group_id)
            if group is not None:
                self.contain(group, self.lost_entries.answered, peer, group, leader_term, answers)
        elif kind == frames.PASS:
            group = self._group_of(frames.parse_group(frame))
            if group is not None:
                self.contain(group, self.lost_entries.pass_over, group.id)
        else:
            raise frames.FrameError(f"a frame of kind {kind}")

    def _received_about_levels(self, peer: str, kind: int, frame: memoryview) -> None:
        if kind == frames.REACHED:
            group_id, index = frames.parse_stopped(frame)
            group = self._group_of(group_id)
            if group is not None and peer == group.core.leader:
                self.contain(group, group.reached, index)
            return
        group_id, first, second, _ = frames.parse_early(frame)
        group = self._group_of(group_id)
        if group is None:
            return
        if kind == frames.AWAIT:
            if group.is_leader:
                group.asks(peer, first, second)
        elif (peer, first) == (group.core.leader, group.core.term):
            self.contain(group, group.synced, second)

    def _watch(self, stopped: Stopped, message: Message) -> None:
        # Only leaders send a commit.
        if message.kind in (APPEND, COMMIT) and message.hint_term > stopped.last_index:
            stopped.heard_ms = self.clock.monotonic_ms()

    def _step(self, group: Group, message: Message) -> None:
        """Raises LogDiverged: it is safer to stop than to guess which of two logs is right."""
        group.core.step(message)
        self.touch(group)

    def _take_pieces(self) -> None:
        """Process frames that came before their group was opened."""
        for group_id in self.unopened.groups_with_pieces:
            group = self.groups.get(group_id)
            if group is not None:
                for peer, piece in self.unopened.take_pieces(group_id):
                    self.contain(group, transfer.receive_state, group, peer, piece)

    def topology_came(self, index: int) -> None:
        """The topology has reached this index: drop frames for groups that do not exist by then."""
        self.unopened.topology_index = index
        self._take_pieces()
        self.unopened.forget()

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One tick of the election clock: call `tell`, and `ticks` for the groups that are not idle."""
        self._watch_disk()
        self.lost_entries.tick()
        if self.stalled:
            # A node that cannot write must not lead. What it knows may still be read.
            for group in list(self.active):
                self._tick_reads(group)
            return
        self._take_pieces()
        for group in list(self._transfers):
            self.contain(group, transfer.go_on, group)

    def ticks(self) -> Iterator[None]:
        """One tick for each group that is not idle, one group at each step.

        A group that is idle hears of a change by `link_up` and `link_down` only, so a tick must not know less
        of the links than they have told.
        """
        if self.stalled:
            return
        connected, known = self.links.connected(), self.news_count
        for group in list(self.active):
            if known != self.news_count:
                connected, known = self.links.connected(), self.news_count
            if group in self.active:
                self.contain(group, self._tick, group, connected)
                yield

    def _tick(self, group: Group, connected: Collection[str]) -> None:
        core = group.core
        core.tick(connected)
        self._tick_reads(group)
        # After most ticks a thousand candidates keep waiting.
        if core.has_ready or core.quiet or group.inbox or group.unreached or group.askers:
            self.touch(group)

    def _tick_reads(self, group: Group) -> None:
        if group.reads is not None:
            group.reads.ticked = True
            self.touch(group)

    def _watch_disk(self) -> None:
        slow = bool(self._writing) and self.clock.monotonic_ms() > self._writing[0]
        self._set_stalled(slow or self._full)

    @property
    def takes_leaders(self) -> bool:
        """Return whether other nodes may hand groups over to this one."""
        return not (self.draining or self.stalled)

    def disk_full(self, full: bool) -> None:
        """The disk has no room left, or has some again. Call `tell`."""
        self._full = full
        self._watch_disk()

    def _set_stalled(self, stalled: bool) -> None:
        if stalled is self.stalled:
            return
        self.stalled = stalled
        if not stalled:
            logger.warning("the disk accepts writes again")
            return
        logger.warning("the disk does not accept writes: giving up leadership")
        self._news.append(self._step_down)

    def _step_down(self, group: Group) -> None:
        if group.is_leader:
            group.core.step_down()
            self.touch(group)

    def distrust(self) -> None:
        """This node's knowledge may be outdated: it neither leads nor follows until it hears from the others
        again. Call `tell`.
        """
        self._news.append(self._distrust)

    def _distrust(self, group: Group) -> None:
        if group.is_leader:
            group.core.step_down()
        else:
            group.core.lost_contact(group.core.leader)
        self.touch(group)

    # -- turns -----------------------------------------------------------------------------------------------

    def take_dirty(self) -> list[Group]:
        """Return the groups in which something happened since the last call."""
        dirty = [group for group in self.dirty if self.groups.get(group.id) is group]
        self.dirty.clear()
        return dirty

    def touch_again(self, groups: Iterable[Group]) -> None:
        """Note groups that an earlier turn had no time for."""
        self.dirty.update(dict.fromkeys(groups))

    def carry_out(self, group: Group, turn: Turn) -> None:
        """Carry out the requests of a dirty group; entries are applied as far as the turn has time."""
        if self.groups.get(group.id) is not group:
            return
        core = group.core
        if self._synced:
            for each in self._synced.pop(group, ()):
                self._after_sync(each)
        if group.inbox and not (group.is_leader and entry_batching.waits(group)):
            group.propose()
        while core.has_ready:
            if self._carry_out(group) and group.applied < core.commit and turn.overdue():
                core.applies_later = True
                turn.later(group, partial(self._apply_more, group))
        group.watch_leader()
        if group.unreached or group.askers:
            group.look_for_all()
        if group.reads is not None:
            read_index.go_on(group)
        compaction.go_on(group)
        core.patient = not group.flights and not group.machine.awaited and group.reads is None
        if core.quiet and group.reads is None:
            self.active.pop(group, None)
        else:
            self.active[group] = None

    def _apply_more(self, group: Group) -> None:
        group.core.applies_later = group.foreseeing > 0
        self.touch(group)

    def _foresee(self, group: Group, foresee: Foresee, entries: tuple[Entry, ...]) -> None:
        """Prepare slow parts of these entries before they are committed."""

        def is_ready() -> None:
            group.foreseeing -= 1
            self._apply_more(group)

        for index, _, kind, data in entries:
            if kind == NORMAL:
                group.foreseeing += 1
                if not foresee(index, data, is_ready):
                    group.foreseeing -= 1
        if group.foreseeing:
            group.core.applies_later = True

    def _carry_out(self, group: Group) -> bool:
        """Return whether entries were applied."""
        ready = group.core.ready()
        store, group_id = self.store, group.id
        hard, entries = ready.hard, ready.entries
        if hard is not None:
            store.hard(group_id, hard.term, hard.vote)
        if entries:
            store.append(group_id, entries)
            for entry in entries:
                self._written_bytes += len(entry.data)
            foresee = group.machine.foresee
            if foresee is not None:
                self._foresee(group, foresee, entries)
            last = entries[-1]
            self._written.append(Written(group, hard, last.index, last.term, ready.after_sync))
        elif hard is not None:
            self._written.append(Written(group, hard, 0, 0, ready.after_sync))
        else:
            self._post(group_id, ready.after_sync)
        self._post(group_id, ready.messages)
        if ready.committed:
            group.apply(ready.committed)
        for to in ready.snapshots:
            transfer.begin(group, to)
        for index in ready.lost:
            self.lost_entries.add(group, index)
        for low, high in ready.reads:
            self._ask(group, low, high)
        return bool(ready.committed)

    def _ask(self, group: Group, low: int, high: int) -> None:
        """Let the disk read these entries of the log."""

        def came() -> None:
            if self.groups.get(group.id) is group:
                group.core.came(low, high)
                self.touch(group)

        if self.store.warm(group.id, [(low, high)], came):
            group.core.came(low, high)

    def _post(self, group_id: int, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self.post(group_id, message)

    def post(self, group_id: int, message: Message) -> None:
        if message.entries and self.links.pending_bytes(message.to) > self.options.unsent_bytes_max:
            # Its link would be closed, and the same would be sent again.
            group = self.groups.get(group_id)
            if group is not None:
                group.core.unsent(message.to)
            return
        self.links.send(message.to, encode_message(group_id, message, _RAFT))

    def write(self) -> None:
        """Request one commit for all writes of this turn."""
        if self._closed:
            closed, self._closed = self._closed, []
            for group in closed:
                group.machine.closed()
                group.core.close()
        if not self._written:
            return
        written, self._written = self._written, []
        options = self.options
        patience_ms = options.disk_stall_ms + 1000 * self._written_bytes // options.disk_bytes_per_s
        self._writing.append(self.clock.monotonic_ms() + patience_ms)
        self._written_bytes = 0

        def done() -> None:
            self._writing.popleft()
            for each in written:
                group = each.group
                if self.groups.get(group.id) is group:
                    # There may be thousands, and the turn may have no time for all.
                    self._synced.setdefault(group, []).append(each)
                    self.touch(group)

        self.commits.request(done)

    def _after_sync(self, written: Written) -> None:
        """A group's writes are durable."""
        group = written.group
        if written.hard is not None:
            group.core.hard_written(written.hard)
        if written.index:
            group.core.written(written.index, written.term)
        if group.unsynced:
            group.tell_synced()
        self._post(group.id, written.messages)


__all__ = ["CodecError", "Replicas"]
