"""The arguments that there are, for forms that declare queues and exchanges, bind, and set policies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from amqp_server.broker.declared.argument_table import ROWS, Argument
from amqp_server.broker.declared.exchange_arguments import BINDING_ROWS, ExchangeArgument
from amqp_server.broker.declared.exchange_arguments import ROWS as EXCHANGE_ROWS
from amqp_server.broker.declared.policy import APPLIES, EXCHANGE, EXCHANGE_KEYS, KEYS, QUEUES
from amqp_server.management.request.call import Call

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def _field(name: str, types: Iterable[str], row: Argument | ExchangeArgument) -> dict[str, Any]:
    """Describe a field of a form: the types of queues or exchanges that it is for, what it asks for
    (`boolean`, `number`, `choice` or `text`), its values, and what it does.
    """
    choices = row.values if isinstance(row.values, tuple) else ()
    return {
        "name": name,
        "types": list(types),
        "kind": row.kind,
        "choices": list(choices),
        "values": "" if choices or row.kind == "boolean" else _plain(str(row.values)),
        "text": _plain(row.text),
    }


def _plain(markdown: str) -> str:
    return _LINK.sub(r"\1", markdown).replace("`", "")


def _policy_fields() -> list[dict[str, Any]]:
    rows: dict[str, tuple[Iterable[str], Argument | ExchangeArgument]] = {
        row.name: ([EXCHANGE], row) for row in EXCHANGE_ROWS if row.name in EXCHANGE_KEYS
    }
    for row in ROWS:
        if row.policy is not None:
            rows[row.policy_key] = sorted(QUEUES - KEYS[row.policy_key].unsupported), row
    return [
        _field(key, types, row) | {"operators": bool(KEYS[key].operators)}
        for key, (types, row) in rows.items()
    ]


async def arguments(call: Call) -> dict[str, Any]:
    return {
        "queues": [_field(row.name, row.types, row) for row in ROWS],
        "exchanges": [_field(row.name, row.types, row) for row in EXCHANGE_ROWS],
        "bindings": [_field(row.name, row.types, row) for row in BINDING_ROWS],
        "policies": _policy_fields(),
        "apply-to": {name: sorted(kinds) for name, kinds in APPLIES.items()},
    }
