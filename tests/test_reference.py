"""docs/reference matches the code, and is complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from amqp_server.broker.declared.queue_types import QUEUE_TYPES
from amqp_server.config import Config
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


def test_types_take_the_arguments_that_the_page_says() -> None:
    def row(name: str) -> list[str]:
        return [arguments.taken(name, each) for each in QUEUE_TYPES.values()]

    assert [*QUEUE_TYPES] == ["classic", "quorum", "stream", "stream-group"]
    assert row("x-max-priority") == ["yes", "406", "406", "406"]
    assert row("x-delivery-limit") == ["406", "yes", "406", "yes"]
    assert row("x-stream-compression") == ["ignored", "ignored", "yes", "406"]
    assert row("x-stream-tombstone-age") == ["ignored", "ignored", "yes", "406"]
    assert row("x-stream") == ["ignored", "ignored", "ignored", "yes"]
    assert row("x-dead-letter-routing-key") == ["yes", "yes", "406", "yes"]


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
