"""The page of commands: what the programs' own parsers take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from amqp_server import backup
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.main import COMMANDS
from amqp_server.reference.markdown import cell, code, head, prose, table

#: The modules of mqctl, in the order of the page.
TITLES = {
    "node": "The node",
    "diagnostics": "Checks and diagnostics",
    "lists": "Lists",
    "explain": "Why an object is as it is",
    "topology": "Queues, exchanges, messages",
    "users": "Users, virtual hosts, permissions",
    "policies": "Policies",
    "parameters": "Parameters and limits",
    "definitions": "Definitions",
    "shovels": "Shovels",
    "cluster": "Clusters",
    "completion": "The shell",
}
#: Of every command.
_COMMON = {"-q", "--quiet", "--formatter", "-h", "--help"}


def page() -> str:
    lines = head(
        "Commands",
        "`mqctl` talks to the management API, `mqd-backup` copies a data directory. The options of `mqd` itself are "
        "[a page of their own](options.md).",
        "## mqctl",
    )
    lines += _usage(mqctl, "mqctl")
    lines += _options(mqctl, common=True)
    lines += prose(
        "Each option is read from the environment as well: `MQCTL_URL`, `MQCTL_USER`. `-q` and `--formatter` may stand behind the "
        "command, too. The code is 0 if all is well, 64 for a wrong command line, 65 for a value that is refused, 67 for a user that "
        "is not there, 69 if the node does not answer or refuses, 70 for what is there already, 77 for a refused login."
    )
    commands = dict(_leaves(mqctl, ""))
    modules = [each.__name__.rpartition(".")[2] for each in COMMANDS]
    if {*modules} != {*TITLES}:
        raise LookupError(f"modules of mqctl without a title here, or the other way round: {modules}")
    for module, title in TITLES.items():
        lines += [f"## {title}", ""]
        for name in sorted(commands):
            if _module(commands[name]) == module:
                lines += _command(name, commands[name])
    lines += ["## mqd-backup", ""]
    lines += [*_text(backup.command), *_usage(backup.command, "mqd-backup"), *_options(backup.command)]
    return "\n".join(lines)


def _leaves(group: click.Group, before: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{before}{name} ")
        else:
            yield before + name, command


def _module(command: click.Command) -> str:
    callback: Any = command.callback
    while hasattr(callback, "__wrapped__"):
        callback = callback.__wrapped__
    return str(getattr(callback, "__module__", "")).rpartition(".")[2]


def _command(name: str, command: click.Command) -> list[str]:
    return [f"### {name}", "", *_text(command), *_usage(command, f"mqctl {name}"), *_options(command)]


def _text(command: click.Command) -> list[str]:
    paragraphs = (" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))
    return [line for paragraph in paragraphs for line in (cell(paragraph), "")]


def _usage(command: click.Command, name: str) -> list[str]:
    """Arguments by name: what is told of options is in the table."""
    words = [name] + (["[OPTIONS]"] if any(_shown(command, common=name == "mqctl")) else [])
    for param in command.params:
        if isinstance(param, click.Argument):
            word = param.metavar or (param.name or "").upper()
            word += "..." if param.nargs == -1 else ""
            words.append(word if param.required else f"[{word}]")
    if isinstance(command, click.Group):
        words.append("COMMAND ...")
    return ["```text", " ".join(words), "```", ""]


def _shown(command: click.Command, *, common: bool) -> Iterator[click.Option]:
    for param in command.params:
        if isinstance(param, click.Option) and (common or not _COMMON.issuperset(param.opts)):
            yield param


def _options(command: click.Command, *, common: bool = False) -> list[str]:
    rows = [
        [_names(param), _default(param), cell(param.help or "")] for param in _shown(command, common=common)
    ]
    return table(["option", "default", ""], rows) if rows else []


def _names(option: click.Option) -> str:
    names = ", ".join(map(code, option.opts))
    if option.secondary_opts:
        names += " / " + ", ".join(map(code, option.secondary_opts))
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names}: {', '.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or option.type.name.upper()}"


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        return ""
    return code(value)
