"""The board, the alerts and their runbook name only metrics that a broker exports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from amqp_server.management.statistics.metrics_text import names
from tests.test_docs import anchors

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "deploy/grafana/mqd.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
PAGE = ROOT / "docs" / "monitoring.md"
METRIC = re.compile(r"\b(?:rabbitmq|mqd)_\w+")
#: Labels that look like metrics.
LABELS = {"rabbitmq_node", "rabbitmq_cluster"}
OWN = set(
    re.findall(r'"(mqd_\w+)"', (ROOT / "amqp_server/management/statistics/metric_values.py").read_text())
)
OWN |= {"mqd_metrics_objects_left_out"}
EXPORTED = {*names(), *OWN, *(f"mqd_commit_seconds_{part}" for part in ("bucket", "sum", "count"))}


def metrics_in(expression: str) -> set[str]:
    return set(METRIC.findall(expression)) - LABELS


def expressions() -> list[str]:
    targets = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    variables = [each["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    return [*targets, *variables, *(rule["expr"] for rule in RULES)]


def test_board_and_alerts_name_what_is_exported() -> None:
    told = {name for expression in expressions() for name in metrics_in(expression)}
    assert len(told) > 40
    assert told - EXPORTED == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_has_an_entry_in_the_runbook(rule: dict[str, object]) -> None:
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    page, _, anchor = annotations["runbook"].partition("#")
    assert ROOT / page == PAGE
    assert anchor in anchors(PAGE) and anchor == str(rule["alert"]).lower()


def test_the_page_tells_all_of_mqds_own_metrics() -> None:
    assert set(METRIC.findall(PAGE.read_text())) >= OWN
