"""A node with a stream, for tests that look at both places where messages may be."""

from __future__ import annotations

import pytest

from amqp_server.streams.local_host import StreamOptions
from tests.amqp_server.connection.node import Peer
from tests.amqp_server.streams.node import StreamNode, declare, opened


@pytest.fixture(params=[True, False], ids=["in segments", "in memory"])
def node(request: pytest.FixtureRequest) -> StreamNode:
    return StreamNode(None if request.param else StreamOptions())


@pytest.fixture
def peer(node: StreamNode) -> Peer:
    peer = opened(node)
    declare(peer)
    return peer
