"""Workers: the processes of a node that use one core each (docs/adr/0020-workers.md).

The first worker has the node's name; the others have a number behind it, which no node that an operator names
can have: `n1`, `n1/1`, `n1/2`. So what belongs to one machine is told by the names alone, and the same on all
nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Not allowed in names of nodes.
SEPARATOR = "/"


def worker_name(node: str, number: int) -> str:
    """Return the name of a node's worker; its first one has number 0."""
    return f"{node}{SEPARATOR}{number}" if number else node


def number_of(name: str) -> int:
    """Return the number of a worker of its machine."""
    return int(name.partition(SEPARATOR)[2] or 0)


def machine_of(name: str) -> str:
    """Return the name of the node to which this worker belongs."""
    return name.partition(SEPARATOR)[0]


def on_machine(machine: str, names: Iterable[str]) -> list[str]:
    """Return those of these workers that belong to a node."""
    return [name for name in names if machine_of(name) == machine]


def votes(name: str) -> bool:
    """True for the worker of a machine that votes in the topology: its first one. The others only follow."""
    return SEPARATOR not in name


def machines(names: Iterable[str]) -> set[str]:
    """Return the nodes of these workers."""
    return {machine_of(name) for name in names}
