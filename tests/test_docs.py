"""Pages link to existing files and headings, and name only existing commands."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from amqp_server.broker.access import permissions, users
from amqp_server.broker.declared import parameters, records, vhosts
from amqp_server.broker.recovery import stored_queue_time
from amqp_server.broker.topology import topology
from amqp_server.cluster.membership import membership
from amqp_server.management.serving.endpoints import ENDPOINTS
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.main import COMMANDS
from persistence import environment
from persistence.store import Tables
from persistence.streams import batch, deduplication_file, log, segment, summaries

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in (
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "CODE_OF_CONDUCT.md",
            "SECURITY.md",
            "conformance_tests/README.md",
            "conformance_tests/clients/README.md",
        )
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: Pages that name files of this repository.
PAGES_OF_FILES = ("CONTRIBUTING.md", "SECURITY.md", "docs/releasing.md", "docs/style.md")
LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")

assert COMMANDS


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from headings."""
    plain = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", PAGES_OF_FILES)
def test_files_that_pages_for_developers_name_exist(name: str) -> None:
    """A path is in backticks, and begins at the top of the repository."""
    top = {each.name for each in ROOT.iterdir()}
    spans = {span.rstrip("/") for span in re.findall(r"`([\w./-]+)`", (ROOT / name).read_text())}
    paths = {
        span for span in spans if span.partition("/")[0] in top or ("/" in span and span.endswith(".py"))
    }
    made = {"build/model", "build/docs/site", "build/release"}
    assert paths
    assert [path for path in sorted(paths - made) if not (ROOT / path).exists()] == []


def test_commands_of_mqctl() -> None:
    told = {
        (page.name, *found)
        for page in PAGES
        for found in re.findall(
            r"\bmqctl (?:--url \S+ )?(?:-q )?([a-z][a-z_-]+)(?: ([a-z][a-z-]+))?", page.read_text()
        )
    }
    assert {"status", "list_queues", "cluster"} <= {name for _, name, _ in told}
    unknown = []
    for page, name, sub in sorted(told):
        command = mqctl.commands.get(name)
        if command is None or (sub and isinstance(command, click.Group) and sub not in command.commands):
            unknown.append((page, name, sub))
    # "mqctl talks to ..." and the like are not commands.
    words = {("operating.md", "talks")}
    assert [each for each in unknown if each[:2] not in words] == []


def test_paths_of_the_management_api() -> None:
    paths = {re.sub(r"\{\w+\}", "*", route.path) for route in ENDPOINTS}
    page = ROOT / "docs" / "operating.md"
    told = set(re.findall(r"/api/[a-z/-]+[a-z]", page.read_text()))
    assert len(told) >= 6 and told <= paths


def test_every_file_and_table_of_the_data_directory_is_explained() -> None:
    page = (ROOT / "docs" / "data-directory.md").read_text()
    # LMDB would make the lock file, which mqd does without.
    files = {name for name, _ in environment._KINDS} - {
        "main/lock.mdb",
        "main",
        "spill",
        "streams",
        "workers",
    }
    files |= {summaries.NAME, deduplication_file.NAME, log._FIRST, log._CLEAN, log._SOUND, "spill/data.mdb"}
    tables = {*Tables.__slots__}
    assert len(tables) == 14
    kinds = {records.QUEUES, records.EXCHANGES, records.BINDINGS, records.MARKS, users.TABLE, vhosts.TABLE}
    kinds |= {permissions.TABLE, permissions.TOPIC_TABLE, parameters.TABLE, stored_queue_time.TABLE}
    kinds |= {topology.TABLE, membership.TABLE}
    page = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    told = {*re.findall(r"`([^`]+)`", page)} | {
        each.rpartition("/")[2] for each in re.findall(r"`streams/ID/([^`]+)`", page)
    }
    assert files | tables | kinds <= told
    assert all(f"{suffix}`" in page for suffix in (segment.SEGMENT, segment.INDEX, segment.NEW))
    assert f"version {batch.VERSION}" in page and f"layout {environment.SCHEMA_VERSION}" in page
