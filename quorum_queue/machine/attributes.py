"""Attributes of messages. Not compiled, because msgspec decodes them; see docs/compiled.md."""

from __future__ import annotations

from typing import Final, NamedTuple

#: When a publish is confirmed, as its publisher has chosen (`x-confirm`): once a majority of the members has it, once the
#: leader has it on its disk, or once all members in reach have it, and a majority of all.
MAJORITY: Final = 0
LEADER: Final = 1
ALL: Final = 2


class Attributes(NamedTuple):
    """What the machine and the edge must know about a message without decoding it. Shared by whole runs."""

    persistent: bool = False
    priority: int = 0
    #: Per-message time to live in ms, from the expiration property.
    ttl_ms: int | None = None
    #: Channel number that the content frames carry.
    channel: int = 1
    #: Largest frame among the content frames, in bytes.
    frame_bytes: int = 4096
    #: Bytes of each content that a limit in bytes does not count (set only for queues with such a limit).
    overhead: int = 0

    @property
    def confirm_level(self) -> int:
        """No field: what is on a disk, and what goes to consumers of other nodes, lacks it."""
        return MAJORITY


class LeaderAttributes(Attributes):
    """Attributes of messages that are confirmed once the leader has them."""

    __slots__ = ()

    @property
    def confirm_level(self) -> int:
        return LEADER


class AllAttributes(Attributes):
    """Attributes of messages that are confirmed once all members in reach have them."""

    __slots__ = ()

    @property
    def confirm_level(self) -> int:
        return ALL


#: By level.
ATTRIBUTES: Final = (Attributes, LeaderAttributes, AllAttributes)
