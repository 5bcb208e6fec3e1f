"""Man pages, made of what the references in docs/ are made of: mqd(1), mqctl(1), mqd.toml(5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from typing import Any

import click

from amqp_server.config import SECRETS, VERSION, Config, allowed_values, amount
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.main import COMMANDS
from amqp_server.mqctl.sections import sections

# The import of each module adds its commands to `mqctl`.
assert COMMANDS


def pages() -> dict[str, str]:
    """Return the pages by file name, in troff."""
    return {"mqd.1": _mqd(), "mqctl.1": _mqctl(), "mqd.toml.5": _toml()}


def escaped(text: str) -> str:
    """Return a text that troff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\\&" + text if text.startswith((".", "'")) else text


def _head(name: str, section: int, title: str) -> list[str]:
    return [
        f'.TH {name.upper()} {section} "" "mqd {VERSION}" "mqd"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(title)}",
    ]


def _section(title: str, *paragraphs: str) -> Iterator[str]:
    yield f".SH {title.upper()}"
    for number, text in enumerate(paragraphs):
        if number:
            yield ".PP"
        yield escaped(text)


def _entry(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {escaped(term)}"
    yield escaped(" ".join(text.split()))


def _file(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _mqd() -> str:
    lines = [
        *_head("mqd", 1, "message broker that speaks AMQP 0-9-1"),
        *_section("synopsis", "mqd [OPTION]..."),
        *_section(
            "description",
            "Serves AMQP 0-9-1 and a management API until it gets SIGTERM or SIGINT. It prints one line to standard output "
            "when it serves, and logs to standard error.",
            "Each option may also be a variable in the environment (MQD_DATA_DIR for --data-dir) or a line of a TOML file: "
            "see mqd.toml(5). The command line goes before the environment, and both go before the file.",
        ),
        ".SH OPTIONS",
        *_entry("--config FILE", "TOML file with options."),
        *_entry("--help, --help-all, --version", "Print the usual options, all options, or the version."),
    ]
    for declared in fields(Config):
        if declared.metadata["section"]:
            lines.append(f".SS {escaped(declared.metadata['section'])}")
        lines += _entry("--" + declared.name.replace("_", "-"), _text(declared))
    lines += _section(
        "signals", "SIGHUP: read the configuration and the certificates again. SIGTERM, SIGINT: end in order."
    )
    lines += _section(
        "exit status",
        "0 after SIGTERM; 1 if the node cannot start or write; 2 for a wrong option; 70 after an internal error.",
    )
    lines += _section("see also", "mqctl(1), mqd.toml(5)")
    return _file(lines)


def _text(declared: Field[Any]) -> str:
    default: object = declared.default
    if declared.name in SECRETS:
        default = ""
    elif isinstance(default, bool):
        default = "on" if default else "off"
    elif isinstance(default, tuple):
        default = ",".join(default)
    elif isinstance(default, (int, float)):
        default = amount(default, declared)
    said = [declared.metadata["text"]]
    if declared.metadata["choices"] or declared.metadata["low"] is not None:
        said.append(f"Allowed: {allowed_values(declared)}.")
    if default != "":
        said.append(f"Default: {default}.")
    return " ".join(said)


def _mqctl() -> str:
    lines = [
        *_head("mqctl", 1, "manages a node or a cluster of mqd"),
        *_section("synopsis", "mqctl [OPTION]... COMMAND [ARGUMENT]..."),
        *_section(
            "description",
            "Uses the management API of a node. Commands have the names and the order of arguments of rabbitmqctl.",
        ),
        ".SH OPTIONS",
    ]
    context = click.Context(mqctl, info_name="mqctl")
    lines += _options(mqctl, context)
    for title, commands in sections(sorted(mqctl.commands.items())):
        lines.append(f".SS {escaped(title)}")
        for name, command in commands:
            lines += _command(name, command, context)
    lines += _section(
        "exit status",
        "0 for success; 64 for wrong usage, 65 for refused data, 67 for a user that does not exist, 69 if the node does not "
        "answer or refuses, 70 for an object that exists already, 77 for a refused login.",
    )
    lines += _section(
        "environment",
        "MQCTL_URL, MQCTL_USER, MQCTL_PASSWORD, MQCTL_PASSWORD_FILE: as the options of these names.",
    )
    lines += _section("see also", "mqd(1)")
    return _file(lines)


def _command(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield from _entry(name, command.help or "")
        for inner, each in sorted(command.commands.items()):
            yield from _command(f"{name} {inner}", each, parent)
        return
    context = click.Context(command, parent, info_name=name)
    usage = re.sub(r"^\[OPTIONS\] ?", "", " ".join(command.collect_usage_pieces(context)))
    yield from _entry(f"{name} {usage}".rstrip(), command.help or "")
    own = [param for param in command.params if isinstance(param, click.Option)]
    shared = {"quiet", "formatter"}
    if any(param.name not in shared for param in own):
        yield ".RS"
        yield from _options(command, context, shared)
        yield ".RE"


def _options(command: click.Command, context: click.Context, left_out: Iterable[str] = ()) -> Iterator[str]:
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None and param.name not in left_out:
            yield from _entry(*record)


def _toml() -> str:
    lines = [
        *_head("mqd.toml", 5, "configuration file of mqd"),
        *_section(
            "description",
            "A file in TOML that mqd --config names. Each line is an option of mqd(1), with _ in place of -; tables are not "
            "allowed. Amounts of bytes are numbers, or texts with a unit such as \"2GiB\"; lists are arrays; switches are "
            "true or false.",
            "mqd reads the file again at SIGHUP. What takes effect at once is log_level, log_format, log_lines_max, "
            "memory_limit and disk_free_min_bytes; the log names the options that wait for the next start.",
        ),
        ".SH EXAMPLE",
        ".nf",
        *map(escaped, ('amqp = "0.0.0.0:5672"', 'memory_limit = "0.5"', 'loopback_users = ["guest"]', "http_page = true")),
        ".fi",
        ".SH OPTIONS",
        *_section("see also", "mqd(1), mqctl(1)"),
    ]  # fmt: skip
    at = len(lines) - 2
    for declared in fields(Config):
        entry = list(_entry(declared.name, _text(declared)))
        lines[at:at] = entry
        at += len(entry)
    return _file(lines)
