"""A running node reads certificates again when they change on disk, and the configuration at SIGHUP. An
operator may change some options for as long as it runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Protocol

import trio

from amqp_server import logs
from amqp_server.config import Config, InvalidOption
from amqp_server.resources import ResourceWatch
from amqp_server.startup.options import Reread

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
        reread: Reread | None,
    ) -> None:
        #: The current configuration, except options that only take effect at a start.
        self._config = config
        #: Where values come from that an operator has changed in the running node, by option.
        self._changed: dict[str, str] = {}
        #: The configuration that the parts of the node were made with.
        self._began_with = config
        self._resources = resources
        self._log_limit = log_limit
        self._reread = reread
        #: Gets the name of an option that an operator has changed in the running node, and the configuration
        #: that has it; None if the option is as configured again.
        self.tell: Callable[[str, Config | None], None] = lambda name, config: None
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

    def change(self, name: str, value: object, source: str) -> None:
        """Change an option until the next start, for an operator. Raises InvalidOption."""
        self.take(name, value, source)
        self.tell(name, self._config)

    def take(self, name: str, value: object, source: str) -> None:
        """Change an option in this process only. Raises InvalidOption."""
        config = replace(self._config, **{name: value})  # type: ignore[arg-type]
        self._apply[name](config)
        self._config = config
        self._changed[name] = source

    def in_force(self) -> list[dict[str, Any]]:
        """Return all options with the values in force, and where these come from; no secrets."""
        sources = {} if self._reread is None else self._reread.sources
        now, began = dict(self._config.shown()), dict(self._began_with.shown())
        rows = []
        for declared in fields(self._config):
            name = declared.name
            source = self._changed.get(name) or sources.get(name, "default")
            row = {"name": name, "value": _without_login((now if name in self._apply else began)[name])}
            row |= {"source": source, "unit": declared.metadata["unit"]}
            if name not in self._apply and now[name] != began[name]:
                row["at_next_start"] = _without_login(now[name])
            rows.append(row)
        return rows

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
                self._changed.pop(name, None)
                self.tell(name, None)
        later = [name for name in changed if name not in self._apply]
        logger.info("the configuration was reloaded: %s", ", ".join(changed) or "nothing has changed")
        if later:
            logger.warning("takes effect only at the next start: %s", ", ".join(later))


#: The user and the password in an address.
_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")


def _without_login(value: object) -> object:
    return _LOGIN.sub("***@", value) if isinstance(value, str) else value
