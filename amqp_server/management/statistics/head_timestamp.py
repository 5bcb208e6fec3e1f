"""The timestamp of the message that a queue delivers next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.wire import content
from quorum_queue.local_host import LocalHost

if TYPE_CHECKING:
    from quorum_queue.ports import Host

#: Where a content's frame has the flag of the property timestamp, and the flag.
TIMESTAMP_AT, TIMESTAMP = 20, 0x40


def head_timestamp(host: Host) -> int | None:
    """Return it in s since 1970; None if there is none, or if its message is not in memory."""
    head = host.machine.ready.head() if isinstance(host, LocalHost) and host.machine.ready.count else None
    if head is None or head.contents is None or not head.contents[0][TIMESTAMP_AT] & TIMESTAMP:
        return None
    return content.Properties.parse(content.header_of(head.contents[0]), checked=True).timestamp
