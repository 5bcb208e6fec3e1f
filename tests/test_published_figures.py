"""Table, page and picture come from one run, and an incomplete run is not published."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.publish import (
    BEGIN,
    BEGIN_BESIDE_KAFKA,
    END,
    KAFKA_ROWS,
    OF_README,
    README_ROWS,
    STREAM_ROWS,
    WITHOUT_CPU,
    Incomplete,
    publish,
)
from benchmarks.rounds import Outcome
from benchmarks.scenarios import KAFKA_SCENARIOS, SCENARIOS
from benchmarks.scenarios.scenario import CPU_US

ROOT = Path(__file__).parents[1]
PNG = b"\x89PNG"
#: Pages with a short table, and the rows of these.
TABLES = {"README.md": README_ROWS, "docs/streams.md": STREAM_ROWS}


def run(other: str = "", kafka: bool = False, of_readme: bool = False) -> dict[str, Any]:
    """Return a run in which every figure is twice as large with mqd, and four times as large as with the
    other RabbitMQ; these invented figures go to a temporary directory only.
    """
    peers = ["kafka" if kafka else "rabbitmq", *([other] if other else [])]
    scenarios = KAFKA_SCENARIOS if kafka else SCENARIOS
    if of_readme:
        scenarios = [scenario for scenario in scenarios if scenario.name in OF_README]
    figures: list[dict[str, Any]] = []
    for scenario in scenarios:
        for number, figure in enumerate(scenario.figures):
            value = float(len(figures) + 1)
            figures.append(
                {
                    "scenario": scenario.name,
                    "title": scenario.title,
                    "figure": figure.label,
                    "mqd": 2 * value,
                    **{peer: value / (number + 1) for number, peer in enumerate(peers)},
                    "ratio": 2.0,
                    "bar": str(figure.bar) if figure.bar else None,
                    "met": None if figure.bar is None else number > 0,
                }
            )
    rounds = {
        scenario.name: {
            broker: {"failure": None, "rounds": [{"cpu_us": 3.0}, {"cpu_us": 5.0}, {"cpu_us": 4.0}]}
            for broker in ("mqd", *peers)
        }
        for scenario in scenarios
    }
    return {
        "settings": {
            "quick": False,
            "of_readme": of_readme,
            "rounds": None,
            "brokers": ",".join(["mqd", *peers]),
            "seconds": 1800.0,
            "versions": {"rabbitmq": "3.10.8"} | ({other: "4.3.6"} if other else {}),
        },
        "machine": {"python": "3.11", "system": "Linux", "cores": 2, "date": "2001-02-03"},
        "client_ceiling": {},
        "figures": figures,
        "rounds": rounds,
    }


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for name in (*TABLES, "docs/performance.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def block(path: Path) -> str:
    return path.read_text().partition(BEGIN)[2].partition(END)[0]


def rows(path: Path) -> list[list[str]]:
    lines = re.findall(r"^\| (?!\||---)(.*) \|$", block(path), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_the_readme_has_ten_rows_and_one_table() -> None:
    assert len(README_ROWS) == 10


def agree(root: Path, name: str) -> None:
    """Fail unless a short table has its rows, with the figures of the long one."""
    told = rows(root / name)
    assert [row[0] for row in told] == [title for _, _, title in TABLES[name]]
    titles = {
        (scenario.name, figure.label): scenario.title for scenario in SCENARIOS for figure in scenario.figures
    }
    found: dict[tuple[str, str], list[str]] = {}
    title = ""
    for row in rows(root / "docs" / "performance.md"):
        # Only the first figure of a scenario has its title.
        title = row[0] or title
        found[title, row[1]] = row[2:-1]
    for row, (scenario, figure, _) in zip(told, TABLES[name], strict=True):
        mqd, *beside, wanted = found[titles[scenario, figure], figure]
        values, ratios = beside[::2], beside[1::2]
        assert row[1:-2] == [mqd, *values]
        for cell, ratio in zip(row[-2].split(" / "), ratios, strict=True):
            if not ratio:
                assert cell in ("", "-")
                continue
            times = 1 / float(ratio.strip("*")) if "≤" in wanted else float(ratio.strip("*"))
            # Both were rounded.
            assert float(cell.replace(",", "")) == pytest.approx(times, rel=0.01)


def test_a_table_has_its_rows_and_the_figures_of_the_long_one() -> None:
    agree(ROOT, "docs/streams.md")
    assert [row[0] for row in rows(ROOT / "README.md")] == [title for _, _, title in README_ROWS]


def test_the_readme_may_have_a_run_of_its_own_beside_two_peers(pages: Path) -> None:
    before = {name: (pages / name).read_text() for name in ("docs/streams.md", "docs/performance.md")}
    document = run("rabbitmq-4.3.6", of_readme=True)
    assert publish(document, pages) == [pages / "README.md"]
    assert "| | mqd | RabbitMQ 3.10.8 | RabbitMQ 4.3.6 | times better |" in block(pages / "README.md")
    assert [row[0] for row in rows(pages / "README.md")] == [title for _, _, title in README_ROWS]
    assert before == {name: (pages / name).read_text() for name in before}
    document["figures"] = [each for each in document["figures"] if each["scenario"] != "durable"]
    with pytest.raises(Incomplete, match="durable"):
        publish(document, pages)


def test_all_of_it_is_of_one_run(pages: Path) -> None:
    document = run()
    before = {pages / name: (pages / name).read_text() for name in (*TABLES, "docs/performance.md")}
    assert len(publish(document, pages)) == 4
    by_name = {(record["scenario"], record["figure"]): record for record in document["figures"]}
    for name, table in TABLES.items():
        for row, (scenario, figure, title) in zip(rows(pages / name), table, strict=True):
            record = by_name[scenario, figure]
            # Never marked as bad, and never below one where mqd is better.
            wanted = "0.5" if "≤" in (record["bar"] or "") else "2"
            cpu = "" if figure in WITHOUT_CPU else "1"
            assert row == [title, f"{record['mqd']:.3g}", f"{record['rabbitmq']:.3g}", wanted, cpu]
    page = pages / "docs" / "performance.md"
    lines = [line for line in block(page).splitlines() if line.startswith("| ")][2:]
    assert len(lines) == len(document["figures"])
    for path in before:
        assert "One run of 2001-02-03" in block(path)
    missed = [record for record in document["figures"] if record["met"] is False]
    assert f"Not as wanted, {len(missed)} in number, red in the picture: " in block(page)
    assert block(page).count("**2**") == len(missed)
    assert "(figures/bench.png)" in block(page)
    assert (pages / "docs" / "figures" / "bench.png").read_bytes().startswith(PNG)
    # The rest of the pages is unchanged.
    for path, text in before.items():
        assert path.read_text().partition(BEGIN)[0] == text.partition(BEGIN)[0]
        assert path.read_text().partition(END)[2] == text.partition(END)[2]
    again = {path: path.read_text() for path in before}
    publish(document, pages)
    assert {path: path.read_text() for path in before} == again


def test_a_second_rabbitmq_has_a_column_of_its_own(pages: Path) -> None:
    document = run("rabbitmq-4.3.6")
    publish(document, pages)
    for name, table in TABLES.items():
        assert "| | mqd | RabbitMQ 3.10.8 | RabbitMQ 4.3.6 | times better |" in block(pages / name)
        for row, (scenario, figure, _) in zip(rows(pages / name), table, strict=True):
            record = next(
                each
                for each in document["figures"]
                if (each["scenario"], each["figure"]) == (scenario, figure)
            )
            assert row[1:4] == [f"{record[name]:.3g}" for name in ("mqd", "rabbitmq", "rabbitmq-4.3.6")]
            cpu = "" if figure in WITHOUT_CPU else "1 / 1"
            assert row[4:] == ["0.5 / 0.25" if "≤" in (record["bar"] or "") else "2 / 4", cpu]
    page = block(pages / "docs" / "performance.md")
    assert (
        "| RabbitMQ 3.10.8 | ratio | RabbitMQ 4.3.6 | ratio | wanted | CPU µs, mqd / RabbitMQ 3.10.8 / RabbitMQ 4.3.6 |"
        in page
    )
    for name in TABLES:
        agree(pages, name)
    # The target is about the first one.
    assert "**2**" in page and "**4**" not in page


def test_a_run_beside_kafka_fills_a_table_of_its_own(pages: Path) -> None:
    page = pages / "docs" / "performance.md"
    before = page.read_text()
    document = run(kafka=True)
    assert publish(document, pages) == [page]
    _, begin, rest = page.read_text().partition(BEGIN_BESIDE_KAFKA)
    table, _, after = rest.partition(END)
    assert "| | mqd | Kafka | times better | times less CPU |" in table
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines() if line.startswith("| ")][2:] == [
        title for _, _, title in KAFKA_ROWS
    ]
    assert before.partition(BEGIN_BESIDE_KAFKA)[2].partition(END)[2] == after and begin
    document["figures"].pop(0)
    document["figures"] = [each for each in document["figures"] if each["scenario"] != "kafka-latency"]
    with pytest.raises(Incomplete, match="kafka-latency"):
        publish(document, pages)


def test_a_run_tells_of_all_its_brokers() -> None:
    scenario = SCENARIOS[0]
    key = scenario.figures[0].key
    outcomes = {
        name: Outcome([{key: value, CPU_US: value}])
        for name, value in (("mqd", 60.0), ("rabbitmq", 20.0), ("rabbitmq-4.3.6", 10.0))
    }
    head, _, line = (each.split() for each in report.table([(scenario, outcomes)]).splitlines()[:3])
    assert head[2:7] == ["mqd", "rabbitmq", "ratio", "rabbitmq-4.3.6", "ratio"]
    assert line[2:7] == ["60", "20", "3.00", "10", "6.00"]
    assert "60 / 20 / 10" in " ".join(line)


def lacking(change: str) -> dict[str, Any]:
    document = copy.deepcopy(run())
    if change == "quick":
        document["settings"]["quick"] = True
    elif change == "brokers":
        document["settings"]["brokers"] = "mqd"
    else:
        document["figures"] = [each for each in document["figures"] if each["scenario"] != change]
    return document


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("quick", "--quick"),
        ("brokers", "brokers mqd"),
        ("cluster-failover", "no figures of cluster-failover"),
    ],
)
def test_a_part_of_a_run_is_not_published(pages: Path, change: str, text: str) -> None:
    before = (pages / "README.md").read_text()
    with pytest.raises(Incomplete, match=text):
        publish(lacking(change), pages)
    assert (pages / "README.md").read_text() == before
