"""Messages that wait before they are delivered first: their headers say how long, or until when.

The queue must be declared with x-delayed, or the message be published to an exchange of type
x-delayed-message; elsewhere these headers mean nothing. A message may be held back before it is handed to its
queue, by an alarm or a transaction, and the queue be declared meanwhile. So the headers are read when the
message comes, and its queue decides when it gets the message.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from amqp_server.broker.declared.argument_checks import TIME_MS_MAX
from amqp_server.errors import PreconditionFailed
from amqp_server.wire.delay_fields import DELAY, DELIVER_AT, BothGiven, delay_of
from amqp_server.wire.intake import WRONG
from quorum_queue.machine import versions

if TYPE_CHECKING:
    from amqp_server.channel.connection import Connection
    from amqp_server.wire.intake import Segment

#: What the header x-delay is.
WAIT = "the number of milliseconds to wait"


def read_waits(connection: Connection, segment: Segment) -> None:
    """Read until when the messages wait that were not looked at yet."""
    contents, first = segment.contents, segment.waits_read
    count = len(contents)
    if first == count:
        return
    wall_ms, now_ms = connection.broker.clock.wall_ms(), connection.broker.services.queue_time.now_ms()
    waits = segment.waits
    for index in range(first, count):
        try:
            wait = _wait_ms(contents[index], wall_ms)
        except PreconditionFailed:
            wait = WRONG
        if wait:
            if waits is None:
                waits = segment.waits = []
            # Most messages of a queue that lets messages wait do wait.
            waits += [0] * (index - len(waits))
            waits.append(now_ms + wait if wait > 0 else wait)
    if waits is not None:
        waits += [0] * (count - len(waits))
    segment.waits_read = count


def check_waits(connection: Connection, segment: Segment) -> tuple[int, PreconditionFailed] | None:
    """Return the number of the first message whose wait is refused, and why; None if none is."""
    waits = segment.waits
    if waits is None:
        return None
    if connection.broker.replication.version < versions.DELAYS:
        for index, wait in enumerate(waits):
            if wait:
                return index, PreconditionFailed(
                    f"headers {DELAY} and {DELIVER_AT} need a cluster whose nodes all run a version of mqd that "
                    "knows them"
                )
    if WRONG not in waits:
        return None
    index = waits.index(WRONG)
    try:
        wait = _wait_ms(segment.contents[index], connection.broker.clock.wall_ms())
    except PreconditionFailed as error:
        return index, error
    # By the time of this node its time is no longer too far away.
    waits[index] = connection.broker.services.queue_time.now_ms() + wait if wait else 0
    return check_waits(connection, segment)


def _wait_ms(item: bytes, wall_ms: int) -> int:
    """Return how long a message is to wait, in ms; 0 for not at all. Raises PreconditionFailed."""
    try:
        found = delay_of(item)
    except BothGiven:
        raise PreconditionFailed(f"a message has {DELAY} or {DELIVER_AT}, not both") from None
    if found is None:
        return 0
    name, value = found
    return delay_ms(value) if name == DELAY else max(0, _left_ms(value, wall_ms))


def delay_ms(value: object) -> int:
    """Return what the header x-delay says, ms. Raises PreconditionFailed."""
    wait = whole_number(DELAY, value, WAIT)
    if wait < 0:
        raise refused(DELAY, value, "it must not be negative")
    return _bounded(DELAY, value, wait)


def _left_ms(value: object, wall_ms: int) -> int:
    if isinstance(value, datetime.datetime):
        at_ms = round(value.timestamp() * 1000)
    else:
        at_ms = whole_number(DELIVER_AT, value, "a timestamp, or milliseconds since 1970")
    return _bounded(DELIVER_AT, value, at_ms - wall_ms)


def _bounded(name: str, value: object, wait: int) -> int:
    if wait > TIME_MS_MAX:
        raise refused(name, value, "no message waits longer than ten years")
    return wait


def whole_number(name: str, value: object, what: str) -> int:
    """Return the value of a header that has to be an integer. Raises PreconditionFailed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise refused(name, value, f"it must be {what}")


def refused(name: str, value: object, why: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid header {name} {str(value)[:40]!r}: {why}")
