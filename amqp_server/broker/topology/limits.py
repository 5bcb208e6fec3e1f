"""Limits that operators set: on connections and queues in a vhost, and on connections and channels of a user.

They are stored as parameters. A value below zero means no limit. While there is a limit, the nodes of a
cluster tell each other how many connections and channels they have; see amqp_server.cluster.client_counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from amqp_server.broker.declared.parameters import GLOBAL, USER_LIMITS, VHOST_LIMITS, Parameters
from amqp_server.errors import NotAllowed
from exchanges.field import erlang_term

#: Name of the parameter with the limits of a vhost.
LIMITS = "limits"
CONNECTIONS, QUEUES, CHANNELS = "max-connections", "max-queues", "max-channels"
OF_VHOSTS = frozenset({CONNECTIONS, QUEUES})
OF_USERS = frozenset({CONNECTIONS, CHANNELS})

#: Kinds of counts: connections per user, connections per vhost, channels per user. A user is an identity.
OF_USER, IN_VHOST, CHANNELS_OF = range(3)

Values = dict[str, int]


def problem(values: object, known: Collection[str], title: str) -> str | None:
    """Return the error in these limits, in RabbitMQ's words."""
    if not isinstance(values, dict):
        return f"{title} should be a list, actually was {erlang_term(values)}"
    for name in sorted(known):
        value = values.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            return f"{name} should be a number, actually was {erlang_term(value)}"
    unknown = [name for name in values if name not in known]
    if unknown:
        pairs = ",".join(f'{{<<"{name}">>,{erlang_term(values[name])}}}' for name in unknown)
        return f"Unrecognised terms [{pairs}] in {title}"
    return None


class OperatorLimits:
    """Checks the limits, with RabbitMQ's errors."""

    def __init__(self, counted: Callable[[int, str], int], parameters: Parameters) -> None:
        """`counted` returns a count over all nodes; see Sessions.counted."""
        self._counted = counted
        self._parameters = parameters
        self._known: dict[tuple[str, str, str], Values] = {}
        self._any: bool | None = None
        self._changed: Callable[[], None] = _nothing

    def changed(self, component: str) -> None:
        """A parameter was set or cleared."""
        if component in (VHOST_LIMITS, USER_LIMITS):
            self._known.clear()
            self._any = None
            self._changed()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a limit was set or cleared."""
        self._changed = changed

    @property
    def any(self) -> bool:
        """True if there may be a limit of connections or channels."""
        if self._any is None:
            self._any = _limited(self._parameters)
        return self._any

    def of_vhost(self, name: str) -> Values:
        return self._values(name, VHOST_LIMITS, LIMITS)

    def of_user(self, name: str) -> Values:
        return self._values(GLOBAL, USER_LIMITS, name)

    def _values(self, vhost: str, component: str, name: str) -> Values:
        at = (vhost, component, name)
        found = self._known.get(at)
        if found is None:
            record = self._parameters.get(*at)
            found = self._known[at] = {} if record is None else dict(record.decoded)
        return found

    def check_connection(self, user: str, identity: str, vhost: str) -> None:
        """Check that the user may open one more connection to the vhost. Limits of users are those of the
        broker's own users.
        """
        limit = self.of_vhost(vhost).get(CONNECTIONS, -1)
        if 0 <= limit <= self._counted(IN_VHOST, vhost):
            raise NotAllowed(
                f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            )
        limit = self.of_user(identity).get(CONNECTIONS, -1)
        if 0 <= limit <= self._counted(OF_USER, identity):
            raise NotAllowed(
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )

    def check_channel(self, user: str, identity: str) -> None:
        limit = self.of_user(identity).get(CHANNELS, -1)
        if 0 <= limit <= self._counted(CHANNELS_OF, identity):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
            )

    def queues_of_vhost(self, vhost: str) -> int:
        """Return the number of queues that the vhost may have, below zero for any number. See room."""
        return self.of_vhost(vhost).get(QUEUES, -1)


def _limited(parameters: Parameters) -> bool:
    for record in parameters:
        if record.component in (VHOST_LIMITS, USER_LIMITS):
            values = record.decoded
            if values.get(CONNECTIONS, -1) >= 0 or values.get(CHANNELS, -1) >= 0:
                return True
    return False


def _nothing() -> None: ...
