"""Lets an operator who may start the node get access again: a start makes a user an administrator."""

from __future__ import annotations

import logging
from functools import partial

import trio

from amqp_server.broker.access.permissions import Permission
from amqp_server.broker.access.users import ADMINISTRATOR, hashed
from amqp_server.broker.broker import Broker
from amqp_server.broker.declared.operations import Operation, PutUser, SetPermission
from amqp_server.broker.topology.replication import Result
from persistence.commits.commit import Commit
from quorum_queue.ports import Refused

logger = logging.getLogger("mqd")

#: Pause before a change that the cluster could not make is tried again.
RETRY_S = 1.0


async def reset_administrator(broker: Broker, commits: Commit, name: str, password: str) -> None:
    """Give the user this password, the tag and all permissions in the default vhost. In a cluster this
    applies to all nodes.

    Returns when the change is on disk.
    """
    before = broker.access.users.get(name)
    tags = dict.fromkeys((*(before.tags if before else ()), ADMINISTRATOR))
    password_hash = await trio.to_thread.run_sync(hashed, password)
    await _change(broker, PutUser(broker.access.users.prepare(name, password_hash, tags)))
    vhost = broker.config.default_vhost
    if vhost in broker.vhost_records:
        await _change(broker, SetPermission(Permission(name, vhost, ".*", ".*", ".*")))
    stored = trio.Event()
    commits.request(stored.set)
    await stored.wait()
    logger.warning(
        "user '%s' is now an administrator with the password in default_password_file; remove "
        "reset_administrator from the configuration",
        name,
    )


async def _change(broker: Broker, operation: Operation) -> None:
    while True:
        answers: list[Result | Refused] = []
        answered = trio.Event()

        def done(result: Result | Refused, answers: list[Result | Refused], answered: trio.Event) -> None:
            answers.append(result)
            answered.set()

        broker.turn.run(broker.propose, operation, partial(done, answers=answers, answered=answered))
        await answered.wait()
        if not isinstance(answers[0], Refused):
            return
        await trio.sleep(RETRY_S)
