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
    if name == DELAY:
        wait = _milliseconds(name, headers[name], "the number of milliseconds to wait")
        if wait < 0:
            raise _refused(name, headers[name], "it must not be negative")
    else:
        wait = _milliseconds(name, headers[name], "a timestamp, or milliseconds since 1970") - wall_ms
    if wait > TIME_MS_MAX:
        raise _refused(name, headers[name], "no message waits longer than ten years")
    if version < versions.DELAYS:
        raise PreconditionFailed(
            f"header {name} needs a cluster whose nodes all run a version of mqd that knows it"
        )
    return max(wait, 0)


def _milliseconds(name: str, value: object, what: str) -> int:
    if isinstance(value, datetime.datetime) and name == DELIVER_AT:
        return round(value.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _refused(name, value, f"it must be {what}")


def _refused(name: str, value: object, why: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid header {name} {str(value)[:40]!r}: {why}")
