"""Draws a program from a row of choices and a seed."""

from __future__ import annotations

from tests.model.drawing.moments import Moments
from tests.model.pairs import Row
from tests.model.programs import Program


class Draft(Moments):
    def program(self) -> Program:
        self._set_up()
        body = [self._body_step() for _ in range(self.chance.randint(10, 22))]
        for at, special in self._specials(len(body)):
            body.insert(at, special)
        for make in body:
            make()
        places = {
            "same": ["n1", "n1", "n1"],
            "other": ["n1", "n2", "n2"],
            "each": ["n1", "n2", "n3"],
        }[self.row["asked"]]
        limited = self.row["permission"] != "all" or self.row["limit"] == "channels"
        return Program(
            self.seed,
            self.nodes,
            self.steps,
            places,
            ["guest", "guest", "u" if limited else "guest"],
            self.row,
        )


def draw(seed: int, row: Row, nodes: int) -> Program:
    return Draft(seed, row, nodes).program()
