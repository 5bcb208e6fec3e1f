"""Connections over sockets that wait for an answer from another node."""

from __future__ import annotations

from pathlib import Path

import trio
from pamqp import commands

from conformance_tests.patience import PATIENCE_S

from ..wire.published import method, raw
from .node import exchange_parts
from .served import client, served, until
from .test_suspension import LateReplication

HEARTBEAT = raw(8, 0, b"")


async def test_the_answer_leaves_without_anything_else_to_send(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        log = LateReplication(node.broker)
        exchange_parts(node.broker, replication=log)
        async with client(node) as waiting, client(node) as other:
            await waiting.send(method(1, commands.Queue.Declare(queue="q"), commands.Basic.Qos()))
            await until(lambda: len(log.proposed) == 1)
            await other.ask(1, commands.Basic.Qos(), commands.Basic.QosOk)
            node.broker.turn.run(log.apply)
            await waiting.wait_for(commands.Queue.DeclareOk)
            await waiting.wait_for(commands.Basic.QosOk)
        log.late = False


async def test_who_waits_is_not_taken_for_dead(tmp_path: Path) -> None:
    """More has arrived than the node reads: it can't tell whether heartbeats are among that."""
    async with served(tmp_path) as node:
        log = LateReplication(node.broker)
        exchange_parts(node.broker, replication=log)
        async with client(node, heartbeat_s=2) as waiting:
            await waiting.send(method(1, commands.Queue.Declare(queue="q")))
            (transport,) = node.server.transports
            await waiting.send(HEARTBEAT * (200_000))
            await until(lambda: transport.session.incoming.backlogged)
            # All of the first write may have come in one read.
            await waiting.send(HEARTBEAT * 1_000)
            heard = waiting.heartbeats
            with trio.fail_after(PATIENCE_S):
                # More than twice as long as a silent client has.
                while waiting.heartbeats < heard + 6:
                    await waiting.read()
            assert transport.session.incoming.backlogged
            node.broker.turn.run(log.apply)
            await waiting.wait_for(commands.Queue.DeclareOk)
            await until(lambda: not transport.session.incoming.backlogged)
        log.late = False
