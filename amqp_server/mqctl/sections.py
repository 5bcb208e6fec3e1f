"""The commands of `mqctl` in sections, for `mqctl --help` and docs/reference/commands.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

#: Title of each section, by the module of mqctl that has its commands; in the order in which they are shown.
TITLES = {
    "node": "The node",
    "operating": "Options in force, maintenance, reports",
    "diagnostics": "Checks and diagnostics",
    "lists": "Lists",
    "explain": "Why an object is as it is",
    "topology": "Queues and exchanges",
    "messages": "Messages",
    "moving": "Messages moved, copied, purged, in files",
    "users": "Users, virtual hosts, permissions",
    "policies": "Policies",
    "remotes": "Object stores of streams",
    "parameters": "Parameters and limits",
    "definitions": "Definitions",
    "shovels": "Shovels",
    "cluster": "Clusters",
    "completion": "The shell",
}

Named = tuple[str, click.Command]


def sections(commands: Sequence[Named]) -> Iterator[tuple[str, list[Named]]]:
    """Yield the title and the commands of each section, in alphabetical order."""
    by_module: dict[str, list[Named]] = {module: [] for module in TITLES}
    for name, command in sorted(commands, key=lambda named: named[0]):
        by_module[_module(command)].append((name, command))
    for module, found in by_module.items():
        if found:
            yield TITLES[module], found


def _module(command: click.Command) -> str:
    callback: Any = command.callback
    while hasattr(callback, "__wrapped__"):
        callback = callback.__wrapped__
    return str(getattr(callback, "__module__", "")).rpartition(".")[2]
