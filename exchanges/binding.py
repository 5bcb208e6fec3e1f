from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from exchanges.field import table_token

DestinationKind = Literal["queue", "exchange"]


@dataclass(frozen=True, eq=False, slots=True)
class Binding:
    """One edge of the topology. All five fields are its identity, the arguments by value."""

    source: str
    destination: str
    kind: DestinationKind
    routing_key: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    identity: tuple[Hashable, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        arguments = table_token(self.arguments) if self.arguments else ()
        identity = (self.source, self.destination, self.kind, self.routing_key, arguments)
        object.__setattr__(self, "identity", identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def arguments_token(self) -> Hashable:
        return self.identity[4]

    @property
    def order(self) -> tuple[str, str, str, str]:
        """A sort key that no restart changes, where the choice depends on the order of the bindings."""
        return (self.kind, self.destination, self.routing_key, repr(self.identity[4]))
