"""A request that comes to a queue together with its deletion is answered as one that comes after it."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands

from amqp_server.broker.dead_letter import Outcome
from quorum_queue.host import DELETED
from quorum_queue.local_host import LocalHost

from ..connection.node import MemoryNode


@pytest.mark.pure
@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("get", commands.Basic.Get(queue="q")),
        ("attach", commands.Basic.Consume(queue="q")),
        ("purge", commands.Queue.Purge(queue="q")),
    ],
    ids=["get", "consume", "purge"],
)
def test_it_is_not_found(monkeypatch: pytest.MonkeyPatch, method: str, request_: base.Frame) -> None:
    peer = MemoryNode().peer()
    peer.call(1, commands.Channel.Open(), commands.Queue.Declare(queue="q"))

    def deleted(host: Any, *arguments: Any) -> None:
        arguments[-1](DELETED.text if method == "attach" else DELETED)

    monkeypatch.setattr(LocalHost, method, deleted)
    [(_, answer)] = peer.call(1, request_)
    assert isinstance(answer, commands.Channel.Close)
    assert (answer.reply_code, answer.reply_text) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")


@pytest.mark.parametrize("answers", [["gone"], ["confirmed", "gone"], ["confirmed", "refused"]])
def test_a_dead_letter_is_kept_that_a_deleted_queue_did_not_take(answers: list[str]) -> None:
    told: list[bool] = []
    outcome = Outcome(told.append)
    outcome.expect(len(answers))
    for answer in answers:
        getattr(outcome, answer)(1, 1)
    outcome.sent(routed=True)
    assert told == [False]
