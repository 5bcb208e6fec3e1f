"""Members of consumer groups and the streams that they may read.

A group reads streams for its members, so a member needs the permission to read each of them, as a consumer of
the stream itself does, whoever declared the group, and whoever bound the stream to its exchange. That is
checked when a client becomes a member or gets a message, when the group gets another stream, and when
permissions change. A member that may not read all streams any more is cancelled, and its messages return to
the group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from amqp_server.broker.access.http_permissions import AnswerAwaited
from amqp_server.broker.topology import consumer_groups

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue

logger = logging.getLogger("mqd.groups")


def check(group: Queue, access: str) -> None:
    """Check that a user may read all streams of a group. Raises AccessRefused, AnswerAwaited."""
    vhost = group.vhost
    permissions = vhost.parts.access.permissions
    for stream in consumer_groups.streams_of(vhost, group.parsed.stream):
        permissions.check(access, vhost.name, "queue", stream.name, "read")


def check_members(group: Queue) -> None:
    """Cancel the members here that may not read all streams of the group."""
    if group.subscriptions and not group.deleted:
        _check(group, consumer_groups.streams_of(group.vhost, group.parsed.stream))


def _check(group: Queue, streams: Iterable[Queue]) -> None:
    vhost = group.vhost
    parts, permissions = vhost.parts, vhost.parts.access.permissions
    names = [each.name for each in streams]
    #: Members of one user get one answer: a stream that it may not read, or none.
    refused: dict[str, str] = {}
    awaited: dict[str, AnswerAwaited] = {}
    for key, member in list(group.subscriptions.items()):
        access = member.access
        if access not in refused:
            try:
                refused[access] = next(
                    (name for name in names if not permissions.allows(access, vhost.name, name, "read")), ""
                )
            except AnswerAwaited as question:
                # It stays a member until the HTTP backend has answered.
                refused[access] = ""
                awaited[access] = question
        stream = refused[access]
        if stream:
            logger.warning(
                "group '%s' in vhost '%s': consumer '%s' of user '%s' may not read its stream '%s', and is cancelled",
                *(group.name, vhost.name, member.tag, member.user, stream),
            )
            member.revoked = (
                f"read access to queue '{stream}' in vhost '{vhost.name}' refused for user '{member.user}'"
            )
            group.host.submit(("detach", key, True))
            group.consumer_lost(key)
    for one in awaited.values():
        one.begin(partial(parts.turn.run, _again, group, one))


def _again(group: Queue, awaited: AnswerAwaited) -> None:
    check_members(group)
    awaited.settle()


class GroupStreams:
    """The current streams of a group, for its host. Members that may not read a new one are cancelled before
    the host knows it.
    """

    def __init__(self, group: Queue) -> None:
        self._group = group
        self._known: set[int] = set()

    def __call__(self) -> list[Queue]:
        group = self._group
        found = consumer_groups.streams_of(group.vhost, group.parsed.stream)
        ids = {each.queue_id for each in found}
        if ids != self._known:
            new = [each for each in found if each.queue_id not in self._known]
            self._known = ids
            if group.subscriptions and not group.deleted:
                _check(group, new)
        return found


__all__ = ["GroupStreams", "check", "check_members"]
