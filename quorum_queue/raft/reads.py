"""Reads that need the word of a quorum that this node still leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Read(NamedTuple):
    context: int
    #: A state that has applied this entry may answer.
    at_index: int
    #: The round of messages that confirms it; 0 before it is sent.
    round: int


class Reads:
    __slots__ = ("round", "silent", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Read] = []
        self.round = 0
        #: Ticks since the last round was sent.
        self.silent = 0

    def ask(self, context: int, at_index: int) -> None:
        self.waiting.append(Read(context, at_index, 0))

    def open_round(self) -> bool:
        """Give all new reads one round; return whether it is to be sent."""
        if all(read.round for read in self.waiting):
            return False
        self.round += 1
        self.silent = 0
        self.waiting = [read if read.round else read._replace(round=self.round) for read in self.waiting]
        return True

    def confirmed(self, rounds: Sequence[int]) -> list[tuple[int, int]]:
        """Return (context, index) of the reads whose round a quorum has answered; `rounds` are the voters' latest."""
        reached = sorted(rounds, reverse=True)[len(rounds) // 2]
        done = [(read.context, read.at_index) for read in self.waiting if 0 < read.round <= reached]
        self.waiting = [read for read in self.waiting if not 0 < read.round <= reached]
        return done

    def tick(self, patience_ticks: int) -> bool:
        """Return whether the reads are to be sent again."""
        if not self.waiting:
            return False
        self.silent += 1
        if self.silent < patience_ticks:
            return False
        self.waiting = [read._replace(round=0) for read in self.waiting]
        return True
