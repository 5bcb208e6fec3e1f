"""What an operator has changed in the running node: it holds for all its workers, also after they have ended.

The worker that the operator asks writes it onto the board and lets the others look there. Each looks from
time to time in any case: one that is stopped, or about to serve, learns of it later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from amqp_server.config import Config
from amqp_server.draining import Draining
from amqp_server.startup.reload import Reload
from amqp_server.workers.board import DISK_FREE_MIN, DRAINED, LOG_LEVEL, MEMORY_LIMIT
from amqp_server.workers.worker import Worker

#: Interval of looks, s.
LOOK_S: Final = 0.5
SOURCE: Final = "changed in the running node"
#: By option: its word on the board, how the word follows from the configuration, and how the value follows
#: from the word.
_OPTIONS: Final[dict[str, tuple[int, Callable[[Config], int], Callable[[int], object]]]] = {
    "memory_limit": (MEMORY_LIMIT, lambda config: config.memory_limit_bytes, str),
    "disk_free_min_bytes": (DISK_FREE_MIN, lambda config: config.disk_free_min_bytes, int),
    "log_level": (
        LOG_LEVEL,
        lambda config: logging.getLevelNamesMapping()[config.log_level.upper()],
        lambda level: logging.getLevelName(level).lower(),
    ),
}


class NodeSettings:
    def __init__(self, worker: Worker, reload: Reload, draining: Draining) -> None:
        self._worker = worker
        self._reload = reload
        self._draining = draining
        self._seen: list[int | None] = [None] * len(worker.board.settings())
        if worker.reloaded:
            # The parent forks workers with the configuration of its own start.
            reload.reload()
        self.look()
        reload.tell, draining.tell = self._option_changed, self._drained

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Take over what an operator has set in another worker."""
        before, self._seen = self._seen, self._worker.board.settings()
        now = self._seen
        for name, (which, _, value_of) in _OPTIONS.items():
            word = now[which]
            # Each worker reads the configuration again itself, so None tells it nothing.
            if word is not None and word != before[which]:
                self._reload.take(name, value_of(word), SOURCE)
        if now[DRAINED] is not None and now[DRAINED] != before[DRAINED]:
            self._draining.take(bool(now[DRAINED]))

    def _option_changed(self, name: str, config: Config | None) -> None:
        """An operator has changed an option here; or it is as configured again, if `config` is None."""
        if name in _OPTIONS:
            which, word_of, _ = _OPTIONS[name]
            self._set(which, None if config is None else word_of(config))

    def _drained(self, drained: bool) -> None:
        self._set(DRAINED, int(drained))

    def _set(self, which: int, word: int | None) -> None:
        self._worker.board.set(which, word)
        self._seen[which] = word
        if word is not None:
            self._worker.settings_changed()
