"""The stored form of a snapshot: the members of the group, then the machine's state."""

from __future__ import annotations

from quorum_queue.raft.members import Members


def pack_state(members: Members, state: bytes) -> bytes:
    encoded = members.encode()
    return len(encoded).to_bytes(2, "big") + encoded + state


def unpack_state(data: bytes) -> tuple[Members, bytes]:
    """Raises CodecError."""
    end = 2 + int.from_bytes(data[:2], "big")
    return Members.decode(data[2:end]), data[end:]
