"""A running node reads certificates again when they change on disk, and the configuration at SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Protocol

import trio

from amqp_server import logs
from amqp_server.config import Config, InvalidOption
from amqp_server.resources import ResourceWatch

logger = logging.getLogger("mqd")


class Reloaded(Protocol):
    def reload(self) -> None:
        """Read the files again if they have changed. If they cannot be used, keep the earlier contents."""


class Reload:
    def __init__(
        self,
        config: Config,
        resources: ResourceWatch,
        log_limit: logs.LineLimit,
        reread: Callable[[], Config] | None,
    ) -> None:
        #: The current configuration, except options that only take effect at a start.
        self._config = config
        self._resources = resources
        self._log_limit = log_limit
        self._reread = reread
        self.certificates: list[Reloaded] = []
        #: Options that take effect in a running node.
        self._apply: dict[str, Callable[[Config], None]] = {
            "log_level": lambda config: logs.set_level(config.log_level),
            "log_format": lambda config: logs.begin(
                config.log_level, config.log_format, config.log_queue_lines_max
            ),
            "log_lines_max": self._set_log_lines,
            "memory_limit": lambda config: resources.set_memory_limit(config.memory_limit_bytes),
            "disk_free_min_bytes": self._set_disk_free,
        }

    def _set_log_lines(self, config: Config) -> None:
        self._log_limit.lines_max = config.log_lines_max

    def _set_disk_free(self, config: Config) -> None:
        self._resources.disk_free_min_bytes = config.disk_free_min_bytes
        self._resources.look()

    async def watch_certificates(self) -> None:
        while True:
            await trio.sleep(self._config.tls_check_s)
            self._reload_certificates()

    def _reload_certificates(self) -> None:
        for each in self.certificates:
            each.reload()

    def reload(self) -> None:
        """Read the configuration again, and the files that it names. The node continues even if the
        configuration is invalid.
        """
        self._reload_certificates()
        if self._reread is None:
            return
        try:
            config = self._reread()
        except InvalidOption as error:
            logger.error("the configuration was not reloaded: %s", error)
            return
        before, self._config = self._config, config
        changed = [
            declared.name
            for declared in fields(config)
            if getattr(config, declared.name) != getattr(before, declared.name)
        ]
        for name in changed:
            if name in self._apply:
                self._apply[name](config)
        later = [name for name in changed if name not in self._apply]
        logger.info("the configuration was reloaded: %s", ", ".join(changed) or "nothing has changed")
        if later:
            logger.warning("takes effect only at the next start: %s", ", ".join(later))
