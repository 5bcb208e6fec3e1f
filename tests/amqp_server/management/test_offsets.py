"""Offsets that streams keep by name over HTTP, where other nodes are of an earlier version, or are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp_server.broker.topology.replication import LocalReplication
from quorum_queue.machine.versions import NAMES_REFUSED

from .conftest import with_queue


async def test_names_cannot_be_deleted_before_all_nodes_know_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_queue(tmp_path, "s", "stream") as admin:
        listed = await admin.get("queues/%2F/s/offsets")
        assert (listed.status_code, listed.json()) == (200, [])
        absent = await admin.delete("queues/%2F/s/offsets/a")
        assert absent.status_code == 404
        assert absent.json()["reason"] == "stream 's' in vhost '/' has no offset with the name 'a'"
        monkeypatch.setattr(LocalReplication, "version", NAMES_REFUSED - 1)
        refused = await admin.delete("queues/%2F/s/offsets/a")
        assert refused.status_code == 400
        assert refused.json()["reason"].startswith(
            "deleting a named offset in a cluster needs nodes that all run"
        )
