"""The command line of `mqd`: one option for each field of `Config`.

A value comes from the command line, else from `MQD_…` in the environment, else from the TOML file, else it is
the field's default. An invalid value ends the start with one line that names the option, and exit code 2.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from amqp_server.config import (
    RENAMED,
    SECRETS,
    VERSION,
    Config,
    InvalidOption,
    allowed_values,
    amount,
    check,
    parse_bytes,
)
from amqp_server.spelling import closest, unknown
from amqp_server.startup.foreign_names import ignored_variables, option_for
from amqp_server.startup.stream_remotes import SETTINGS, remote_of_table

PROGRAM = "mqd"
USAGE_EXIT = 2
ENVIRONMENT = "MQD_"
#: Variables that the build reads, see docs/compiled.md.
_OF_THE_BUILD = {f"{ENVIRONMENT}PURE", f"{ENVIRONMENT}BUILD_JOBS", f"{ENVIRONMENT}BUILD_CACHE"}
#: Variables that Kubernetes sets in every container for a service with the name mqd, or mqd-something.
_OF_A_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")


class Reread:
    """Reads the configuration again, and knows where its values come from."""

    def __init__(self, read: Callable[[dict[str, str]], Config]) -> None:
        """`read` returns the configuration, and puts the sources of its values into the table."""
        self._read = read
        #: By option, in words; options with their default are left out.
        self.sources: dict[str, str] = {}

    def __call__(self) -> Config:
        """Raises InvalidOption."""
        sources: dict[str, str] = {}
        config = self._read(sources)
        self.sources = sources
        return config


_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


if TYPE_CHECKING:
    ParamType = click.ParamType[object]
else:
    # Older versions of click pass no parameter here.
    ParamType = click.ParamType


class FieldType(ParamType):
    """Converts text, or a TOML value, to the value of one field."""

    def __init__(self, declared: Field[Any]) -> None:
        self.declared = declared
        self.name = declared.metadata["unit"].split(",")[0] or type(declared.default).__name__

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            parsed = _parse(self.declared, value)
            check(self.declared, parsed)
        except InvalidOption as wrong:
            self.fail(wrong.reason, param, ctx)
        return parsed


def _parse(declared: Field[Any], value: object) -> object:
    """Return the value in the field's type. A value that cannot be converted is returned unchanged; `check`
    refuses it.
    """
    default = declared.default
    if isinstance(default, tuple):
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, (list, tuple)) and all(isinstance(part, str) for part in parts):
            return tuple(part.strip() for part in parts if part.strip())
        return value
    if not isinstance(value, str):
        # TOML has its own numbers: `memory_limit = 0.5` is as clear as "0.5".
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return str(value) if number and declared.metadata["kind"] == "memory" else value
    if isinstance(default, bool):
        return True if value.lower() in _ON else False if value.lower() in _OFF else value
    if isinstance(default, str):
        return value
    try:
        if declared.metadata["unit"] == "bytes":
            amount = parse_bytes(value)
            return value if amount is None else amount
        return int(value) if isinstance(default, int) else float(value)
    except ValueError:
        return value


class Command(click.Command):
    """A click command whose help lists the fields by their sections: --help those that most people need,
    --help-all all of them.
    """

    #: Name in `ctx.meta`: the help lists all options.
    ALL = "all"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_with_new_name(arg) for arg in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = self.ALL in ctx.meta
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        known = {declared.name: declared for declared in fields(Config)}
        title = "Options"
        for param in self.get_params(ctx):
            declared = known.get(param.name or "")
            title = (declared.metadata["section"] or title) if declared else "Options"
            record = param.get_help_record(ctx)
            if record is None or (declared and not (everything or declared.metadata["common"])):
                continue
            if declared is not None:
                record = record[0], _help(declared, values=everything)
            rows.setdefault(title, []).append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.ALL not in ctx.meta:
            formatter.write_paragraph()
            formatter.write_text(f"{PROGRAM} --help-all lists all {len(fields(Config))} options.")


def _with_new_name(arg: str) -> str:
    """Return an argument of the command line with the present name of its option; warn if that is another."""
    flag, equals, value = arg.partition("=")
    for old, new in RENAMED.items():
        if flag == _flag(old):
            _warn_of_old_name(flag, _flag(new))
            return f"{_flag(new)}{equals}{value}"
    return arg


def _warn_of_old_name(old: str, new: str) -> None:
    click.echo(f"{PROGRAM}: warning: {old} is now named {new}; use the new name", err=True)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(declared: Field[Any], *, values: bool) -> str:
    """Return the text of an option with its default, and with the values that it may have."""
    default: object = declared.default
    text: str = declared.metadata["text"]
    if declared.metadata["choices"] or (values and declared.metadata["low"] is not None):
        text += f"  [{allowed_values(declared)}]"
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif isinstance(default, tuple):
        default = ",".join(default)
    elif isinstance(default, int) and declared.metadata["unit"] == "bytes":
        default = amount(default, declared)
    if default != "" and declared.name not in SECRETS:
        text += f"  [default: {default}]"
    return text


def _option(declared: Field[Any]) -> click.Option:
    name, default, flag = declared.name, declared.default, _flag(declared.name)
    text = declared.metadata["text"]
    # An earlier name counts where the present one is not set.
    variables = [_variable(each) for each in (name, *_earlier_names(name))]
    if isinstance(default, bool):
        spelled = f"{flag}/--no-{flag[2:]}"
        return click.Option([name, spelled], default=default, help=text, envvar=variables)
    metavar = (declared.metadata["unit"] or type(default).__name__).upper().split(",")[0]
    return click.Option(
        [name, flag],
        default=default,
        type=FieldType(declared),
        metavar=metavar,
        help=text,
        envvar=variables,
    )


def _variable(name: str) -> str:
    return ENVIRONMENT + name.upper()


def _earlier_names(name: str) -> list[str]:
    return [old for old, new in RENAMED.items() if new == name]


def _read_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    # Most nodes have no file, and a start should be short.
    import tomllib

    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as failure:
        raise click.BadParameter(f"{path}: {failure.strerror}", ctx, param) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise click.BadParameter(f"{path}: {failure}", ctx, param) from None
    known = {declared.name for declared in fields(Config)}
    for key in list(values):
        if key in RENAMED and RENAMED[key] not in values:
            _warn_of_old_name(f"{key} in {path}", RENAMED[key])
            values[RENAMED[key]] = values.pop(key)
        elif key == "stream_remotes" and isinstance(values[key], dict):
            values[key] = _remotes(values[key], path, ctx, param)
        elif isinstance(values[key], (dict, list)) and _is_table(values[key]):
            raise click.BadParameter(f"{path}: {_table_text(key, values[key], known)}", ctx, param)
        elif key not in known:
            raise click.BadParameter(f"{path}: {_unknown(key, known)}", ctx, param)
    switches = {declared.name for declared in fields(Config) if isinstance(declared.default, bool)}
    for key in switches & values.keys():
        if not isinstance(values[key], bool):
            raise click.BadParameter(f"{path}: {key} must be true or false", ctx, param)
    if "default_password" in values and mode & stat.S_IROTH:
        click.echo(
            f"{PROGRAM}: warning: others may read {path} (mode {stat.S_IMODE(mode):04o}), which holds default_password; "
            f"chmod o= {path}, or give default_password_file",
            err=True,
        )
    ctx.default_map = values
    ctx.meta["file"] = path


def _remotes(tables: dict[str, object], path: str, ctx: click.Context, param: click.Parameter) -> list[str]:
    """Return the tables [stream_remotes.NAME] as the option has them."""
    found: list[str] = []
    for name, table in tables.items():
        remote = remote_of_table(name, table) if isinstance(table, dict) else None
        if remote is None:
            text = (
                f'[stream_remotes.{name}] has url = "s3://bucket/prefix", and may have {", ".join(SETTINGS)}'
            )
            raise click.BadParameter(f"{path}: {text}", ctx, param)
        found.append(remote)
    return found


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return the text about an option that mqd does not have."""
    own = option_for(name)
    if not own:
        return unknown("option", name, known)
    return f"no option '{name}': in mqd it is '{_flag(own) if name.startswith('-') else own}'"


def _is_table(value: object) -> bool:
    """Return whether a value is a table of TOML (`[name]`), or an array of such (`[[name]]`)."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _table_text(key: str, value: object, known: set[str]) -> str:
    """Return what to do about a table: the options of mqd have none."""
    table: dict[str, object] = value if isinstance(value, dict) else {}
    inner = next((name for name in table if name in known), None)
    example = f", such as {inner} = {_toml(table[inner])}" if inner is not None else ""
    if not example and (own := option_for(key)):
        example = f"; in mqd '{key}' is '{own}'"
    return f"tables such as [{key}] are not allowed: all options stand at the top of the file{example}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value).replace("'", '"')


def _show_all(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[Command.ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"{PROGRAM} {VERSION}")
        ctx.exit()


def _source(ctx: click.Context, name: str) -> str:
    """Return the origin of a value in words; nothing if it is from the command line."""
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.ENVIRONMENT:
        return f" (MQD_{name.upper()} in the environment)"
    if source is ParameterSource.DEFAULT_MAP:
        return f" (in {ctx.meta['file']})"
    return ""


def _sources(ctx: click.Context) -> dict[str, str]:
    """Return where each value that is no default comes from, in words."""
    found: dict[str, str] = {}
    for declared in fields(Config):
        source = ctx.get_parameter_source(declared.name)
        if source is ParameterSource.COMMANDLINE:
            found[declared.name] = f"command line: {_flag(declared.name)}"
        elif source is ParameterSource.ENVIRONMENT:
            names = [declared.name, *_earlier_names(declared.name)]
            variable = next((_variable(name) for name in names if _variable(name) in os.environ), "")
            found[declared.name] = f"environment variable: {variable}"
        elif source is ParameterSource.DEFAULT_MAP:
            found[declared.name] = f"file: {ctx.meta['file']}"
    return found


def _fail(text: str) -> NoReturn:
    click.echo(f"{PROGRAM}: {text}", err=True)
    sys.exit(USAGE_EXIT)


#: In click's text about an argument that is no option.
_EXTRA = "unexpected extra argument"


def _explain_extra(failure: click.UsageError) -> str:
    given = failure.format_message().rpartition("(")[2].rstrip(")")
    if given.split()[0].lower() in _ON | _OFF:
        return f"'{given}' is no option: a switch takes no value; it is --http-page or --no-http-page, for example"
    return (
        f"'{given}' is no option: mqd is started by its name alone, and all settings are options (mqd --help)"
    )


def _explain(failure: click.ClickException) -> str:
    if isinstance(failure, click.NoSuchOption):
        return _unknown(failure.option_name, failure.possibilities or ())
    if (
        isinstance(failure, click.UsageError)
        and failure.ctx is not None
        and _EXTRA in failure.format_message()
    ):
        return _explain_extra(failure)
    if not isinstance(failure, click.BadParameter) or failure.param is None:
        return failure.format_message().replace("\n", " ")
    flag = failure.param.opts[0]
    message = "a switch must be true or false" if "valid boolean" in failure.message else failure.message
    source = _source(failure.ctx, failure.param.name or "") if failure.ctx else ""
    return f"{flag}{source}: {message}"


class Unreadable(InvalidOption):
    """Options that were valid at the start and can no longer be read."""

    def __init__(self, text: str) -> None:
        ValueError.__init__(self, text)


def command_line(run: Callable[[Config, Reread], int]) -> Callable[..., NoReturn]:
    """Return the entry point of `mqd`: it reads the options, calls `run`, and exits with its result.

    `run` gets the configuration, and a function that reads it again.
    """

    def main(args: Sequence[str] | None = None) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)

        def read(sources: dict[str, str]) -> Config:
            def configured(**values: Any) -> Config:
                sources.update(_sources(click.get_current_context()))
                return _configuration(**values)

            try:
                config = _command(configured).main(given, PROGRAM, standalone_mode=False)
            except click.ClickException as failure:
                raise Unreadable(_explain(failure)) from None
            assert isinstance(config, Config)
            return config

        reread = Reread(read)

        def start(**values: Any) -> int:
            try:
                config = _configuration(**values)
            except InvalidOption as wrong:
                source = _source(click.get_current_context(), wrong.name)
                _fail(f"--{wrong.name.replace('_', '-')}{source}: {wrong.reason}")
            _warn_of_strange_variables(os.environ)
            reread.sources = _sources(click.get_current_context())
            return run(config, reread)

        try:
            code = _command(start).main(given, PROGRAM, standalone_mode=False)
        except click.exceptions.Abort:
            sys.exit(1)
        except click.ClickException as failure:
            _fail(_explain(failure))
        sys.exit(code or 0)

    return main


def _configuration(**values: Any) -> Config:
    """Return the configuration with these values. Raises InvalidOption."""
    return Config(**values)


def _warn_of_strange_variables(environment: Mapping[str, str]) -> None:
    """Warn of unknown variables: otherwise a mistyped one would be ignored, and the option would keep its
    default.
    """
    known = {_variable(declared.name) for declared in fields(Config)} | {f"{ENVIRONMENT}CONFIG"}
    for text in ignored_variables(environment):
        click.echo(f"{PROGRAM}: warning: {text}", err=True)
    renamed = {_variable(old): _variable(new) for old, new in RENAMED.items()}
    for name in sorted(environment.keys() - _OF_THE_BUILD):
        if name in renamed:
            _warn_of_old_name(f"{name} in the environment", renamed[name])
        elif name.startswith(ENVIRONMENT) and name not in known and not _OF_A_SERVICE.search(name):
            click.echo(
                f"{PROGRAM}: warning: {name} in the environment is not an option and is ignored; the nearest "
                f"option is {closest(name, known, 0)}",
                err=True,
            )


def _command(callback: Callable[..., object]) -> Command:
    config_file = click.Option(
        ["--config"], is_eager=True, expose_value=False, callback=_read_file, metavar="FILE",
        help="TOML file with options; their names have _ instead of -.",
    )  # fmt: skip
    version = click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
        # Not read from the environment: container images use MQD_VERSION for their own version.
        allow_from_autoenv=False, help="Print the version and exit.",
    )  # fmt: skip
    help_all = click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
        allow_from_autoenv=False, help="Print the help with all options and exit.",
    )  # fmt: skip
    return Command(
        PROGRAM,
        params=[config_file, version, help_all, *map(_option, fields(Config))],
        callback=callback,
        help="Run an AMQP 0-9-1 message broker. Each option may also be a variable in the environment"
        " (MQD_DATA_DIR for --data-dir) or a line of the TOML file.",
        context_settings={
            "auto_envvar_prefix": "MQD",
            "max_content_width": 110,
            "help_option_names": ["-h", "--help"],
        },
    )
