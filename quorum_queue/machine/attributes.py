"""Attributes of messages. Not compiled, because msgspec decodes them; see docs/compiled.md."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Levels of confirmation that a publisher may choose (`x-confirm`): a majority of the members has the
#: message; the leader has it on disk; all members in reach have it, and a majority of all.
MAJORITY: Final = 0
LEADER: Final = 1
ALL: Final = 2
#: Only in a log: the leader may have confirmed the messages before the log decides about them.
PROMISED: Final = 3


#: The `priority` of attributes for a message whose property `priority` is 0; it is 0 without the property.
PRIORITY_ZERO: Final = -1
#: Ranks in a queue with strict priorities, 0 to RANK_MAX: that of messages without the property, and one
#: above all others, for messages that came back.
RANK_PLAIN: Final = 4
RANK_MAX: Final = 31
RANK_RETURNED: Final = RANK_MAX + 1


def priority_of(octet: int | None) -> int:
    """Return a message's priority from its property."""
    return 0 if octet is None else octet or PRIORITY_ZERO


def rank_of(priority: int) -> int:
    """Return the rank of a message with this priority in a queue with strict priorities."""
    return RANK_PLAIN if priority == 0 else 0 if priority < 0 else min(priority, RANK_MAX)


class Attributes(NamedTuple):
    """Properties of a message that the machine and the edge need without
    decoding it. Whole runs share them.
    """

    persistent: bool = False
    #: See `priority_of`.
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
        """Not a field: messages on disk, and messages to consumers of other nodes, lack it."""
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


class PromisedAttributes(Attributes):
    """Attributes of messages that a queue takes even if it has been paused meanwhile."""

    __slots__ = ()

    @property
    def confirm_level(self) -> int:
        return PROMISED


#: Classes by level.
ATTRIBUTES: Final = (Attributes, LeaderAttributes, AllAttributes, PromisedAttributes)
