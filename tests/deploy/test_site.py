"""The input of `make docs` for mkdocs: all pages, with links that hold within the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import site


class Loader(yaml.SafeLoader):
    """Knows the one custom object of mkdocs.yml, which makes anchors."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/object/apply:", lambda loader, suffix, node: suffix)

CONFIGURATION: dict[str, Any] = yaml.load(site.CONFIGURATION.read_text(), Loader)


def nav(entries: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        (value,) = entry.values()
        found += nav(value) if isinstance(value, list) else [value]
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pages")
    site.gather(directory)
    return directory


def test_the_navigation_has_every_page_once(pages: Path) -> None:
    there = {str(path.relative_to(pages)) for path in pages.rglob("*.md")}
    decisions = {path for path in there if path.startswith("adr/") and path != "adr/index.md"}
    named = nav(CONFIGURATION["nav"])
    assert sorted(named) == sorted(there - decisions)
    # One page lists the decision records.
    index = (pages / "adr" / "index.md").read_text()
    assert len(decisions) > 30 and all(f"]({path.removeprefix('adr/')})" in index for path in decisions)


def test_links_of_pages_lead_to_files_of_the_site(pages: Path) -> None:
    count = 0
    for page in pages.rglob("*.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", site.CODE.sub("", page.read_text())):
            path = link.partition("#")[0]
            if path and not site.OUTSIDE.match(link):
                assert (page.parent / path).is_file(), (page, link)
                count += 1
    assert count > 200
    assert "](deploy/mqd.example.toml)" in (pages / "operating.md").read_text()
    assert "](../deploy/" not in (pages / "operating.md").read_text()


def test_a_link_to_nothing_is_an_error() -> None:
    with pytest.raises(site.BadLink, match=r"docs/queues.md: nosuch.md leads to no file"):
        site.rewritten("docs/queues.md", "see [this](nosuch.md#there)", set())
    with pytest.raises(site.BadLink):
        site.rewritten("docs/queues.md", "see [this](../../outside.md)", set())
    linked: set[str] = set()
    text = "[a](../README.md#limits), [`b`](adr/0010-time.md), `[c](nosuch.md)`, map<string,string>\n"
    assert site.rewritten("docs/queues.md", text, linked) == (
        "[a](index.md#limits), [`b`](adr/0010-time.md), `[c](nosuch.md)`, map&lt;string,string>\n"
    )
    assert linked == {"README.md", "docs/adr/0010-time.md"}
    assert site.rewritten("docs/adr/0010-time.md", "[x](../../deploy/mqd.service)", linked).startswith(
        "[x](../deploy/mqd.service)"
    )


def test_what_is_loaded_from_other_hosts_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<link href=a.css rel=stylesheet><a href="https://x.example/">x</a>')
    assert site.foreign(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<script src="https://cdn.example/x.js"></script><img alt=x src=//y.example/z>'
    )
    assert site.foreign(tmp_path) == ["bad.html: https://cdn.example/x.js", "bad.html: //y.example/z"]


def test_nothing_of_the_configuration_asks_another_host() -> None:
    assert CONFIGURATION["theme"]["font"] is False
    assert CONFIGURATION["plugins"] == ["search", "offline"]
    assert "://" not in re.sub(r"#.*", "", site.CONFIGURATION.read_text())
    own = [*CONFIGURATION["extra"]["polyfills"], *CONFIGURATION["extra_css"]]
    assert sorted(own) == sorted(f"assets/{path.name}" for path in site.ASSETS.iterdir())
    directory = site.CONFIGURATION.parent
    for name, path in (("docs_dir", site.PAGES), ("site_dir", site.SITE)):
        assert posixpath.normpath(directory / CONFIGURATION[name]) == str(path)
