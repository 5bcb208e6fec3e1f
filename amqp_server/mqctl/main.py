"""The entry point of `mqctl`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from amqp_server.mqctl.client import USAGE, Failure
from amqp_server.mqctl.command import mqctl
from amqp_server.mqctl.commands import (
    cluster,
    completion,
    definitions,
    diagnostics,
    explain,
    lists,
    messages,
    moving,
    node,
    operating,
    parameters,
    policies,
    remotes,
    shovels,
    topology,
    users,
)
from amqp_server.spelling import unknown

#: The modules whose commands are part of `mqctl`; their import registers the commands.
COMMANDS = (
    cluster,
    completion,
    definitions,
    diagnostics,
    explain,
    lists,
    messages,
    moving,
    node,
    operating,
    parameters,
    policies,
    remotes,
    shovels,
    topology,
    users,
)


def main(args: Sequence[str] | None = None) -> NoReturn:
    try:
        code = mqctl.main(list(args) if args is not None else None, "mqctl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message())
        sys.exit(USAGE)
    except click.NoSuchOption as failure:
        _fail(unknown("option", failure.option_name, failure.possibilities or ()), USAGE)
    except click.UsageError as failure:
        _fail(failure.format_message(), USAGE)
    except click.ClickException as failure:
        _fail(failure.format_message(), failure.exit_code)
    except Failure as failure:
        _fail(str(failure), failure.exit_code)
    except (click.exceptions.Abort, BrokenPipeError):
        sys.exit(1)
    sys.exit(code or 0)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"Error: {' '.join(text.split())}", err=True)
    sys.exit(code)
