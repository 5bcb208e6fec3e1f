"""What nodes ask each other for one answer of the whole cluster, as data. See other_nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Part(msgspec.Struct):
    """The part of another node's list that is wanted, if not all of it."""

    #: One column of all rows, as `sort` names it; empty for whole rows.
    column: str = ""
    #: (vhost, name) of the rows that are wanted, None for all.
    rows: list[tuple[str, str]] | None = None


class Question(msgspec.Struct):
    method: str
    #: Path as in endpoints.ENDPOINTS.
    path: str
    parts: dict[str, str]
    query: dict[str, str]
    user: str
    reason: str = ""
    #: Scopes of the user's token or from the HTTP backend, which the other node has not seen. `tags` are used
    #: only together with scopes.
    scopes: list[str] | None = None
    tags: list[str] = []
    #: Nodes of earlier versions ignore this field.
    part: Part | None = None
    #: The body of a change, as JSON.
    body: str = ""


class Told(msgspec.Struct):
    """The last part of an answer; those before it are arrays of rows."""

    status: int
    body: Any = None


class Others(Protocol):
    """The other nodes; see amqp_server.cluster.api_questions."""

    def names(self) -> Sequence[str]:
        """Return all nodes of the cluster except this one, up or down."""

    async def ask(self, node: str, question: bytes) -> list[bytes] | None:
        """Return the parts of its answer, None if there is none."""
