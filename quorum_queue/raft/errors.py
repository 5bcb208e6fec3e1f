"""Errors of the Raft core, for refused calls and broken data."""


class CodecError(Exception):
    """The bytes are no message or no members of a version known here."""


class NotLeader(Exception):
    """Only the leader takes proposals; `leader` is the known leader, or empty."""

    def __init__(self, leader: str) -> None:
        super().__init__(f"the leader is {leader or 'unknown'}")
        self.leader = leader


class TransferInProgress(NotLeader):
    """The leader is handing over: try again once the next one is known."""


class MembershipRefused(Exception):
    """This change of members is not allowed, or not now."""


class EntryLost(Exception):
    """An entry that should be on this disk is missing or fails its checksum."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} cannot be read")
        self.index = index


class LogDiverged(Exception):
    """A leader contradicts an entry that is committed here. The group must stop."""
