"""Values of headers as text, as the Spark connector has them: text unchanged, everything else as JSON."""

from __future__ import annotations

import json
import math
from datetime import datetime
from decimal import Decimal


def as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> object:
    """Return the value with what JSON has: numbers that JSON has not become text."""
    match value:
        case bytes() | bytearray():
            return value.decode(errors="replace")
        case datetime():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


__all__ = ["as_text"]
