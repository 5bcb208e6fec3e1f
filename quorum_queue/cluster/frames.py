"""Frames between nodes, beside the messages of Raft: one byte of kind, then fixed fields, then bytes.

    RAFT    a message of the Raft core               BATCH    commands for the leader of a group
    STATE   a piece of a snapshot's state             FETCH    ask for entries by index
    ENTRIES entries that were asked for               ABOUT    the sender's name and cluster
    QUEUE   commands for a queue that lives here      EVENTS   their results, and deliveries
    APPLIED how far the sender is in the topology's log
    REPLY   messages for a client of the peer that waits for direct replies
    WRITTEN how many commits the sender's disk has taken
    LEAVING is the sender still a member of a group?  LEFT the receiver is no longer a member of it
    REACH   the nodes that the sender has links with  FURTHER how far another node is in the topology's log
    STOPPED the sender's member of a group has failed: consumers up to this start of the sender are gone
    SEEK    ask for entries that this disk has lost    SOUGHT  such entries, or why there are none
    PASS    an operator gives up the entries that all members of a group have lost
    TIME    the sender's queue time, and its source
    ASK     a question of the sender's management      ANSWER a part of the answer
    QUERY   ask a member of a stream for messages, or for an offset        TOLD    its answer
    CLIENTS how many connections and channels the sender's clients have
    EARLY   a BATCH whose sender wants to know when it is on the leader's disk
    SYNCED  it is
    AWAIT   tell when all members in reach have the log up to some indexes  REACHED how far they have it
    LOOK    how far has the leader committed?          SEEN   the answer
    LEADS   does a voter know of a later term?         STANDS it does not
    ALARM   why the sender blocks its publishers, if it does, and whether its disk takes writes

A node of another version may not know a kind, and then ends the session. So REACH and what follows it go only
to nodes that have announced the feature for it (`REACH_FEATURE` …) in the handshake of the link. QUERY and
TOLD are sent once the version of the topology says that all nodes know them, and so are the four from EARLY
on. The last four go only to nodes that have announced version 7 of queues (`machine/7`).

A link is authenticated, so only a broken node sends broken bytes: `FrameError` ends only its session.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from quorum_queue.clock import KNOWN

RAFT: Final = 1
BATCH: Final = 2
STATE: Final = 3
FETCH: Final = 4
ENTRIES: Final = 5
ABOUT: Final = 6
QUEUE: Final = 7
EVENTS: Final = 8
APPLIED: Final = 9
REPLY: Final = 10
WRITTEN: Final = 11
LEAVING: Final = 12
LEFT: Final = 13
REACH: Final = 14
FURTHER: Final = 15
STOPPED: Final = 16
SEEK: Final = 17
SOUGHT: Final = 18
PASS: Final = 19
TIME: Final = 20
ASK: Final = 21
ANSWER: Final = 22
QUERY: Final = 23
TOLD: Final = 24
CLIENTS: Final = 25
EARLY: Final = 26
SYNCED: Final = 27
AWAIT: Final = 28
REACHED: Final = 29
LOOK: Final = 30
SEEN: Final = 31
LEADS: Final = 32
STANDS: Final = 33
ALARM: Final = 34

#: A node that announces this feature understands REACH and FURTHER.
REACH_FEATURE: Final = "reach"
#: A node that announces this feature understands STOPPED.
STOPPED_FEATURE: Final = "stopped"
#: A node that announces this feature understands SEEK, SOUGHT and PASS.
LOSSES_FEATURE: Final = "losses"
#: A node that announces this feature understands ASK and ANSWER.
MANAGEMENT_FEATURE: Final = "management"
#: A node that announces this feature understands TIME.
TIME_FEATURE: Final = "time"
#: A node that announces this feature understands CLIENTS.
CLIENTS_FEATURE: Final = "clients"
#: A node that announces this feature understands ALARM.
ALARM_FEATURE: Final = "alarm"

_GROUP: Final = struct.Struct(">BQ")
_STOPPED: Final = struct.Struct(">BQQ")
_EARLY: Final = struct.Struct(">BQQQ")
_STATE: Final = struct.Struct(">BQQQQQQH")
_ENTRY: Final = struct.Struct(">QQBI")
_EVENTS: Final = struct.Struct(">BQI")
_REACH: Final = struct.Struct(">BB")
_QUESTION: Final = struct.Struct(">QQQQ")
_SOUGHT: Final = struct.Struct(">BQQ")
_ANSWER: Final = struct.Struct(">QBQQBI")
_TIME: Final = struct.Struct(">BBQ")
_PART: Final = struct.Struct(">BQB")
_QUERY: Final = struct.Struct(">BQQBQ")
_TOLD: Final = struct.Struct(">BQQBQQQQ")
#: Flag of a REACH: the sender accepts leadership.
_LEADS: Final = 1
#: Kind of an entry that the asked node does not hold; its data is this one byte.
GONE: Final = 255
LOST: Final = b"\x00"
#: The asked node has just started, and does not know whether the entry is lost, or was settled and deleted.
PERHAPS_SETTLED: Final = b"\x01"


# Answers of a SOUGHT about an entry.
#: Answer with the entry.
FOUND: Final = 0
#: Answer: the entry should be on this disk as well, but cannot be read here either.
LOST_HERE: Final = 1
#: Answer: this node's log has another entry there, or none.
NOT_HERE: Final = 2
#: Answer: this node has applied the entry and no longer keeps it, or cannot tell whether it is the same.
APPLIED_HERE: Final = 3
#: Answer with the leader's entry at this index (the sender leads); the asker's next readable entry is not in
#: its log.
LEADERS: Final = 4


#: Instead of the anchor's term: the asker knows that the entry is committed.
COMMITTED: Final = (1 << 64) - 1


class FrameError(Exception):
    """A peer sent bytes that are no frame of this version."""


class StatePiece(NamedTuple):
    """A piece of the state at `index`, `total` bytes altogether, beginning at `offset`."""

    group: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    log_term: int
    total: int
    offset: int
    members: bytes
    data: bytes


class ReachWord(NamedTuple):
    """A node's report about its links."""

    #: True if groups may be handed over to it. False while it stops, or its disk accepts no writes.
    leads: bool
    linked: tuple[str, ...]


class StoredEntry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    term: int
    kind: int
    data: bytes


class Question(NamedTuple):
    """A requested entry: the one of this term, or the one before the entry `anchor` of `anchor_term`.

    With neither, it is an entry that the asker has applied: all members have the same.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    term: int
    anchor: int
    anchor_term: int


# Questions to a member of a stream. Their number is an offset, or a time.
#: Asks for messages from an offset on; the same, answered when there are any; for the range of offsets.
ASK_READ, ASK_FOLLOW, ASK_OFFSETS = 0, 1, 2
#: The number of a question for the range of offsets that must have everything that was confirmed before. To 0
#: a member without a majority answers what it knows; members of a version before 7 do so in both cases.
STRICTLY = 1
#: Asks for the offset at which a consumer begins: of the last batch, or of the first one from a time on.
ASK_LAST, ASK_FIND = 3, 4
#: Asks to write something about names to the log, and then for information about names; data has both.
ASK_NAMES = 5
#: Asks for the offset before which the member's compaction has left no replaced message; members of a version
#: before 7 answer 0.
ASK_SOUND = 6
# Answers. Only the first one brings something.
#: Answer with the messages; empty if the offset is that of the next message.
TOLD_FOUND = 0
#: Answer: the asked node is no member, or does not know yet.
TOLD_ABSENT = 1
#: Answer: the messages at this offset are gone; the first existing one has the offset `value`.
TOLD_GONE = 2
#: Answer: the messages are damaged here, up to the offset `value`.
TOLD_DAMAGED = 3
#: No answer came, because the link broke. Never in a frame.
TOLD_NOTHING = 4
#: Answer: no member can read the messages, up to the offset `value`.
TOLD_LOST = 5


class StreamWord(NamedTuple):
    """The answer of a member of a stream."""

    what: int
    #: The requested offset.
    value: int = 0
    #: The first offset, the one after the last committed message, and the time of the oldest message, 0 for
    #: none.
    first: int = 0
    stop: int = 0
    first_ms: int = 0
    #: Whole batches.
    data: bytes = b""


class SoughtEntry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    what: int
    #: Index of the question.
    anchor: int
    term: int
    kind: int
    data: bytes


def batch(group: int, payload: bytes) -> list[bytes]:
    return [_GROUP.pack(BATCH, group), payload]


def parse_batch(frame: memoryview) -> tuple[int, bytes]:
    return _group(frame), bytes(frame[_GROUP.size :])


def early(group: int, term: int, ticket: int, payload: bytes) -> list[bytes]:
    """`term` is the leader's, as the sender knows it; `ticket` comes back with `synced`."""
    return [_EARLY.pack(EARLY, group, term, ticket), payload]


def synced(group: int, term: int, ticket: int) -> list[bytes]:
    return [_EARLY.pack(SYNCED, group, term, ticket)]


def parse_early(frame: memoryview) -> tuple[int, int, int, bytes]:
    """Return group, term, ticket and batch of `early`; the three numbers of the others of this form, and
    nothing.
    """
    if len(frame) < _EARLY.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, group, term, ticket = _EARLY.unpack_from(frame)
    return group, term, ticket, bytes(frame[_EARLY.size :])


def await_all(group: int, low: int, high: int) -> list[bytes]:
    return [_EARLY.pack(AWAIT, group, low, high)]


def look(group: int, term: int, ticket: int) -> list[bytes]:
    """`term` is the leader's, as the sender knows it; `ticket` comes back with `seen`."""
    return [_EARLY.pack(LOOK, group, term, ticket)]


def seen(group: int, ticket: int, index: int) -> list[bytes]:
    return [_EARLY.pack(SEEN, group, ticket, index)]


def leads(group: int, term: int, number: int) -> list[bytes]:
    """The sender leads in this term; both numbers come back with `stands`."""
    return [_EARLY.pack(LEADS, group, term, number)]


def stands(group: int, term: int, number: int) -> list[bytes]:
    return [_EARLY.pack(STANDS, group, term, number)]


def reached(group: int, index: int) -> list[bytes]:
    return [_STOPPED.pack(REACHED, group, index)]


def state(piece: StatePiece) -> list[bytes]:
    head = _STATE.pack(STATE, *piece[:6], len(piece.members))
    return [head, piece.members, piece.data]


def parse_state(frame: memoryview) -> StatePiece:
    try:
        _, group, term, index, log_term, total, offset, size = _STATE.unpack_from(frame)
    except struct.error as error:
        raise FrameError(str(error)) from None
    at = _STATE.size
    members = bytes(frame[at : at + size])
    data = bytes(frame[at + size :])
    if offset + len(data) > total:
        raise FrameError(f"a piece of a snapshot ends at {offset + len(data)} of {total} bytes")
    return StatePiece(group, term, index, log_term, total, offset, members, data)


def fetch(group: int, indexes: Sequence[int]) -> list[bytes]:
    return [_GROUP.pack(FETCH, group), struct.pack(f">{len(indexes)}Q", *indexes)]


def parse_fetch(frame: memoryview) -> tuple[int, list[int]]:
    group = _group(frame)
    count, rest = divmod(len(frame) - _GROUP.size, 8)
    if rest:
        raise FrameError(f"a list of entries of {len(frame)} bytes")
    return group, list(struct.unpack_from(f">{count}Q", frame, _GROUP.size))


def entries(group: int, found: Sequence[StoredEntry]) -> list[bytes]:
    parts = [_GROUP.pack(ENTRIES, group)]
    for index, term, kind, data in found:
        parts.append(_ENTRY.pack(index, term, kind, len(data)))
        parts.append(data)
    return parts


def parse_entries(frame: memoryview) -> tuple[int, list[StoredEntry]]:
    group = _group(frame)
    found: list[StoredEntry] = []
    at = _GROUP.size
    while at < len(frame):
        if at + _ENTRY.size > len(frame):
            raise FrameError("entries end inside a head")
        index, term, kind, size = _ENTRY.unpack_from(frame, at)
        at += _ENTRY.size
        if at + size > len(frame):
            raise FrameError("entries end inside an entry")
        found.append(StoredEntry(index, term, kind, bytes(frame[at : at + size])))
        at += size
    return group, found


def queue(queue_id: int, batch: list[bytes]) -> list[bytes]:
    return [_GROUP.pack(QUEUE, queue_id), *batch]


def parse_queue(frame: memoryview) -> tuple[int, bytes]:
    return _group(frame), bytes(frame[_GROUP.size :])


def events(queue_id: int, head: bytes, bodies: Sequence[bytes]) -> list[bytes]:
    return [_EVENTS.pack(EVENTS, queue_id, len(head)), head, *bodies]


def parse_events(frame: memoryview) -> tuple[int, memoryview, memoryview]:
    """Return the queue, the encoded events, and the bodies."""
    if len(frame) < _EVENTS.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, queue_id, size = _EVENTS.unpack_from(frame)
    return queue_id, frame[_EVENTS.size : _EVENTS.size + size], frame[_EVENTS.size + size :]


def applied(index: int) -> list[bytes]:
    return [_GROUP.pack(APPLIED, index)]


def parse_applied(frame: memoryview) -> int:
    return _group(frame)


def written(commits: int) -> list[bytes]:
    return [_GROUP.pack(WRITTEN, commits)]


def parse_written(frame: memoryview) -> int:
    return _group(frame)


def alarm(reason: str, *, stalled: bool) -> list[bytes]:
    return [bytes((ALARM, stalled)), reason.encode()]


def parse_alarm(frame: memoryview) -> tuple[str, bool]:
    """Return the reason, and whether the sender's disk takes no writes."""
    try:
        return str(frame[2:], "utf-8"), bool(frame[1])
    except (IndexError, UnicodeDecodeError) as error:
        raise FrameError(f"an alarm: {error!r}") from None


def leaving(group: int) -> list[bytes]:
    return [_GROUP.pack(LEAVING, group)]


def left(group: int) -> list[bytes]:
    return [_GROUP.pack(LEFT, group)]


def stopped(group: int, incarnation: int) -> list[bytes]:
    return [_STOPPED.pack(STOPPED, group, incarnation)]


def parse_stopped(frame: memoryview) -> tuple[int, int]:
    """Return the group, and the start of the sender; the same of `reached`,
    whose other number is an index.
    """
    if len(frame) != _STOPPED.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, group, incarnation = _STOPPED.unpack(frame)
    return group, incarnation


def seek(group: int, questions: Sequence[Question]) -> list[bytes]:
    return [_GROUP.pack(SEEK, group), *[_QUESTION.pack(*question) for question in questions]]


def parse_seek(frame: memoryview) -> tuple[int, list[Question]]:
    group = _group(frame)
    if (len(frame) - _GROUP.size) % _QUESTION.size:
        raise FrameError(f"a list of lost entries of {len(frame)} bytes")
    return group, [Question._make(fields) for fields in _QUESTION.iter_unpack(frame[_GROUP.size :])]


def sought(group: int, leader_term: int, found: Sequence[SoughtEntry]) -> list[bytes]:
    """`leader_term` is the term in which the sender leads, 0 if it does not lead."""
    parts = [_SOUGHT.pack(SOUGHT, group, leader_term)]
    for index, what, anchor, term, kind, data in found:
        parts += (_ANSWER.pack(index, what, anchor, term, kind, len(data)), data)
    return parts


def parse_sought(frame: memoryview) -> tuple[int, int, list[SoughtEntry]]:
    if len(frame) < _SOUGHT.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, group, leader_term = _SOUGHT.unpack_from(frame)
    found: list[SoughtEntry] = []
    at = _SOUGHT.size
    while at < len(frame):
        if at + _ANSWER.size > len(frame):
            raise FrameError("lost entries end inside a head")
        index, what, anchor, term, kind, size = _ANSWER.unpack_from(frame, at)
        at += _ANSWER.size
        if at + size > len(frame) or what > LEADERS:
            raise FrameError("lost entries end inside an entry, or say what nobody knows")
        found.append(SoughtEntry(index, what, anchor, term, kind, bytes(frame[at : at + size])))
        at += size
    return group, leader_term, found


def pass_over(group: int) -> list[bytes]:
    return [_GROUP.pack(PASS, group)]


def parse_group(frame: memoryview) -> int:
    """Return the group of `leaving`, `left` or `pass_over`."""
    return _group(frame)


def reach(word: ReachWord) -> list[bytes]:
    parts = [_REACH.pack(REACH, _LEADS if word.leads else 0)]
    for name in word.linked:
        encoded = name.encode()
        parts += (bytes((len(encoded),)), encoded)
    return parts


def parse_reach(frame: memoryview) -> ReachWord:
    if len(frame) < _REACH.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, flags = _REACH.unpack_from(frame)
    names: list[str] = []
    at = _REACH.size
    while at < len(frame):
        start, at = at + 1, at + 1 + frame[at]
        if at > len(frame) or at == start:
            raise FrameError("a list of nodes ends inside a name, or has an empty one")
        names.append(_name(frame[start:at]))
    return ReachWord(bool(flags & _LEADS), tuple(names))


def time(trust: int, queue_ms: int) -> list[bytes]:
    return [_TIME.pack(TIME, trust, queue_ms)]


def parse_time(frame: memoryview) -> tuple[int, int]:
    """Return the source of the sender's queue time, and that time."""
    if len(frame) != _TIME.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, trust, queue_ms = _TIME.unpack(frame)
    if trust > KNOWN:
        raise FrameError(f"a queue time that rests on {trust}")
    return trust, queue_ms


def ask(number: int, question: bytes) -> list[bytes]:
    return [_GROUP.pack(ASK, number), question]


def parse_ask(frame: memoryview) -> tuple[int, bytes]:
    """Return the number of the question, and the question."""
    return _group(frame), bytes(frame[_GROUP.size :])


def answer(number: int, part: bytes, *, last_part: bool) -> list[bytes]:
    return [_PART.pack(ANSWER, number, last_part), part]


def parse_answer(frame: memoryview) -> tuple[int, bool, bytes]:
    """Return the number of the question, whether this is the last part of its answer, and the part."""
    if len(frame) < _PART.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, number, last = _PART.unpack_from(frame)
    return number, bool(last), bytes(frame[_PART.size :])


def query(queue_id: int, number: int, what: int, value: int, data: bytes = b"") -> list[bytes]:
    """`number` comes back with the answer."""
    return [_QUERY.pack(QUERY, queue_id, number, what, value), data]


def parse_query(frame: memoryview) -> tuple[int, int, int, int, bytes]:
    try:
        _, queue_id, number, what, value = _QUERY.unpack_from(frame)
    except struct.error as error:
        raise FrameError(str(error)) from None
    return queue_id, number, what, value, bytes(frame[_QUERY.size :])


def told(queue_id: int, number: int, word: StreamWord) -> list[bytes]:
    return [_TOLD.pack(TOLD, queue_id, number, *word[:5]), word.data]


def parse_told(frame: memoryview) -> tuple[int, int, StreamWord]:
    if len(frame) < _TOLD.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    _, queue_id, number, what, value, first, stop, first_ms = _TOLD.unpack_from(frame)
    return queue_id, number, StreamWord(what, value, first, stop, first_ms, bytes(frame[_TOLD.size :]))


def further(node: str, index: int) -> list[bytes]:
    return [_GROUP.pack(FURTHER, index), node.encode()]


def parse_further(frame: memoryview) -> tuple[str, int]:
    """Return the name of another node, and how far it has applied the topology's log."""
    index = _group(frame)
    return _name(frame[_GROUP.size :]), index


def reply(token: str, batch: list[bytes]) -> list[bytes]:
    name = token.encode()
    return [_GROUP.pack(REPLY, len(name)), name, *batch]


def parse_reply(frame: memoryview) -> tuple[str, bytes]:
    """Return the token of the client, and the batch."""
    size = _group(frame)
    name = bytes(frame[_GROUP.size : _GROUP.size + size])
    try:
        return name.decode(), bytes(frame[_GROUP.size + size :])
    except UnicodeDecodeError as error:
        raise FrameError(f"a token of a client: {error}") from None


def _name(data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise FrameError(f"the name of a node: {error}") from None


def _group(frame: memoryview) -> int:
    if len(frame) < _GROUP.size:
        raise FrameError(f"a frame of {len(frame)} bytes")
    group: int = _GROUP.unpack_from(frame)[1]
    return group
