"""Runtime parameters as in RabbitMQ: named JSON values of a component in a vhost.

Policies, operator policies and limits of vhosts are parameters. Parameters without a component are global.
Limits of users, and the traced vhosts, are stored here, too, but clients do not see them as parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from amqp_server.broker.declared.records import key
from amqp_server.broker.metadata import Metadata, decode, encode

TABLE = "parameters"

#: Components of vhosts.
POLICY, OPERATOR_POLICY, VHOST_LIMITS = "policy", "operator_policy", "vhost-limits"
SHOVEL = "shovel"
#: Component of the limits of users, which have no vhost; the parameter's name is that of the user.
USER_LIMITS = "user-limits"
#: Component of traced vhosts; the parameter's name is that of the vhost.
TRACING = "tracing"
#: The component and the vhost of global parameters.
GLOBAL = ""

#: Global parameter with the name of the cluster.
CLUSTER_NAME = "cluster_name"
#: Global parameter with the id of the cluster.
CLUSTER_ID = "internal_cluster_id"

NAME_BYTES_MAX = 255

Key = tuple[str, str, str]


class ParameterRecord(msgspec.Struct, frozen=True):
    vhost: str
    component: str
    name: str
    #: JSON.
    value: str

    @property
    def key(self) -> Key:
        return self.vhost, self.component, self.name

    @property
    def decoded(self) -> Any:
        return msgspec.json.decode(self.value)


class ParameterRefused(ValueError):
    """A parameter cannot be set; the text has the reason."""


class NoRoomForParameter(ParameterRefused):
    """There are as many parameters of this kind as there may be."""


class Parameters:
    def __init__(
        self,
        metadata: Metadata,
        *,
        parameters_max: int = 10_000,
        value_bytes_max: int = 65_536,
        bytes_max: int = 1 << 26,
        changed: Callable[[str, str, str], None] = lambda vhost, component, name: None,
    ) -> None:
        """`changed` is called with the vhost, the component and the name of each parameter that was set or
        cleared.
        """
        self._metadata = metadata
        self._parameters_max = parameters_max
        self._value_bytes_max = value_bytes_max
        self._bytes_max = bytes_max
        #: Bytes of all values.
        self._bytes = 0
        self._changed = changed
        self._records: dict[Key, ParameterRecord] = {}
        #: The same parameters by vhost and component, then by name.
        self._groups: dict[tuple[str, str], dict[str, ParameterRecord]] = {}
        for stored, value in metadata.items(TABLE):
            self._put(decode(TABLE, stored, value, ParameterRecord))

    def _put(self, record: ParameterRecord) -> None:
        self._bytes += len(record.value) - self._value_bytes(record.key)
        self._records[record.key] = record
        self._groups.setdefault((record.vhost, record.component), {})[record.name] = record

    def _value_bytes(self, key: Key) -> int:
        record = self._records.get(key)
        return 0 if record is None else len(record.value)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ParameterRecord]:
        return iter([self._records[each] for each in sorted(self._records)])

    def get(self, vhost: str, component: str, name: str) -> ParameterRecord | None:
        return self._records.get((vhost, component, name))

    @property
    def cluster_name(self) -> str:
        """The name of the cluster that an operator has set, or an empty string."""
        record = self._records.get((GLOBAL, GLOBAL, CLUSTER_NAME))
        name = record.decoded if record is not None else ""
        return name if isinstance(name, str) else ""

    def of(self, vhost: str, component: str) -> list[ParameterRecord]:
        """Return the parameters of a component, by name."""
        found = self._groups.get((vhost, component), {})
        return [found[name] for name in sorted(found)]

    def prepare(self, vhost: str, component: str, name: str, value: object) -> ParameterRecord:
        """Check a new parameter, except the meaning of its value. Raises ParameterRefused."""
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
            raise ParameterRefused(
                f"the name of a parameter must have 1 to {NAME_BYTES_MAX} bytes, all of them printable "
                "characters"
            )
        text = msgspec.json.encode(value).decode()
        if len(text.encode()) > self._value_bytes_max:
            raise ParameterRefused(
                f"the value of a parameter may have {self._value_bytes_max} bytes at most "
                "(parameter_bytes_max)"
            )
        record = ParameterRecord(vhost, component, name, text)
        if record.key not in self._records and len(self._records) >= self._parameters_max:
            raise NoRoomForParameter(
                f"there are {len(self._records)} parameters and policies already, the maximum (parameters_max)"
            )
        if self._bytes + len(text) - self._value_bytes(record.key) > self._bytes_max:
            raise NoRoomForParameter(
                f"parameters and policies have {self._bytes} bytes already, {len(text)} more exceed the "
                "maximum (parameters_bytes_max)"
            )
        return record

    def has_room_after(self, count: int, value_bytes: int) -> bool:
        """True if there is room for one more parameter after so many new ones with so many bytes."""
        return (
            len(self._records) + count < self._parameters_max
            and self._bytes + value_bytes + self._value_bytes_max <= self._bytes_max
        )

    def store(self, record: ParameterRecord) -> bool:
        """Set a parameter; return whether it is new."""
        before = self._records.get(record.key)
        self._put(record)
        self._metadata.put(TABLE, key(*record.key), encode(record))
        if before != record:
            self._changed(*record.key)
        return before is None

    def clear(self, vhost: str, component: str, name: str) -> bool:
        """Remove a parameter; return whether it existed."""
        gone = self._records.pop((vhost, component, name), None)
        if gone is None:
            return False
        self._bytes -= len(gone.value)
        group = self._groups[vhost, component]
        del group[name]
        if not group:
            del self._groups[vhost, component]
        self._metadata.delete(TABLE, key(vhost, component, name))
        self._changed(vhost, component, name)
        return True

    def clear_vhost(self, vhost: str) -> None:
        for record in [record for record in self if record.vhost == vhost]:
            self.clear(*record.key)
