"""The members of a group, and the state that a member must never forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from quorum_queue.raft.errors import CodecError

_VERSION: Final = 1
_COUNT_MAX: Final = 255
_NAME_BYTES_MAX: Final = 255


class HardState(NamedTuple):
    """Durable before any message leaves that depends on it.

    `vote` is empty if this member has not voted in this term.
    """

    term: int = 0
    vote: str = ""


@dataclass(frozen=True, slots=True)
class Members:
    """Voters elect and count; learners receive the log only."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    def everyone(self) -> tuple[str, ...]:
        return self.voters + self.learners

    def demoted(self, node: str) -> Members:
        """Return the members with this voter as a learner."""
        return Members(tuple(name for name in self.voters if name != node), (*self.learners, node))

    def voters_changed(self, other: Members) -> int:
        """Return how many voters are in only one of the two."""
        return sum(name not in other.voters for name in self.voters) + sum(
            name not in self.voters for name in other.voters
        )

    def encode(self) -> bytes:
        parts = [bytes((_VERSION, len(self.voters), len(self.learners)))]
        for name in self.everyone():
            encoded = name.encode()
            parts += (bytes((len(encoded),)), encoded)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Members:
        """Raises CodecError."""
        if len(data) < 3 or data[0] != _VERSION:
            raise CodecError("members have an unknown version")
        voters, total = data[1], data[1] + data[2]
        names: list[str] = []
        offset = 3
        for _ in range(total):
            if offset >= len(data):
                raise CodecError("members end inside a name")
            start, offset = offset + 1, offset + 1 + data[offset]
            if offset > len(data) or start == offset:
                raise CodecError("members have an empty or incomplete name")
            try:
                names.append(data[start:offset].decode())
            except UnicodeDecodeError as error:
                raise CodecError("a member's name is not UTF-8") from error
        if offset != len(data) or not voters:
            raise CodecError("members have bytes after their end, or no voter")
        members = cls(tuple(names[:voters]), tuple(names[voters:]))
        if members.problem():
            raise CodecError(members.problem())
        return members

    def problem(self) -> str:
        """Return the reason why these members are invalid, or an empty string."""
        everyone = self.everyone()
        if not self.voters:
            return "a group needs a voter"
        if len(self.voters) > _COUNT_MAX or len(self.learners) > _COUNT_MAX:
            return f"a group has at most {_COUNT_MAX} voters and as many learners"
        if any(not 0 < len(name.encode()) <= _NAME_BYTES_MAX for name in everyone):
            return f"a member's name has 1 to {_NAME_BYTES_MAX} bytes"
        if any(everyone.count(name) > 1 for name in everyone):
            return "a member is named twice"
        return ""
