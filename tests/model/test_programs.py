"""Programs with fixed seeds against real brokers: a short campaign; `make model` is the long one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from conformance_tests.patience import PATIENCE_S
from tests.model.brokers import MqdNode, MqdNodes
from tests.model.campaign import Campaign
from tests.model.programs import Program

#: By number of nodes.
PROGRAMS = {1: 36, 3: 10}


# CI has more of them in a step of its own.
@pytest.mark.long
@pytest.mark.parametrize("nodes", [1, 3])
def test_what_clients_see_is_what_the_model_allows(nodes: int, tmp_path: Path) -> None:
    """The same programs in every run."""
    campaign = Campaign(MqdNode if nodes == 1 else MqdNodes, nodes, 1, tmp_path, PATIENCE_S)
    try:
        failures = list(campaign.run(math.inf, PROGRAMS[nodes], {}))
        told = [f"seed {each.program.seed}: {each.text}\n{each.program.dumps()}" for each in failures]
        assert not told, "\n".join(told)
        assert campaign.programs == PROGRAMS[nodes]
    finally:
        campaign.close()


KEPT = sorted(Path(__file__).with_name("kept").glob("*.program"))


@pytest.mark.parametrize("nodes", [1, 3])
def test_programs_that_failed_once(nodes: int, tmp_path: Path) -> None:
    campaign = Campaign(MqdNode if nodes == 1 else MqdNodes, nodes, 0, tmp_path, PATIENCE_S)
    programs = {file.stem: program for file in KEPT if (program := Program.read(file)).nodes == nodes}
    try:
        found = {name: str(error) for name, program in programs.items() if (error := campaign.judge(program))}
        assert not found
    finally:
        campaign.close()
