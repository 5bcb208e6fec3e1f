"""Files beside the code: the version has one value, and what other programs read is what they expect."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from amqp_server.config import VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == VERSION
    named = {
        (page, version)
        for page, pattern in (
            ("deploy/kubernetes/mqd.yaml", r"\bmqd:(\d[\w.]*)"),
            ("docs/spark.md", r"\bmqd-(\d[\w.]*)-"),
            ("docs/testing.md", r"\bmqd-(\d[\w.]*)-"),
            ("docs/openapi.json", r'"version": "(.*)"'),
        )
        for version in re.findall(pattern, (ROOT / page).read_text())
    }
    assert {version for _, version in named} == {VERSION} and len(named) == 4


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    first, rest = titles[0], titles[1:]
    if first == "Unreleased":
        assert f"This will be {VERSION}." in text
    else:
        assert first.startswith(f"{VERSION}, ")
    assert all(re.fullmatch(r"\d+\.\d+\.\d+(, \d{4}-\d\d-\d\d)?", title) for title in rest)
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_each_entry_of_the_changelog_links_to_the_page_that_explains_it() -> None:
    entries = re.findall(r"^- (?:.|\n  )*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(entries) > 100
    assert [entry for entry in entries if "](" not in entry] == []


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_for_issues_has_fields_with_labels(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in fields}) == len(fields) > 1
    assert all(each["type"] in ("textarea", "dropdown") and each["attributes"]["label"] for each in fields)


def test_hooks_of_pre_commit_are_steps_of_make_check() -> None:
    [local] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text()
    for hook in local["hooks"]:
        program, *words = hook["entry"].split()
        if program.startswith(".venv/bin/"):
            tool = program.removeprefix(".venv/bin/")
            step = " ".join([tool, *(word for word in words if word != "--force-exclude"), "."])
            assert f"$(BIN)/{step}" in makefile
        else:
            assert (ROOT / program).is_file()


def test_the_container_for_development_has_the_oldest_python_and_makes_targets() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"python:{oldest}-" in container["image"]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"make (\S+)", container["postCreateCommand"])
    assert targets and all(f"\n{target}:" in makefile for target in targets)


def test_editors_wrap_where_ruff_does() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert settings["*.{py,pyi,md}"]["max_line_length"] == str(ruff["line-length"])
    assert settings["Makefile"]["indent_style"] == "tab"
