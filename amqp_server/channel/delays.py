"""Messages that wait before they are delivered first: their headers say how long, or until when.

The queue must be declared with x-delayed, or the message be published to an exchange of type
x-delayed-message; elsewhere these headers mean nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from amqp_server.broker.declared.argument_checks import TIME_MS_MAX
from amqp_server.errors import PreconditionFailed
from amqp_server.wire.delay_fields import DELAY, DELIVER_AT
from exchanges.delayed import DELAYED
from quorum_queue.machine import versions

if TYPE_CHECKING:
    from amqp_server.wire.intake import PublishRoute

#: What the header x-delay is.
WAIT = "the number of milliseconds to wait"


def always_waits(route: PublishRoute) -> bool:
    """Return whether messages of this route wait in every queue, whatever its declaration is."""
    return route.waits or (route.counted is not None and route.counted.type == DELAYED)


def is_asked(headers: Mapping[str, object], route: PublishRoute) -> bool:
    """Return whether a message on this route is to wait somewhere."""
    return (DELAY in headers or DELIVER_AT in headers) and (
        always_waits(route) or any(target.delays for target in route.targets)
    )


def wait_ms(headers: Mapping[str, object], wall_ms: int, version: int) -> int:
    """Return how long a message is to wait, in ms; 0 for not at all. `version`: of the cluster. Raises
    PreconditionFailed.
    """
    if DELAY in headers and DELIVER_AT in headers:
        raise PreconditionFailed(f"a message has {DELAY} or {DELIVER_AT}, not both")
    name = DELAY if DELAY in headers else DELIVER_AT
    wait = delay_ms(headers[name]) if name == DELAY else _left_ms(headers[name], wall_ms)
    if version < versions.DELAYS:
        raise PreconditionFailed(
            f"header {name} needs a cluster whose nodes all run a version of mqd that knows it"
        )
    return max(wait, 0)


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
