"""Who may use how many of the descriptors that the process may have.

Without shares, connections could use up all of them, and the node could not open its own files, reach other
nodes, or let an administrator in. So some are reserved for the node itself, each management listener has its
share, and the rest is for AMQP connections, those of shovels included.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from amqp_server.broker.alarms import Alarms
from amqp_server.config import Config
from persistence.own_process import files_limit, open_files

logger = logging.getLogger("mqd.node")

#: RabbitMQ's name of the alarm.
ALARM: Final = "file_descriptor_limit"
#: Descriptors that a node opens between the time of `Descriptors` and its ready line.
MORE_OF_ITS_OWN: Final = 24
#: A management listener has this part of the descriptors, and at least so many unless there are very few.
HTTP_SHARE, HTTP_MIN = 8, 8
#: The alarm ends when this part of the clients' share is free.
FREE_SHARE: Final = 20


class Descriptors:
    """The shares, the clients' use of theirs, and the alarm."""

    def __init__(self, config: Config, alarms: Alarms, limit: int | None = None) -> None:
        self._config = config
        self._alarms = alarms
        self.limit = files_limit() if limit is None else limit
        #: For the node itself.
        self.reserved = max(
            min(config.files_reserved, self.limit // 2), min(open_files(), self.limit // 4) + MORE_OF_ITS_OWN
        ) + _for_links(config, self.limit)
        left = max(self.limit - self.reserved, 4)
        listeners = bool(config.http) + bool(config.metrics)
        #: Connections of each management listener.
        self.http_max = min(config.http_connections_max, max(min(HTTP_MIN, left // 4), left // HTTP_SHARE))
        #: Descriptors of AMQP connections.
        self.clients_max = max(left - listeners * self.http_max, 1)
        self.clients = 0
        self._refused = False

    @property
    def connections_max(self) -> int:
        """The limit of AMQP connections that is in force."""
        return min(self._config.connections_max, self.clients_max)

    def tell(self) -> None:
        """Log the limits in force, at start."""
        said = (
            f"{self.limit} descriptors: {self.connections_max} connections, {self.http_max} management connections, "
            f"{self.reserved} for the node itself"
        )
        wanted = self._config.connections_max
        if self.connections_max == wanted:
            logger.info("%s", said)
            return
        logger.warning(
            "connections_max is %d in force, not %d, because the limit of open files is too low (%s): raise it with "
            "LimitNOFILE or ulimit -n",
            *(self.connections_max, wanted, said),
        )

    @property
    def has_room(self) -> bool:
        """True if a descriptor is left for a client."""
        return self.clients < self.clients_max

    def take(self) -> bool:
        """Take a descriptor for a client; return False if none is left for it."""
        if not self.has_room:
            self._refused = True
            self.look()
            return False
        self.clients += 1
        return True

    def take_given(self) -> None:
        """Count a client whose descriptor another process has given to this one."""
        self.clients += 1

    def give(self) -> None:
        self.clients -= 1

    def failed(self, error: OSError) -> None:
        """Note an error of a call that opens something."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._refused = True
            self.look()

    def look(self) -> None:
        """Raise or clear the alarm."""
        used, refused = open_files(), self._refused
        self._refused = False
        raised = ALARM in self._alarms.names()
        if refused or used >= self.limit - self.reserved // 4:
            measured = (
                f"{used} of {self.limit} descriptors are in use, {self.clients} of them by clients (at most "
                f"{self.clients_max}); new connections are refused until it clears"
            )
            if not raised:
                logger.warning("file descriptor limit alarm set: %s", measured)
            self._alarms.set_limit(ALARM, True, measured)
        elif raised and self._has_room(used):
            logger.warning("file descriptor limit alarm cleared: %d of %d are in use", used, self.limit)
            self._alarms.set_limit(ALARM, False)

    def _has_room(self, used: int) -> bool:
        free = max(self.clients_max // FREE_SHARE, 1)
        return self.clients <= self.clients_max - free and used <= self.limit - self.reserved // 2


def _for_links(config: Config, limit: int) -> int:
    """Return the descriptors for links to other nodes, and for connections that may become links."""
    if not config.peers:
        return 0
    # Each pool of connections before authentication has its own limit; and a link that ends may be followed
    # by the next one before its socket is closed.
    return min(3 * config.cluster_strangers_max + 4 * len(config.peers), limit // 4)


__all__ = ["ALARM", "Descriptors"]
