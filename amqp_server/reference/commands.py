"""The page of commands: what the programs' own parsers take."""

from __future__ import annotations

from collections.abc import Iterator

import click

from amqp_server import backup
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.main import COMMANDS
from amqp_server.mqctl.sections import TITLES, sections
from amqp_server.reference.markdown import cell, code, head, prose, table

#: Of every command.
_COMMON = {"-q", "--quiet", "--formatter", "-h", "--help"}


def page() -> str:
    lines = head(
        "Commands",
        "`mqctl` uses the management API of a node; `mqd-backup` copies a data directory. The options of `mqd` itself are on "
        "[a page of their own](options.md).",
        "## mqctl",
    )
    lines += _usage(mqctl, "mqctl")
    lines += _options(mqctl, common=True)
    lines += prose(
        "Each option may also be a variable in the environment: `MQCTL_URL`, `MQCTL_USER`. `-q` and `--formatter` may also come after "
        "the command. The exit code is 0 for success, 64 for a wrong command line, 65 for a refused value, 67 for an unknown user, "
        "69 if the node does not answer or refuses, 70 for an object that exists already, 77 for a refused login."
    )
    modules = [each.__name__.rpartition(".")[2] for each in COMMANDS]
    if {*modules} != {*TITLES}:
        raise LookupError(f"modules of mqctl without a title, or titles without a module: {modules}")
    for title, commands in sections(list(_leaves(mqctl, ""))):
        lines += [f"## {title}", ""]
        for name, command in commands:
            lines += _command(name, command)
    lines += ["## mqd-backup", ""]
    lines += [*_text(backup.command), *_usage(backup.command, "mqd-backup"), *_options(backup.command)]
    return "\n".join(lines)


def _leaves(group: click.Group, before: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{before}{name} ")
        else:
            yield before + name, command


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
