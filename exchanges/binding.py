"""Bindings: the edges of the topology."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from exchanges.field import table_token

DestinationKind = Literal["queue", "exchange"]


@dataclass(frozen=True, eq=False, slots=True)
class Binding:
    """One edge of the topology. All five fields are its identity, the arguments by value.

    There may be 100,000 bindings, so it stores nothing that can be computed quickly from the fields.
    """

    source: str
    destination: str
    kind: DestinationKind
    routing_key: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    arguments_token: Hashable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments_token", table_token(self.arguments) if self.arguments else ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        return (self.source, self.destination, self.kind, self.routing_key, self.arguments_token)

    @property
    def order(self) -> tuple[str, str, str, str]:
        """A sort key that does not change with a restart, for exchanges whose choice depends on the order of
        the bindings.
        """
        return (self.kind, self.destination, self.routing_key, repr(self.arguments_token))
