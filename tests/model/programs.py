"""Programs: what clients, operators and faults do, one step after the other. They are data, so that one
that failed can be kept, made smaller, and run again.

A step has `op` and what it needs. A client connects, and opens a channel, with the first step that uses it,
so that any steps can be left out of a program without making it void.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Step = dict[str, Any]


@dataclass
class Program:
    seed: int
    nodes: int
    steps: list[Step]
    #: Node of each client, by number: n1, n2, n3.
    places: list[str] = field(default_factory=lambda: ["n1", "n1", "n1"])
    #: User of each client: "guest" may do everything.
    users: list[str] = field(default_factory=lambda: ["guest", "guest", "guest"])
    #: The choices that it was made of; see pairs.
    row: dict[str, str] = field(default_factory=dict)

    def dumps(self) -> str:
        """One line for each step."""
        head = {
            "seed": self.seed,
            "nodes": self.nodes,
            "places": self.places,
            "users": self.users,
            "row": self.row,
        }
        return "\n".join([json.dumps(head), *(json.dumps(step) for step in self.steps)]) + "\n"

    @staticmethod
    def loads(text: str) -> Program:
        head, *steps = (json.loads(line) for line in text.splitlines() if line.strip())
        return Program(head["seed"], head["nodes"], steps, head["places"], head["users"], head["row"])

    @staticmethod
    def read(file: Path) -> Program:
        return Program.loads(file.read_text())

    def with_steps(self, steps: list[Step]) -> Program:
        return Program(self.seed, self.nodes, steps, self.places, self.users, self.row)
