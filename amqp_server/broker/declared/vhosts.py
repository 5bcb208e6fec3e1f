"""The records of virtual hosts. The queues and exchanges of a virtual host are in `vhost`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from amqp_server.broker.declared.queue_types import DEFAULT_TYPES
from amqp_server.broker.metadata import Metadata, decode, encode
from amqp_server.errors import NotAllowed

TABLE = "vhosts"
NAME_BYTES_MAX = 255


class VhostRecord(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    #: Type of durable queues that are declared without one; empty: the node's configuration decides.
    default_queue_type: str = ""
    #: True if an administrator has to lift the protection before anybody can delete it.
    protected_from_deletion: bool = False


class VhostRefused(ValueError):
    """A vhost cannot be made; the text has the reason."""


class NoSuchVhost(LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f"Virtual host '{name}' does not exist")


class Vhosts:
    def __init__(
        self, metadata: Metadata, *, vhosts_max: int = 1_000, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._metadata = metadata
        self._vhosts_max = vhosts_max
        self._changed = changed
        self._vhosts = {
            vhost.name: vhost
            for key, value in metadata.items(TABLE)
            for vhost in [decode(TABLE, key, value, VhostRecord)]
        }

    def __contains__(self, name: object) -> bool:
        return name in self._vhosts

    def __len__(self) -> int:
        return len(self._vhosts)

    def __iter__(self) -> Iterator[VhostRecord]:
        return iter(sorted(self._vhosts.values(), key=lambda vhost: vhost.name))

    def get(self, name: str) -> VhostRecord | None:
        return self._vhosts.get(name)

    def require(self, name: str) -> VhostRecord:
        """Return the record of a vhost, for the management API."""
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise NoSuchVhost(name)
        return vhost

    def check_open(self, name: str) -> None:
        """For connection.open: raise NotAllowed unless the vhost exists."""
        if name not in self._vhosts:
            raise NotAllowed(f"vhost {name} not found")

    def prepare(
        self,
        name: str,
        description: str = "",
        tags: tuple[str, ...] = (),
        default_queue_type: str = "",
        *,
        protected: bool | None = None,
    ) -> VhostRecord:
        """Check a new or changed vhost, which stays protected or not unless told. Raises VhostRefused."""
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
            raise VhostRefused(
                f"the name of a vhost must have 1 to {NAME_BYTES_MAX} bytes, all of them printable characters"
            )
        if default_queue_type and default_queue_type not in DEFAULT_TYPES:
            raise VhostRefused(
                f"default queue type '{default_queue_type}' is not one of: {', '.join(DEFAULT_TYPES)}"
            )
        if name not in self._vhosts and len(self._vhosts) >= self._vhosts_max:
            raise VhostRefused(f"there are {len(self._vhosts)} vhosts already, the maximum (vhosts_max)")
        if protected is None:
            before = self._vhosts.get(name)
            protected = before is not None and before.protected_from_deletion
        return VhostRecord(name, description, tags, default_queue_type, protected)

    def store(self, vhost: VhostRecord) -> bool:
        """Make a vhost, or change its description; return whether it is new."""
        new = vhost.name not in self._vhosts
        self._vhosts[vhost.name] = vhost
        self._metadata.put(TABLE, vhost.name, encode(vhost))
        self._changed()
        return new

    def put(self, name: str, description: str = "", tags: tuple[str, ...] = ()) -> bool:
        """Check and store a vhost."""
        return self.store(self.prepare(name, description, tags))

    def delete(self, name: str) -> None:
        self.require(name)
        del self._vhosts[name]
        self._metadata.delete(TABLE, name)
        self._changed()
