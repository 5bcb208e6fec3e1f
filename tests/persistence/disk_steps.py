"""A disk in steps that a seed chooses: a record of the log and a transaction may be under way together."""

from __future__ import annotations

from random import Random

from persistence.commits.stepped import SteppedCommit

#: How often what only the log has goes to the store, if there is a choice.
STORES = 0.3
#: How often a step begins something beside what is under way.
BESIDE = 0.3


def step(commits: SteppedCommit, random: Random) -> str:
    """Let the disk begin something, or end what is under way; return what it did, or nothing."""
    if (not commits.running or random.random() < BESIDE) and commits.begin(to_store=random.random() < STORES):
        return "begins"
    if not commits.running:
        return ""
    commits.end(log=random.random() < 0.5 if commits.running_both else None)
    return "ends"
