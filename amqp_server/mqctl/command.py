"""Shared by all commands: the group that holds them, the connection to the broker, common options."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

import click

from amqp_server.config import VERSION
from amqp_server.mqctl.client import DATA_ERROR, Client, Failure
from amqp_server.mqctl.sections import sections
from amqp_server.spelling import closest, hint, unknown

Function = TypeVar("Function", bound=Callable[..., Any])


class Invocation:
    """The options of `mqctl` itself. The client is made when a command sends its first request."""

    def __init__(self, url: str, user: str, password: str, quiet: bool, formatter: str) -> None:
        self._login = (url, user, password)
        self._client: Client | None = None
        self.quiet = quiet
        self.formatter = formatter

    @property
    def json(self) -> bool:
        return self.formatter == "json"

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(*self._login)
        return self._client

    def say(self, text: str) -> None:
        """Print a message, in JSON as rabbitmqctl does."""
        click.echo(json.dumps({"message": text}, ensure_ascii=False) if self.json else text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


pass_invocation = click.make_pass_decorator(Invocation)


def _output_options() -> list[click.Parameter]:
    """Options that are allowed before and after the command, as with rabbitmqctl."""

    def set_quiet(ctx: click.Context, param: click.Parameter, given: bool) -> None:
        if given:
            ctx.find_object(Invocation).quiet = True  # type: ignore[union-attr]

    def set_formatter(ctx: click.Context, param: click.Parameter, given: str | None) -> None:
        if given is not None:
            ctx.find_object(Invocation).formatter = given  # type: ignore[union-attr]

    return [
        click.Option(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=set_quiet, help=QUIET_HELP
        ),
        click.Option(
            ["--formatter"],
            type=Choice(FORMATTERS),
            expose_value=False,
            callback=set_formatter,
            help=FORMATTER_HELP,
        ),
    ]


QUIET_HELP = "Print tables without a header."
FORMATTERS = ["table", "json", "csv"]
FORMATTER_HELP = "Output format. Tables have tabs between columns; on a terminal they fit its width."


class Choice(click.Choice[str]):
    """One of several words; the error for another word suggests the nearest one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        allowed = ", ".join(self.choices)
        return f"'{value}' is not one of: {allowed}{hint(value, self.choices)}"


class Command(click.Command):
    """A command; its options are those of every command, too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += _output_options()


#: The end of the first sentence of a text.
_SENTENCE = re.compile(r"(?<=[.])\s")


class Group(click.Group):
    """Shows the first sentence about each command, uncut, in sections; suggests names for unknown ones."""

    command_class = Command
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(unknown("command", name, self.commands), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = list(self.commands.items())
        shown = sections(commands) if ctx.parent is None else [("Commands", commands)]
        for title, named in shown:
            with formatter.section(title):
                formatter.write_dl([(name, first_sentence(command)) for name, command in named])


def first_sentence(command: click.Command) -> str:
    return _SENTENCE.split(" ".join((command.help or "").split()), maxsplit=1)[0]


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"mqctl {VERSION}")
        ctx.exit()


@click.group(
    cls=Group,
    context_settings={
        "auto_envvar_prefix": "MQCTL",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
    help="Manages a node of mqd, or its cluster, through the management API. `mqctl COMMAND --help` describes one command.",
    no_args_is_help=True,
)
@click.option(
    "--url",
    default="http://127.0.0.1:15672",
    show_default=True,
    help="URL of the management API (MQCTL_URL).",
)
@click.option(
    "--user",
    default="guest",
    show_default=True,
    help="User name, of an administrator for most commands (MQCTL_USER).",
)
@click.option(
    "--password", default="guest", help="Password of the user (MQCTL_PASSWORD). Others can see it in ps."
)
@click.option(
    "--password-file",
    type=click.File(),
    help="File with the password of the user (MQCTL_PASSWORD_FILE); - reads stdin.",
)
@click.option("-q", "--quiet", is_flag=True, help=QUIET_HELP)
@click.option("--formatter", type=Choice(FORMATTERS), default="table", show_default=True, help=FORMATTER_HELP)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version and exit.",
)
@click.pass_context
def mqctl(
    ctx: click.Context,
    url: str,
    user: str,
    password: str,
    password_file: TextIO | None,
    quiet: bool,
    formatter: str,
) -> None:
    _warn_of_mistyped_variables(os.environ)
    if password_file is not None:
        password = password_file.readline().rstrip("\r\n")
    ctx.obj = invocation = Invocation(url, user, password, quiet, formatter)
    ctx.call_on_close(invocation.close)


#: Variables besides those of the commands' own options.
_VARIABLES = ("MQCTL_URL", "MQCTL_USER", "MQCTL_PASSWORD", "MQCTL_PASSWORD_FILE", "MQCTL_QUIET")


def _warn_of_mistyped_variables(environment: Mapping[str, str]) -> None:
    """Warn of unknown variables: a mistyped one would be ignored, and the login would fail."""
    commands = tuple(f"MQCTL_{name.replace('-', '_').upper()}_" for name in mqctl.commands)
    for name in sorted(environment):
        if name.startswith("MQCTL_") and name not in _VARIABLES and not name.startswith(commands):
            close = closest(name, _VARIABLES, 0)
            click.echo(
                f"mqctl: warning: {name} in the environment is ignored; the nearest one is {close}", err=True
            )


def in_vhost(function: Function) -> Function:
    return click.option("-p", "--vhost", default="/", show_default=True, help="Virtual host of the objects.")(
        function
    )


def with_arguments(function: Function) -> Function:
    text = "Argument such as x-max-length=5. A value that is no JSON is a text. May be repeated."
    return click.option("-a", "--argument", "arguments", multiple=True, metavar="NAME=VALUE", help=text)(
        function
    )


def pairs(given: tuple[str, ...]) -> dict[str, Any]:
    """Return pairs such as `("x-max-length=5", "x-overflow=drop-head")` as a table."""
    table: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise Failure(f"{pair!r} is not NAME=VALUE", DATA_ERROR)
        try:
            table[name] = json.loads(value)
        except ValueError:
            table[name] = value
    return table


def password_argument(value: str | None, *, new: bool = False) -> str:
    """Return the password from the command line, or from stdin, where no other user's `ps` can see it. On a
    terminal, ask for it.

    A new password has to be typed twice, since it is not shown.
    """
    if value is not None:
        return value
    if sys.stdin.isatty():
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=new, err=True)
        return asked
    return sys.stdin.readline().rstrip("\r\n")
