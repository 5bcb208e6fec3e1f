"""Nodes that stand still for about as long as the others wait: a short storm. The longer one is
`python -m tests.cluster.stalls`.
"""

from __future__ import annotations

import pytest

from tests.cluster.mqd import MqdCluster
from tests.cluster.stalls import StallStorm

ROUNDS = 8


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_everything_goes_on_after_short_stalls(workers: int) -> None:
    with MqdCluster(workers=workers) as cluster:
        storm = StallStorm(cluster, seed=workers)
        try:
            storm.run(ROUNDS)
        finally:
            storm.stop()
        assert storm.failures == []
        assert all(flow.confirmed for flow in storm.flows), "there was hardly any load"
