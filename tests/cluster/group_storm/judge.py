"""The record of all members of a group, line by line in the order of events, and the rules that it must
follow.

All members write to one file, each line at once and before the act that it reports. So if a member gets a
message that another one let go of, its line comes behind the other's. A line begins with a session, which is
one channel of one member:

    SESSION join NODE              the channel is about to consume, or to get messages one by one
    SESSION d PARTITION OFFSET new|again COUNT    a delivery, with its flag and x-delivery-count, 0 without
                                                  one
    SESSION a|r|x PARTITION OFFSET  it acks, gives back, or refuses for good
    SESSION q, SESSION c           it asks for an answer that comes when all before it is on the disks; it has
                                   come
    SESSION slow                   it holds a message for longer than it may
    SESSION closing, SESSION leave  it is about to be closed in order; it was
    SESSION gone                   it has lost its connection or its place, or gives them up
    * kill MEMBER                  a process is killed
    * doom MEMBER, * lose MEMBER   it is frozen; for so long that it has lost its place, and what it tells is
                                   out of date
    * down NODE                    a node is about to be killed; what its clients have not heard may be
                                   otherwise
    * move first|end               the group is about to be reset to the first message, or to be purged
    * moved first PARTITION...     these were reset; what sessions tell that were there before may be from
                                   before that
    * moved end                    it was purged
    * moved perhaps                it was to be reset, and nobody knows whether it was
    * anew EPOCH                   the stream was deleted, and comes again

A PARTITION is the name of a stream, @, and the epoch of its messages, which their publisher has put into
them: how often the stream had been declared anew. A member may ask to consume before the stream is deleted,
and be heard after the stream is there again. So nobody has to know when it has joined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import Enum
from typing import Final

Message = tuple[str, int]
ERRORS_MAX: Final = 40


class State(Enum):
    HELD = "held"
    ACKED = "acked"
    RETURNED = "returned"
    REFUSED = "refused"
    #: From outside, nobody can know what became of the message.
    UNKNOWN = "unknown"


class Session:
    def __init__(self, name: str, node: str) -> None:
        self.name = name
        self.node = node
        #: The session's node goes down, or it holds a message for too long: it may have lost its place
        #: without knowing.
        self.doomed = False
        self.closing = self.ended = False
        #: Its lines are out of date from now on.
        self.void = False
        #: The session was there when the group was reset: messages of this epoch may have been sent to it
        #: before that.
        self.stale = False
        #: The messages that it has acked and refused before its request, without an answer yet.
        self.fresh: list[Message] = []
        self.asked: list[Message] = []

    @property
    def sound(self) -> bool:
        """Return whether no other session can have its messages."""
        return not (self.doomed or self.closing or self.ended)


class Judge:
    """Feed it lines; `errors` lists the broken rules."""

    def __init__(self, *, gaps: bool = False) -> None:
        """`gaps`: messages may be missing between others, because of retention, compaction, or members
        without acks.
        """
        self.gaps = gaps
        self.errors: list[str] = []
        self.sessions: dict[str, Session] = {}
        #: By partitions: the offset that is due next, and the messages that were seen and are not done.
        self.next: defaultdict[str, int] = defaultdict(int)
        self.open: defaultdict[str, dict[int, tuple[State, Session]]] = defaultdict(dict)
        self.done: set[Message] = set()
        #: How often the stream was declared anew.
        self.epoch = 0
        #: Messages that a member refused and had an answer for; and by partition, how many may have been
        #: refused in all.
        self.refused: set[Message] = set()
        self.perhaps_refused: Counter[str] = Counter()
        self.seen = self.again = 0
        #: The group is being reset: nobody can tell whether a message is from before or from after.
        self.moving = False
        #: The group was reset: messages that come again since then are no error. And the messages that have
        #: come since it was reset to the first one.
        self.moved = False
        self.since: defaultdict[str, set[int]] | None = None

    def line(self, text: str) -> None:
        who, verb, *rest = text.split()
        if who == "*":
            self._act(verb, *rest)
            return
        if verb == "join":
            self.sessions[who] = Session(who, rest[0])
            return
        session = self.sessions[who]
        if verb == "x":
            # In any case, a dead letter of this message is no error.
            self.perhaps_refused[rest[0]] += 1
        if session.void:
            return
        if verb in ("d", "a", "r", "x") and int(rest[0].rpartition("@")[2]) != self.epoch:
            # The line is about a stream that was deleted.
            return
        if verb == "d":
            self._delivered(session, rest[0], int(rest[1]), again=rest[2] == "again", count=int(rest[3]))
        elif verb in ("a", "r", "x"):
            self._settles(session, rest[0], int(rest[1]), verb)
        elif verb == "q":
            session.asked, session.fresh = [*session.asked, *session.fresh], []
        elif verb == "c":
            self._heard(session)
        elif verb == "slow":
            session.doomed = True
        elif verb == "closing":
            session.closing = True
        elif verb == "leave":
            session.asked += session.fresh
            session.fresh = []
            if not session.doomed:
                self._heard(session)
            self._end(session)
        elif verb == "gone":
            self._end(session)
        else:
            raise ValueError(f"no line begins like this: {text!r}")

    # -- what is done to them --------------------------------------------------------------------------------

    def _act(self, verb: str, *rest: str) -> None:
        if verb == "kill":
            for session in self._of(rest[0]):
                self._end(session)
        elif verb == "lose":
            for session in self._of(rest[0]):
                self._end(session)
                session.void = True
        elif verb == "doom":
            for session in self._of(rest[0]):
                session.doomed = True
        elif verb == "down":
            for session in self.sessions.values():
                if session.node == rest[0] and not session.ended:
                    session.doomed = True
        elif verb == "anew":
            self.epoch = int(rest[0])
            self._forget()
            self.next.clear()
            # All of these messages are known from the first one on.
            self.moving = self.moved = False
            self.since = None
            for session in self.sessions.values():
                session.stale = False
        elif verb == "move":
            self.moved = True
            # Members keep their unacked messages when a group is purged.
            self.moving = rest[0] == "first"
            self.since = defaultdict(set) if self.moving else None
        elif verb == "moved":
            if self.moving:
                self.moving = False
                self._forget()
                for session in self.sessions.values():
                    session.stale = True
                reset = rest[1:] if rest[0] == "first" else ()
                came = self.since if self.since is not None else defaultdict[str, set[int]](set)
                self.since = defaultdict(set, {name: came[name] for name in reset}) or None
        else:
            raise ValueError(f"nothing is called {verb!r}")

    def _forget(self) -> None:
        """The state of the messages so far, and of their dead letters, does not matter any more."""
        self.done.clear()
        self.open.clear()
        self.refused.clear()
        for session in self.sessions.values():
            session.fresh, session.asked = [], []

    def _of(self, member: str) -> list[Session]:
        return [
            each for each in self.sessions.values() if each.name.split(".")[0] == member and not each.ended
        ]

    def _end(self, session: Session) -> None:
        """The session ends: its messages come back, and its acks may have arrived or not."""
        session.ended = True
        for opened in self.open.values():
            for offset, (state, holder) in opened.items():
                if holder is session and state in (State.ACKED, State.REFUSED):
                    opened[offset] = State.UNKNOWN, session
        session.fresh, session.asked = [], []

    # -- what they tell --------------------------------------------------------------------------------------

    def _delivered(self, session: Session, partition: str, offset: int, *, again: bool, count: int) -> None:
        self.seen += 1
        self.again += again
        place, opened = f"{session.name} gets {partition} {offset}", self.open[partition]
        if again != (count > 0):
            self._fail(f"{place} with the flag {again} and the count {count}")
        if self.since is not None:
            self.since[partition].add(offset)
        due = self.next[partition]
        self.next[partition] = max(due, offset + 1)
        if self.moving or session.stale:
            return
        if (partition, offset) in self.done:
            self._fail(f"{place}, which was acked")
        found = opened.get(offset)
        if found is not None:
            state, holder = found
            if state is not State.RETURNED and state is not State.UNKNOWN and holder.sound:
                self._fail(f"{place}, which {holder.name} has {state.value}")
        if offset < due and not again and not self.moved:
            self._fail(f"{place} again without the flag")
        if offset > due and not (self.gaps or self.moved):
            self._fail(f"{place} before {due}")
        for before, (state, holder) in opened.items():
            if before < offset and holder is not session:
                if state is State.HELD and holder.sound:
                    self._fail(f"{place} while {holder.name} holds {before}")
                elif state in (State.HELD, State.RETURNED) and not self.moved:
                    self._fail(f"{place} before {before}, which {holder.name} had ({state.value})")
        opened[offset] = State.HELD, session

    def _settles(self, session: Session, partition: str, offset: int, verb: str) -> None:
        opened = self.open[partition]
        if opened.get(offset) != (State.HELD, session):
            # The message was taken from the session, and the group ignores its answer.
            return
        if verb == "r":
            opened[offset] = State.RETURNED, session
            return
        opened[offset] = State.ACKED if verb == "a" else State.REFUSED, session
        session.fresh.append((partition, offset))

    def _heard(self, session: Session) -> None:
        """All acts of the session before its request are on the disks."""
        asked, session.asked = session.asked, []
        for partition, offset in asked:
            found = self.open[partition].get(offset)
            if found is not None and found[1] is session and found[0] in (State.ACKED, State.REFUSED):
                del self.open[partition][offset]
                self.done.add((partition, offset))
                if found[0] is State.REFUSED:
                    self.refused.add((partition, offset))

    def _fail(self, text: str) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(text)

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self, ends: dict[str, int]) -> None:
        """Check that no message is left in the group, whose partitions end there."""
        for partition, stop in ends.items():
            came = None if self.since is None else self.since.get(partition)
            if came is not None and len(came) != stop:
                self._fail(f"of {stop} messages of {partition} {len(came)} came after the reset")
            if self.next[partition] != stop and not self.moved:
                self._fail(f"{partition} has {stop} messages, and {self.next[partition]} were seen")
        for partition, opened in self.open.items():
            for offset, (state, holder) in opened.items():
                if state in (State.HELD, State.RETURNED) and not self.moved:
                    self._fail(
                        f"{partition} {offset}, which {holder.name} had ({state.value}), never came back"
                    )

    def finish_letters(self, letters: Mapping[str, int]) -> None:
        """Check the dead letters, given their number for each partition."""
        refused = Counter(partition for partition, _ in self.refused)
        for partition in {**letters, **refused}:
            count, least, most = (
                letters.get(partition, 0),
                refused[partition],
                self.perhaps_refused[partition],
            )
            if not least <= count <= most:
                self._fail(
                    f"of {partition} {least} were refused, at most {most}, and {count} dead letters came"
                )

    def __str__(self) -> str:
        opened = {name: len(found) for name, found in self.open.items() if found}
        return (
            f"{self.seen} deliveries, {self.again} of them again, in {len(self.sessions)} sessions; {len(self.done)} acked for"
            f" certain, {len(self.refused)} refused; next {dict(self.next)}; open {opened}; errors {self.errors}"
        )
