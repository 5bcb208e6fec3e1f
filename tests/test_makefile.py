"""The Makefile: its targets, and what `make help` says of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", " ")
PHONY = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
TARGETS = re.findall(r"^([a-z-]+):(?!=)(?: [^#\n]*?)?(?: ## (.*))?$", MAKEFILE, re.MULTILINE)


def test_each_phony_target_has_one_sentence() -> None:
    texts = [name for name, text in TARGETS if text]
    assert sorted(texts) == sorted(PHONY)
    assert {name for name, _ in TARGETS} == PHONY
    assert [text for _, text in TARGETS if text and (not text[0].isupper() or text.endswith("."))] == []


def test_make_help_prints_all_targets_and_the_usual_ones_first() -> None:
    done = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, check=True)
    printed = re.findall(r"^  ([a-z-]+) +\S", done.stdout, re.MULTILINE)
    assert printed[:5] == ["run", "test", "check", "bench", "docs"]
    assert sorted(printed) == sorted(PHONY)


def test_files_that_targets_name_exist() -> None:
    """Tests that test-compiled and sim name; a missing one of several would end make, or be left out."""
    shown = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "-f", "-", "show"],
        input="include Makefile\nshow:\n\t@echo $(COMPILED_TESTS)\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    named = shown + re.findall(r"tests/[\w/]+\.py", MAKEFILE.partition("\nsim:")[2])
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_make_run_takes_another_port_where_5672_is_taken() -> None:
    """As the README says; the page's port goes with it."""

    def started(*given: str) -> str:
        command = ["make", "-n", "--no-print-directory", "-C", str(ROOT), "run", *given]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "make run PORT=5673" in (ROOT / "README.md").read_text()
    assert "--amqp 127.0.0.1:5673 --http 127.0.0.1:15673" in started("PORT=5673")
    assert "--amqp" not in started()
