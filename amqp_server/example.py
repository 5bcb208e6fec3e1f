"""The example configuration: `python -m amqp_server.example > deploy/mqd.example.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from amqp_server.config import SECRETS, Config, allowed_values

HEAD = """\
# Every option of mqd with its default. mqd --config FILE reads such a file; take away the # of what you change.
# The command line (--data-dir) goes before the environment (MQD_DATA_DIR), and both go before this file.
"""


def example() -> str:
    """Return the whole file."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for declared in fields(Config):
        about = declared.metadata
        if about["section"]:
            yield f"\n## {about['section']}\n"
        allowed = f" ({allowed_values(declared)})" if about["low"] is not None or about["choices"] else ""
        unit = f" [{about['unit']}]" if about["unit"] and not allowed else ""
        yield f"\n# {about['text']}{allowed}{unit}\n"
        value = "a password" if declared.name in SECRETS else declared.default
        yield f"#{declared.name} = {_toml(value)}\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


if __name__ == "__main__":
    print(example(), end="")
