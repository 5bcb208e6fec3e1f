"""Work of a broker that takes several turns, a part in each, so that clients have their turns in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp_server.broker.declared.operations import Operation
from amqp_server.broker.in_parts.changed_streams import ChangedStreams
from amqp_server.broker.in_parts.firehose import Firehose
from amqp_server.broker.in_parts.host_parts import HostParts
from amqp_server.broker.in_parts.lost_consumers import LostConsumers
from amqp_server.broker.in_parts.orphaned_queues import Deletions
from amqp_server.broker.topology.replication import Done
from amqp_server.turn import Turn


class Background:
    """The node has one."""

    def __init__(self, turn: Turn, propose: Callable[[Operation, Done | None], None]) -> None:
        """`propose` makes a change of the topology; see broker.Broker.propose."""
        self.firehose: Final = Firehose(turn)
        self.host_parts: Final = HostParts(turn)
        self.lost_consumers: Final = LostConsumers(turn)
        self.changed_streams: Final = ChangedStreams(turn)
        self.deletions: Final = Deletions(turn, propose)
