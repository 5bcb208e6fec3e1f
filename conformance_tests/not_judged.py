"""The last table of a run: tests that judged nothing, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def table(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each reason: how many tests, of which files. Takes pairs of node id and reason."""
    counts: Counter[str] = Counter()
    files: dict[str, list[str]] = {}
    for nodeid, reason in skipped:
        counts[reason] += 1
        file = nodeid.partition("::")[0].rpartition("/")[2]
        if file not in files.setdefault(reason, []):
            files[reason].append(file)
    return [
        f"{count:5}  {reason}: {', '.join(sorted(files[reason]))}" for reason, count in counts.most_common()
    ]


def reasons(reports: Iterable[pytest.TestReport]) -> list[tuple[str, str]]:
    found = []
    for report in reports:
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found.append((report.nodeid, told.removeprefix("Skipped: ")))
    return found
