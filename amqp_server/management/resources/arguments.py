"""The arguments that there are, for forms that declare queues and exchanges and set policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from amqp_server.broker.declared.argument_table import ROWS
from amqp_server.broker.declared.exchange_arguments import ROWS as EXCHANGE_ROWS
from amqp_server.broker.declared.policy import APPLIES, EXCHANGE, EXCHANGE_KEYS, KEYS, QUEUES
from amqp_server.management.request.call import Call

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def _field(
    name: str, types: Sequence[str], kind: str, values: str | tuple[str, ...], text: str
) -> dict[str, Any]:
    """Describe one field: the types of queues or exchanges that it is for, what it asks for (`boolean`,
    `number`, `choice` or `text`), its values, and what it does.
    """
    choices = values if isinstance(values, tuple) else ()
    hint = "" if choices or kind == "boolean" else _plain(str(values))
    return {
        "name": name,
        "types": list(types),
        "kind": kind,
        "choices": list(choices),
        "values": hint,
        "text": _plain(text),
    }


def _plain(markdown: str) -> str:
    return _LINK.sub(r"\1", markdown).replace("`", "")


def _policy_fields() -> list[dict[str, Any]]:
    found = [
        _field(
            row.policy_key, sorted(QUEUES - KEYS[row.policy_key].unsupported), row.kind, row.values, row.text
        )
        for row in ROWS
        if row.policy is not None
    ]
    found += [
        _field(row.name, [EXCHANGE], row.kind, row.values, row.text)
        for row in EXCHANGE_ROWS
        if row.name in EXCHANGE_KEYS
    ]
    for field in found:
        field["operators"] = bool(KEYS[field["name"]].operators)
    return found


async def arguments(call: Call) -> dict[str, Any]:
    return {
        "queues": [_field(row.name, [*row.types], row.kind, row.values, row.text) for row in ROWS],
        "exchanges": [_field(row.name, row.types, row.kind, row.values, row.text) for row in EXCHANGE_ROWS],
        "policies": _policy_fields(),
        "apply-to": {name: sorted(kinds) for name, kinds in APPLIES.items()},
    }
