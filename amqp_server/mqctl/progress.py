"""The progress of a long command: a bar on stderr, if that is a terminal, after its first second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import TypeVar

import click

from amqp_server.mqctl.client import Failure

#: Commands that take no longer show no bar, s.
FIRST_S = 1.0
#: Interval between two looks, s.
LOOK_INTERVAL_S = 0.5

T = TypeVar("T")
#: Returns how many items are done, and how many there are. Raises Failure.
Look = Callable[[], tuple[int, int]]


@contextmanager
def progress(label: str, look: Look | None = None) -> Iterator[None]:
    """Show a bar for the duration of a `with`. `look` is called in a thread; without it the bar only shows
    the elapsed time.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    shower = threading.Thread(target=_show, args=(label, look, ended), daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


@contextmanager
def each(label: str, items: Sequence[T]) -> Iterator[Iterator[T]]:
    """Show how many of these items have been taken: `with each(...) as taken: for item in taken: ...`."""
    done = 0

    def taken() -> Iterator[T]:
        nonlocal done
        for item in items:
            yield item
            done += 1

    with progress(label, lambda: (done, len(items))):
        yield taken()


def _show(label: str, look: Look | None, ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(FIRST_S):
        return
    # Without a length the bar moves and is never full.
    steps: Iterable[str] = repeat("") if look is None else ()
    with click.progressbar(
        steps,
        label=label,
        file=sys.stderr,
        show_eta=False,
        show_pos=look is not None,
        item_show_func=_as_it_is,
    ) as bar:
        over = False
        while True:
            if look is None:
                bar.make_step(1)
            else:
                # If the node does not answer now, the next look asks again.
                with suppress(Failure):
                    bar.pos, bar.length = look()
            bar.current_item = f"{time.monotonic() - began:.0f} s"
            bar.render_progress()
            if over:
                return
            over = ended.wait(LOOK_INTERVAL_S)


def _as_it_is(passed: str | None) -> str | None:
    return passed
