"""The page of options: every field of `Config`."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

from amqp_server.config import Config, allowed_values, amount
from amqp_server.reference.markdown import cell, code, head, table
from amqp_server.startup.options import ENVIRONMENT


def page() -> str:
    lines = head(
        "Options",
        "Every option is a flag of `mqd`, a variable in the environment, and a line of a TOML file that `mqd --config FILE` "
        "reads, named as the first line of each row. The command line goes before the environment, and both go before the "
        "file. [The example](../../deploy/mqd.example.toml) is such a file with all defaults; `mqd --help-all` lists them, too.",
        "Amounts of bytes are numbers, or texts with a unit: `4194304`, `4MiB`, `2GB`. Lists are comma-separated on the command "
        'line and in the environment, and arrays in the file: `loopback_users = ["guest"]`. Switches are `true` and `false` in '
        "the file.",
    )
    rows: list[list[str]] = []
    for declared in fields(Config):
        if declared.metadata["section"]:
            lines += _section(rows)
            rows = []
            lines += [f"## {declared.metadata['section']}", ""]
        rows.append(_row(declared))
    lines += _section(rows)
    return "\n".join(lines)


def _section(rows: list[list[str]]) -> list[str]:
    return table(["option", "default", "values", ""], rows) if rows else []


def _row(declared: Field[Any]) -> list[str]:
    name = declared.name
    flag = "--" + name.replace("_", "-")
    if isinstance(declared.default, bool):
        flag += f"`, `--no-{flag[2:]}"
    names = f"{code(name)}<br>{code(flag)}<br>{code(ENVIRONMENT + name.upper())}"
    return [names, default(declared), cell(values(declared)), cell(declared.metadata["text"])]


def default(declared: Field[Any]) -> str:
    value: Any = declared.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, str):
        return code(value) if value else ""
    return f"{amount(value, declared)} {_unit(declared)}".rstrip()


def values(declared: Field[Any]) -> str:
    about = declared.metadata
    if about["choices"]:
        return ", ".join(map(code, about["choices"]))
    if about["low"] is not None:
        return f"{amount(about['low'], declared)} to {amount(about['high'], declared)} {_unit(declared)}".rstrip()
    if about["kind"] in ("", "text"):
        return str(about["unit"]) or ("on, off" if isinstance(declared.default, bool) else "text")
    return allowed_values(declared)


def _unit(declared: Field[Any]) -> str:
    unit = str(declared.metadata["unit"])
    return unit.removeprefix("bytes").strip()
