"""Every block of the documentation is run, or checked as far as possible, or says why it is not.

A block that no test can check stands behind a line `<!-- not run: WHY -->`, a block that has a test of its
own behind `<!-- carried out by tests/… -->`. Blocks of text (`text`) are only for reading.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import click
import msgspec
import pytest
import yaml

from amqp_server import backup
from amqp_server.config import Config
from amqp_server.management.serving.endpoints import ENDPOINTS
from amqp_server.management.serving.openapi import body_of, query_of
from amqp_server.mqctl.command import Invocation, mqctl
from amqp_server.mqctl.commands import lists, users
from amqp_server.mqctl.main import COMMANDS
from amqp_server.startup.options import Reread, command_line
from conformance_tests.patience import PATIENCE_S
from spark_sink.options import OPTIONS as SPARK_OPTIONS

from .test_docs import PAGES
from .test_examples import EXAMPLE, serving

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN, CARRIED_OUT = "not run: ", "carried out by "

#: Pages with programs that other tests run.
RUN_ELSEWHERE = {
    "README.md": "tests/test_examples.py",
    "docs/streams.md": "tests/test_streams_page.py",
    "docs/testing.md": "tests/testing/test_plugin.py",
}
#: The output of the programs of other pages, in order.
PRINTED = {
    "docs/clients.md": ["job 0\njob 1\njob 2\n", "all of them\n", ""],
    "docs/transactions.md": ["1\n", "2 40\n"],
    "docs/exchanges.md": ["web.error\nweb.error.timeout\n"],
    "docs/queues.md": ["messages: 1\n"],
    "docs/delays.md": [
        "waits: None\njob failed: 1\n",
        "call ann is busy\ncall ann is busy\ncall ann after failures: 2\n",
        "at once: None\nhalf a second later\none second later\n",
        "True False\n",
    ],
    "docs/limits.md": ["10 maxlen\n11 rejected\n"],
    "docs/message-groups.md": ["first: ann 0\nsecond: ben 2\nthird: None\nnow: ann 1\n"],
    "docs/looking.md": ["['0', '2']\n2\n['1']\n"],
    "docs/confirms.md": ["safe\nno queue\n", "to ann False\nto ann True\n"],
    "docs/message-status.md": ["queued\n"],
}
#: Programs that are not mqd's.
FOREIGN = frozenset(
    [
        "apt-get",
        "base64",
        "cd",
        "chmod",
        "chroot",
        "cp",
        "debootstrap",
        "echo",
        "eval",
        "git",
        "head",
        "kill",
        "mount",
        "node",
        "perf",
        "pgrep",
        "printf",
        "rabbitmqctl",
        "sleep",
        "spark-submit",
        "systemctl",
        "umask",
    ]
)
COLUMNS = {
    "list_queues": lists.QUEUE,
    "list_exchanges": lists.EXCHANGE,
    "list_bindings": lists.BINDING,
    "list_consumers": lists.CONSUMER,
    "list_groups": lists.GROUP,
    "list_connections": lists.CONNECTION,
    "list_channels": lists.CHANNEL,
    "list_vhosts": users.VHOST,
}

assert COMMANDS


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(name, line, found["language"], found["text"], found["mark"] or "")


BLOCKS = list(_blocks())


class Wrong(Exception):
    """The documentation names something that does not exist."""


# -- shell ---------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|\\\n)+)|(?P<end>\n|&&|\|\||[;|&()])|(?P<redirect>\d?>>?|<)"""
    r"""|(?P<quoted>'[^']*'|"(?:[^"\\]|\\.)*")|(?P<plain>(?:[^\s'"\\;&|()<>]|\\.)+)""",
    re.DOTALL,
)


def commands(text: str) -> list[list[str]]:
    """The simple commands of a shell text as words, without redirections."""
    found: list[list[str]] = []
    words: list[str] = []
    word: str | None = None
    redirected = False
    at, text = 0, text + "\n"
    while at < len(text):
        if word is None and text[at] == "#":
            at = text.index("\n", at)
        token = TOKEN.match(text, at)
        if token is None:
            raise Wrong(f"no shell: {text[at : at + 40]!r}")
        at = token.end()
        if token["quoted"] is not None:
            word = (word or "") + token[0][1:-1]
            continue
        if token["plain"] is not None:
            word = (word or "") + re.sub(r"\\(.)", r"\1", token[0])
            continue
        if word is not None and not redirected:
            words.append(word)
        redirected = token["redirect"] is not None or (redirected and word is None)
        word = None
        if token["end"] is not None and words:
            found.append(words)
            words = []
    inner = re.findall(r"\$\(([^()]*)\)", " ".join(word for words in found for word in words))
    return found + [words for each in inner for words in commands(each)]


def check_mqctl(words: Sequence[str]) -> None:
    try:
        context = parsed_by_mqctl(words)
    except click.exceptions.Exit:
        return
    columns = context.params.get("columns", ())
    known = COLUMNS.get(context.info_name or "", {})
    if unknown := [each for each in columns if each not in known and each != "COLUMN"]:
        raise Wrong(f"columns {unknown} of {context.info_name}")


def parsed_by_mqctl(words: Sequence[str]) -> click.Context:
    """Raises click.UsageError."""
    invocation = Invocation("http://127.0.0.1:1", "", "", False, "table")
    command: click.Command = mqctl
    context = mqctl.make_context("mqctl", list(words), obj=invocation)
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, sub, rest = command.resolve_command(context, rest)
        assert sub is not None
        context = sub.make_context(name, rest, parent=context)
        command = sub
    return context


def check_mqd(words: Sequence[str]) -> None:
    read: list[Config] = []

    def keep(config: Config, reread: Reread) -> int:
        read.append(config)
        return 0

    with pytest.raises(SystemExit) as ended:
        command_line(keep)([word for word in words if "…" not in word])
    if ended.value.code != 0 or len(read) != 1:
        raise Wrong(f"mqd ends with {ended.value.code}")


def check_backup(words: Sequence[str]) -> None:
    # A directory that exists.
    backup.command.make_context(
        "mqd-backup", [str(ROOT) if word == "/var/lib/mqd" else word for word in words]
    )


def check_make(words: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        if "=" not in word and not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE):
            raise Wrong(f"there is no target {word}")


def check_python(words: Sequence[str]) -> None:
    if words[0] == "-m":
        spec = importlib.util.find_spec(words[1])
        if spec is None or spec.origin is None:
            raise Wrong(f"there is no module {words[1]}")
        source = (
            Path(spec.origin).with_name("__main__.py")
            if spec.submodule_search_locations
            else Path(spec.origin)
        )
        words = words[1:]
    else:
        source = ROOT / words[0]
    _check_flags(words[1:], [source])


def check_pytest(words: Sequence[str]) -> None:
    _check_flags(words[1:], [*(ROOT / "conformance_tests").glob("*.py")])
    for word in words[:1]:
        if not (ROOT / word).exists():
            raise Wrong(f"there is no {word}")


def _check_flags(words: Sequence[str], sources: Sequence[Path]) -> None:
    text = "".join(source.read_text() for source in sources)
    for word in words:
        if word.startswith("--") and f'"{word.partition("=")[0]}"' not in text:
            raise Wrong(f"no option {word} in {[source.name for source in sources]}")


def check_pip(words: Sequence[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {each for word in words for some in re.findall(r"\[([\w,]+)\]", word) for each in some.split(",")}
    if words[0] not in ("install", "wheel") or not named <= {*extras}:
        raise Wrong(f"pip {words}: there are the extras {sorted(extras)}")


#: The options of curl that the pages use, and how many words each takes.
CURL = {"-s": 0, "-f": 0, "-i": 0, "-u": 1, "-X": 1, "-H": 1, "-d": 1}
HEALTH = ("/health", "/health/ready")
METRICS = ("/metrics", "/metrics/per-object", "/metrics/detailed")


def check_curl(words: Sequence[str]) -> None:
    method, urls, rest = "GET", [], list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            urls.append(word)
        elif CURL[word]:
            value = rest.pop(0)
            method = value if word == "-X" else method
    for url in urls:
        check_path(urlsplit(url).path, method)


def check_path(path: str, method: str | None = None) -> None:
    """Raises Wrong."""
    if path in HEALTH + METRICS and method in (None, "GET"):
        return
    for endpoint in ENDPOINTS:
        pattern = re.sub(r"\{\w+\}", "[^/]+", endpoint.path)
        if re.fullmatch(pattern, path) and method in (None, endpoint.method):
            return
    raise Wrong(f"there is no {method or ''} {path}")


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "mqctl": check_mqctl,
    "mqd": check_mqd,
    "mqd-backup": check_backup,
    "make": check_make,
    "python": check_python,
    "pytest": check_pytest,
    "pip": check_pip,
    "curl": check_curl,
}


def check_shell(block: Block) -> None:
    for words in commands(block.text):
        with pytest.MonkeyPatch.context() as patch:
            while words and (given := re.match(r"([A-Z_]+)=(.*)", words[0], re.DOTALL)):
                patch.setenv(given[1], given[2])
                words = words[1:]
            # A variable that is set for the next commands.
            if not words or re.match(r"[a-z]+=", words[0]):
                continue
            program = words[0].rpartition("/")[2]
            if program not in PROGRAMS and program not in FOREIGN:
                raise Wrong(f"{program} is no program of mqd, nor one of those that are told to the test")
            if program in PROGRAMS:
                PROGRAMS[program](words[1:])


def check_console(block: Block) -> None:
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    if not lines:
        raise Wrong("no line with a command")
    check_shell(block._replace(text="\n".join(lines)))


# -- others --------------------------------------------------------------------------------------------------


def check_python_block(block: Block) -> None:
    ast.parse(block.text)
    if block.page not in RUN_ELSEWHERE.keys() | PRINTED.keys() and not block.mark.startswith(NOT_RUN):
        raise Wrong("nobody runs it: say why, or run it (PRINTED)")


def check_toml(block: Block) -> None:
    file = Path("block.toml")
    file.write_text(block.text)
    check_mqd(["--config", str(file)])


def check_yaml(block: Block) -> None:
    if not isinstance(yaml.safe_load(block.text), dict):
        raise Wrong("no mapping")


def check_json(block: Block) -> None:
    json.loads(block.text)


def check_http(block: Block) -> None:
    """Check lines of METHOD PATH BODY, or GET PATH?QUERY; indented lines are the answer."""
    for line in block.text.splitlines():
        if line.startswith(" "):
            json.loads(line)
            continue
        method, path, *rest = line.split(maxsplit=2)
        path, _, query = path.partition("?")
        (endpoint,) = (each for each in ENDPOINTS if (each.method, each.path) == (method, path))
        if not rest:
            asked = query_of(endpoint.handler)
            assert asked is not None
            if not dict(parse_qsl(query, strict_parsing=True)).keys() <= {*asked.__struct_fields__}:
                raise Wrong(f"fields of the query that nobody reads: {query}")
            continue
        (body,) = rest
        kind = body_of(endpoint.handler)
        assert kind is not None
        told = msgspec.json.decode(body, type=kind)
        if not json.loads(body).keys() <= {*kind.__struct_fields__}:
            raise Wrong(f"fields that nobody reads: {told}")


LANGUAGES: dict[str, Callable[[Block], None]] = {
    "sh": check_shell,
    "console": check_console,
    "python": check_python_block,
    "toml": check_toml,
    "yaml": check_yaml,
    "json": check_json,
    "http": check_http,
    "text": lambda block: None,
}


def check(block: Block) -> str | None:
    """Return the error in a block, if any."""
    if block.mark.startswith(CARRIED_OUT):
        test = ROOT / block.mark.removeprefix(CARRIED_OUT)
        told = test.read_text() if test.is_file() else ""
        return None if Path(block.page).name in told else f"{test} does not speak of this page"
    if block.mark.startswith(NOT_RUN) and block.language != "python":
        return None if len(block.mark) > len(NOT_RUN) + 10 else "why is it not run?"
    if block.language not in LANGUAGES:
        return f"a block of {block.language or 'nothing'}: say a language ({', '.join(LANGUAGES)})"
    try:
        LANGUAGES[block.language](block)
    except (Wrong, click.ClickException, msgspec.MsgspecError, yaml.YAMLError) as wrong:
        told = wrong.format_message() if isinstance(wrong, click.ClickException) else str(wrong)
        return f"{type(wrong).__name__}: {told}"
    except (ValueError, SyntaxError, LookupError, OSError) as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    return None


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with the files that commands of the pages read."""
    (tmp_path / "mqd.toml").write_text(EXAMPLE.read_text())
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
def test_blocks_are_right() -> None:
    assert len(BLOCKS) > 100
    wrong = {str(block): told for block in BLOCKS if (told := check(block)) is not None}
    assert wrong == {}


@pytest.mark.parametrize(
    "language, text",
    [
        ("sh", "mqctl list_queues name mesages"),
        ("sh", "mqctl list_ques"),
        ("sh", "mqctl delete_user"),
        ("sh", "mqctl add_vhost a && mqctl set_permissions -p a --nosuch b '.*' '.*' '.*'"),
        ("sh", "mqctl cluster transfer-leader QUEUE"),
        ("sh", "mqd --ampq 127.0.0.1:5672"),
        ("sh", "mqd --node n1 \\\n    --amqp 5672"),
        ("sh", "MQD_HEARTBEAT_S=many mqd"),
        ("sh", "mqd-backup --freeze 3 /var/lib/mqd /backup"),
        ("sh", "make nosuch"),
        ("sh", ".venv/bin/python -m benchmarks.nosuch"),
        ("sh", ".venv/bin/python examples/nosuch.py"),
        ("sh", ".venv/bin/python conformance_tests/clients/run.py --nosuch"),
        ("sh", "pip install 'mqd[nosuch]'"),
        ("sh", "curl -s http://127.0.0.1:15672/api/node"),
        ("sh", "curl -X DELETE http://127.0.0.1:15672/api/overview"),
        ("sh", 'eval "$(mqctl completion tcsh)"'),
        ("sh", "nosuch"),
        ("console", "mqctl list_failed"),
        ("python", "print(1)"),
        ("python", "for"),
        ("toml", 'heartbeats = "60"'),
        ("yaml", "a: [1"),
        ("json", "{'a': 1}"),
        ("http", 'POST /api/queues/{vhost}/{name}/move {"to": "other"}'),
        ("http", "GET /api/queues/{vhost}/{name}/peek?from=1"),
        ("", "anything"),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_what_is_wrong_is_found(language: str, text: str) -> None:
    assert check(Block("docs/policies.md", 1, language, text + "\n", "")) is not None


def test_commands_of_a_shell_text() -> None:
    text = "a 'b c' \\\n  d # it's e\n(f; A=1 g | h >i 2>>j) && k=\"$(l m)\" n\n# o\np '{\"q\":\n 1}' r#s"
    assert commands(text) == [
        ["a", "b c", "d"],
        ["f"],
        ["A=1", "g"],
        ["h"],
        ["k=$(l m)", "n"],
        ["p", '{"q":\n 1}', "r#s"],
        ["l", "m"],
    ]


@pytest.mark.usefixtures("elsewhere")
def test_commands_within_sentences() -> None:
    """Commands within sentences may leave out arguments."""
    wrong = {}
    spans = {
        (str(page.relative_to(ROOT)), " ".join(span.split()))
        for page in PAGES
        for span in re.findall(r"`(mqctl\s[^`]+)`", FENCE.sub("", page.read_text()))
    }
    for page, span in sorted(spans):
        try:
            for words in commands(span):
                # An option alone belongs to some other command.
                if not mqctl.commands.keys().isdisjoint(words):
                    check_mqctl(words[1:])
        except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
            continue
        except (Wrong, click.ClickException) as error:
            wrong[page, span] = str(error)
    assert wrong == {}
    assert len(spans) > 40


def test_paths_within_sentences() -> None:
    wrong = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text())
        for method, path in re.findall(r"\b(GET|PUT|POST|DELETE) (/api/[\w/{}%.-]*[\w}])", text):
            try:
                check_path(path, method)
            except Wrong as error:
                wrong.append((page.name, str(error)))
        for path in re.findall(r"`(/api/[\w/{}%.-]*[\w}])", text):
            try:
                check_path(path)
            except Wrong as error:
                wrong.append((page.name, str(error)))
    assert wrong == []


def test_programs_of_spark_name_options_that_there_are() -> None:
    known = {option.name for option in SPARK_OPTIONS} | {"checkpointLocation"}
    texts = [block.text for block in BLOCKS if block.page == "docs/spark.md" and block.language == "python"]
    named = {name for text in texts for name in re.findall(r'\.option\("(\w+)"', text)}
    named |= {
        name
        for text in texts
        for some in re.findall(r"\.options\((.*?)\)", text)
        for name in re.findall(r"(\w+)=", some)
    }
    assert {"url", "queue", "stream"} <= named <= known


def test_programs_print_what_their_pages_say(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (amqp, http):
        _programs_print_what_their_pages_say(amqp, http)


def _programs_print_what_their_pages_say(amqp: str, http: str) -> None:
    for page, expected in PRINTED.items():
        blocks = [
            block
            for block in BLOCKS
            if block.page == page and block.language == "python" and not block.mark.startswith(NOT_RUN)
        ]
        assert len(blocks) == len(expected)
        for block, printed in zip(blocks, expected, strict=True):
            assert block.text.count("127.0.0.1:5672") == 1
            program = block.text.replace("127.0.0.1:5672", amqp).replace("127.0.0.1:15672", http)
            done = subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert (done.returncode, done.stderr, done.stdout) == (0, "", printed), str(block)


def test_tests_that_run_other_pages_speak_of_them() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()
