"""Many programs, one after the other, against one broker that goes on as long as it lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import releases
from tests.model import pairs, shrink
from tests.model.brokers import Operated
from tests.model.generator import draw
from tests.model.judge import Judge
from tests.model.programs import Program
from tests.model.spec.promises import Broken


@dataclass
class Failure:
    program: Program
    text: str
    after_s: float
    programs: int
    log: str = ""


class Campaign:
    def __init__(
        self, make: Callable[..., Operated], nodes: int, seed: int, keep: Path, patience_s: float
    ) -> None:
        self._make, self.nodes, self.seed, self._keep, self._patience_s = make, nodes, seed, keep, patience_s
        self._broker: Operated | None = None
        #: One that can have faults that a compiled broker can't have.
        self._pure: Operated | None = None
        self._vhosts = 0
        self.programs = self.steps = self.skipped = 0
        self.covered: set[pairs.Pair] = set()
        self.product = ""

    def broker(self) -> Operated:
        if self._broker is None:
            self._broker = self._make()
            self.product = self._broker.product
        return self._broker

    def _broker_for(self, program: Program) -> Operated:
        if not needs_pure(program) or needs_pure(program) in self.broker().faults:
            return self.broker()
        if self._pure is None:
            self._pure = self._make(pure=True)
        return self._pure

    def close(self) -> None:
        for broker in (self._broker, self._pure):
            if broker is not None:
                self._end(broker)

    def _end(self, broker: Operated) -> None:
        broker.close()
        if broker is self._broker:
            self._broker = None
        if broker is self._pure:
            self._pure = None

    def judge(self, program: Program) -> Broken | None:
        """Run one program. After one with faults that failed the broker is another one, since this one may be
        broken for good.
        """
        if not begins_old(program):
            return self._judged(self._broker_for(program), program)
        # It can't go back to the last release.
        broker = self._make(old=True)
        try:
            return self._judged(broker, program)
        finally:
            broker.close()

    def _judged(self, broker: Operated, program: Program) -> Broken | None:
        self._vhosts += 1
        judge = Judge(broker, program, f"m{self._vhosts}-{program.seed}", self._patience_s)
        try:
            found = judge.run()
        except (OSError, AssertionError, TimeoutError) as error:
            found = Broken(f"step {judge.at}: {type(error).__name__}: {error}")
        self.programs += 1
        self.steps += len(program.steps)
        self.skipped += judge.skipped
        if found is not None:
            self._log = broker.log_tail()
            faulty = any(step["op"] == "fault" for step in program.steps)
            if broker in (self._broker, self._pure) and (faulty or not broker.alive()):
                self._end(broker)
        return found

    def run(self, seconds: float, programs: int, within: Mapping[str, str]) -> Iterator[Failure]:
        began = time.monotonic()
        drawn = pairs.rows(self.nodes, self.seed, within)
        number = 0
        while time.monotonic() - began < seconds and (not programs or number < programs):
            row = next(drawn)
            program = draw(self.seed * 1_000_000 + number, row, self.nodes)
            number += 1
            found = self.judge(program)
            self.covered |= pairs.pairs_of(row)
            if found is not None:
                yield Failure(program, str(found), time.monotonic() - began, number, self._log)

    def shrink(self, failure: Failure) -> None:
        kind = _kind(failure.text)

        def fails(program: Program) -> bool:
            found = self.judge(program)
            return found is not None and _kind(str(found)) == kind

        failure.program = shrink.shrunk(failure.program, fails)

    def keep(self, failure: Failure) -> Path:
        self._keep.mkdir(parents=True, exist_ok=True)
        file = self._keep / f"{failure.program.nodes}-{failure.program.seed}.program"
        file.write_text(failure.program.dumps())
        file.with_suffix(".log").write_text(f"{failure.text}\n\n{failure.log}")
        return file

    def report(self, seconds: float) -> str:
        every = pairs.all_pairs(self.nodes)
        return f"{self.programs} programs, {self.steps} steps ({self.skipped} left out), {len(self.covered & every)} of {len(every)} pairs, {seconds:.0f} s, {self.nodes} nodes"


def begins_old(program: Program) -> bool:
    """True if its nodes begin as the last release."""
    return program.row.get("fault") == "upgrade" and bool(releases.WHEELS)


def needs_pure(program: Program) -> str:
    """The fault of a program that only a pure mqd can have: no method of a compiled class can be replaced."""
    return "entry" if any(step.get("kind") == "entry" for step in program.steps) else ""


def _kind(text: str) -> str:
    """What is wrong, without the numbers and names of this one program."""
    text = text.partition(": ")[2]
    return "".join(c for c in text if not c.isdigit())[:48]
