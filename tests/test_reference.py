"""docs/reference matches the code, and is complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from amqp_server.broker.declared.argument_table import ARGUMENTS, ROWS, Argument
from amqp_server.broker.declared.arguments import QueueArguments, parse_queue_arguments
from amqp_server.broker.declared.policy import EXCHANGE_KEYS
from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.config import Config
from amqp_server.errors import PreconditionFailed
from amqp_server.management.serving.endpoints import ENDPOINTS
from amqp_server.mqctl.command import mqctl
from amqp_server.reference import arguments
from amqp_server.reference.__main__ import DIRECTORY
from amqp_server.reference.pages import pages

ROOT = Path(__file__).parents[1]
PAGES = pages()
#: A header of requests to the management API, and prefixes of argument names.
NO_ARGUMENTS = {"x-missing-nodes", "x-mqd-csrf", "x-reason", "x-stream-"}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (DIRECTORY / name).read_text() == PAGES[name], "python -m amqp_server.reference (make reference)"


def test_there_are_no_others() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {*PAGES}


def test_every_option_is_there() -> None:
    page = PAGES["options.md"]
    for declared in fields(Config):
        name = declared.name
        assert f"`{name}`<br>`--{name.replace('_', '-')}`" in page and f"`MQD_{name.upper()}`" in page
    assert re.search(r"^\| `frame_max_bytes`<br>.* \| 128 KiB \| 4 KiB to 16 MiB \| ", page, re.MULTILINE)
    assert re.search(r"^\| `heartbeat_s`<br>.* \| 60 s \| 0 to 65,535 s \| ", page, re.MULTILINE)
    assert re.search(
        r"^\| `http_page`<br>`--http-page`, `--no-http-page`<br>.* \| on \| on, off \| ", page, re.MULTILINE
    )


def test_every_command_is_there() -> None:
    page = PAGES["commands.md"]
    assert {*mqctl.commands} <= set(re.findall(r"^### (\w+)", page, re.MULTILINE))
    assert (
        "### cluster transfer-leader\n" in page
        and "mqctl cluster transfer-leader [OPTIONS] QUEUE NODE\n" in page
    )
    assert (
        "| `-u`, `--if-unused` |" in page
        and "| `-p`, `--vhost` TEXT | `/` | Virtual host of the objects. |" in page
    )


def test_every_path_is_there() -> None:
    page = PAGES["http.md"]
    assert all(f"| {each.method} | `{each.path}` | {each.who or 'anybody'} |" in page for each in ENDPOINTS)
    assert "`configure` string (required); `write` string (required); `read` string (required)" in page


def _declared(row: Argument, queue_type: str) -> str:
    """What a declare with an example of the argument comes to."""
    least = {"x-queue-type": queue_type}
    if QUEUE_TYPES[queue_type].is_group:
        least["x-stream"] = "s"
    table: dict[str, object] = {**least}
    if row.needs:
        table[row.needs] = ARGUMENTS[row.needs].example

    def parsed(table: dict[str, object]) -> QueueArguments:
        return parse_queue_arguments("q", "/", table, durable=True, exclusive=False, auto_delete=False)

    try:
        return "ignored" if parsed(table | {row.name: row.example}) == parsed(table) else "yes"
    except PreconditionFailed:
        return "406"


@pytest.mark.parametrize("queue_type", QUEUE_TYPES)
@pytest.mark.parametrize("row", [row for row in ROWS if row.example is not None], ids=lambda row: row.name)
def test_a_declare_does_with_each_argument_what_the_page_says(row: Argument, queue_type: str) -> None:
    assert arguments.taken(row, queue_type) == _declared(row, queue_type)


def test_every_row_of_the_table_is_there() -> None:
    lines = PAGES["arguments.md"].splitlines()
    assert [*QUEUE_TYPES] == ["classic", "quorum", "stream", "stream-group"]
    for row in ROWS:
        there = " | ".join(arguments.taken(row, each) for each in QUEUE_TYPES)
        assert f"| `{row.name}` | {there} | {arguments.values_of(row)} | {row.text} |" in lines
        if row.policy is not None:
            assert any(line.startswith(f"| `{row.policy_key}` | `{row.name}` | ") for line in lines)
    for key in EXCHANGE_KEYS:
        assert f"| `{key}` | `{key}` | exchanges | – | – |" in lines
    # Written by hand, as a look at the table from outside.
    assert "| `x-delivery-limit` | 406 | yes | 406 | yes | integer; below 0: none |" in PAGES["arguments.md"]
    assert "| `x-stream` | ignored | ignored | ignored | yes | name |" in PAGES["arguments.md"]
    assert "| `expires` | `x-expires` | classic, quorum | smaller | quorum |" in lines


def test_every_argument_of_the_code_is_there() -> None:
    found = {
        name
        for package in ("amqp_server", "exchanges")
        for path in (ROOT / package).rglob("*.py")
        if not {"reference", "page"} & {*path.relative_to(ROOT).parts}
        for name in re.findall(
            r"""["'](x-[a-z-]+|CC|BCC|alternate-exchange|hash-(?:header|property))["']""", path.read_text()
        )
    }
    of_http = {"x-content-type-options", "x-frame-options", "x-gzip", "x-compress"}
    missing = {name for name in found if f"`{name}`" not in PAGES["arguments.md"]}
    assert missing == (NO_ARGUMENTS | of_http) & found
    assert len(found) > 50
