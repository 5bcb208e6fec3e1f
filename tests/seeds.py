"""The command line of simulations: one seed, with all its events, or many seeds."""

from __future__ import annotations

import argparse
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol, TypeVar

from tests.turns import Violation

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Run(Protocol[T_co]):
    def __call__(self, seed: int, *, steps: int, trace: Callable[[str], None] | None = None) -> T_co: ...


@contextmanager
def told_how(command: str) -> Iterator[None]:
    """Say with an error how to have it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(command)
        raise


def main(run: Run[T], tell: Callable[[T], Iterable[str]], *, steps: int) -> None:
    """`run` raises the errors that it finds, `tell` says how a run ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:50", help="first:last + 1")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--trace", action="store_true", help="of one seed: all that happens")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        done = run(arguments.seed, steps=arguments.steps, trace=print if arguments.trace else None)
        print(f"seed {arguments.seed}:", *tell(done), sep="\n  ")
        return
    first, last = map(int, arguments.seeds.split(":"))
    failed = 0
    start = perf_counter()
    for seed in range(first, last):
        try:
            run(seed, steps=arguments.steps)
        except (Exception, Violation) as error:  # noqa: BLE001 - the other seeds are to run, too
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            file = where.filename.rsplit("/", 1)[-1]
            print(f"seed {seed}: {type(error).__name__} {error} ({file}:{where.lineno})", flush=True)
    print(f"{last - first} seeds, {failed} failed, {perf_counter() - start:.1f} s")
    raise SystemExit(bool(failed))
