import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from amqp_server.config import RENAMED, Config, InvalidOption
from amqp_server.startup.options import Reread, command_line


class Started:
    """Stands for the broker: keeps the config that it was started with."""

    def __init__(self) -> None:
        self.config: Config | None = None
        self.code = 0

    def __call__(self, config: Config, reread: Reread) -> int:
        self.config = config
        self.reread = reread
        return self.code


@pytest.fixture
def started() -> Started:
    return Started()


def run(started: Started, *args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command_line(started)(args)
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_no_option_gives_the_defaults(started: Started) -> None:
    assert run(started) == 0
    assert started.config == Config()


def test_exit_code_is_what_the_broker_ended_with(started: Started) -> None:
    started.code = 3
    assert run(started) == 3


def test_command_line_beats_environment_beats_file_beats_default(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('node = "of-file"\nheartbeat_s = 11\nchannel_max = 100\nloopback_users = ["a", "b"]\n')
    monkeypatch.setenv("MQD_NODE", "of-environment")
    monkeypatch.setenv("MQD_HEARTBEAT_S", "12")
    assert run(started, "--config", str(file), "--node", "typed") == 0
    assert started.config is not None
    assert started.config.node == "typed"
    assert started.config.heartbeat_s == 12
    assert started.config.channel_max == 100
    assert started.config.loopback_users == ("a", "b")
    assert started.config.amqp == Config().amqp


def test_file_named_in_the_environment(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqd.toml").write_text("switch_fast_path = false\nmemory_limit = 0.5\n")
    monkeypatch.setenv("MQD_CONFIG", str(tmp_path / "mqd.toml"))
    assert run(started) == 0
    assert started.config is not None
    assert started.config.switch_fast_path is False
    assert started.config.memory_limit == "0.5"


def test_units_and_switches(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQD_SWITCH_FAST_PATH", "off")
    arguments = ["--message-bytes-max", "64 MiB", "--loopback-users", "", "--handshake-timeout-s", "2.5"]
    assert run(started, *arguments) == 0
    assert started.config is not None
    assert started.config.message_bytes_max == 64 << 20
    assert started.config.loopback_users == ()
    assert started.config.handshake_timeout_s == 2.5
    assert started.config.switch_fast_path is False


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--frame-max-bytes", "12"],
            "--frame-max-bytes: 12 is not allowed; it must be 4096 to 16777216 bytes",
        ),
        (["--heartbeat-s", "often"], "--heartbeat-s: 'often' is not allowed; it must be 0 to 65535 s"),
        (["--amqp", "5672"], "--amqp: '5672' is not allowed; it must be host:port such as 127.0.0.1:5672"),
        (
            ["--outbox-low-bytes", "2MiB"],
            "--outbox-low-bytes: 2097152 is not allowed; it must be below outbox_",
        ),
        (["--config", "/nowhere/mqd.toml"], "--config: /nowhere/mqd.toml: No such file or directory"),
        (["--colour", "red"], "no option '--colour'\n"),
        (["--memroy-limit", "1GiB"], "no option '--memroy-limit': did you mean '--memory-limit'?"),
        (
            ["--log-level", "inof"],
            "--log-level: 'inof' is not allowed; it must be debug, info, warning or error; did you mean 'info'?",
        ),
        (["extra"], "'extra' is no option: mqd is started by its name alone"),
    ],
)
def test_wrong_option_is_one_line_and_exit_2(
    started: Started, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert run(started, *arguments) == 2
    assert started.config is None
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"mqd: {line}")
    assert err.count("\n") == 1


def test_wrong_value_of_the_environment_is_named(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQD_CHANNEL_MAX", "0")
    assert run(started) == 2
    assert "--channel-max (MQD_CHANNEL_MAX in the environment): 0 is not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nod = 'n1'", "no option 'nod': did you mean 'node'?"),
        ("memroy_limit = '1GiB'", "no option 'memroy_limit': did you mean 'memory_limit'?"),
        ("xyzzy = 1", "no option 'xyzzy'\n"),
        ("log_format = 'jsno'", "it must be text or json; did you mean 'json'?"),
        ("queue_revivals_max = 1\nqueue_restart_tries_max = 1", "no option 'queue_revivals_max'"),
        ("channel_max = 'many'", "'many' is not allowed; it must be 1 to 65535"),
        ("channel_max = true", "True is not allowed"),
        ("switch_fast_path = 3", "switch_fast_path must be true or false"),
        ("node = 3", "3 is not allowed"),
        (
            "[amqp]\nport = 1",
            "tables such as [amqp] are not allowed: all options stand at the top of the file",
        ),
        ("memory_limit = [{a = 1}]", "tables such as [memory_limit] are not allowed"),
        ("[vm_memory_high_watermark]\nrelative = 0.6", "in mqd 'vm_memory_high_watermark' is 'memory_limit'"),
        ("node =", "Invalid value"),
    ],
)
def test_wrong_file_is_named(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text(text)
    assert run(started, "--config", str(file)) == 2
    err = capsys.readouterr().err
    assert str(file) in err
    assert said in err
    assert err.count("\n") == 1


def flag_of(declared: Field[Any]) -> str:
    return "--" + declared.name.replace("_", "-")


def test_help_shows_the_common_options_and_help_all_shows_all(
    started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(started, "--help") == 0
    short = capsys.readouterr().out.split()
    assert run(started, "--help-all") == 0
    everything = capsys.readouterr().out.split()
    assert started.config is None
    common = [declared for declared in fields(Config) if declared.metadata["common"]]
    assert 20 <= len(common) <= 30
    for declared in fields(Config):
        assert (flag_of(declared) in short) == declared.metadata["common"]
        assert flag_of(declared) in everything
    assert "--help-all" in short


def test_help_has_two_lines_for_an_option_at_most(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run(started, "--help") == 0
    sections = capsys.readouterr().out.split("\n\n")[2:-1]
    assert [section.splitlines()[0] for section in sections[:3]] == ["Options:", "Node:", "Listeners:"]
    for section in sections:
        for entry in re.split(r"\n  (?=-)", section)[1:]:
            texts = [line for line in entry.splitlines() if not re.fullmatch(r"--\S+ [A-Z: ]+", line)]
            assert len(texts) <= 2, entry


def test_texts_are_sentences() -> None:
    for declared in fields(Config):
        text: str = declared.metadata["text"]
        assert text.endswith("."), declared.name
        assert text[0].isupper() or text[0] == "`", declared.name


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_earlier_name_of_an_option_is_accepted_with_a_warning(
    started: Started,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    old: str,
    new: str,
) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in (old, new)]
    file = tmp_path / "mqd.toml"
    file.write_text(f"{old} = 7\n")
    for arguments, variables, warned in (
        ([flags[0], "7"], {}, (flags[0], flags[1])),
        ([f"{flags[0]}=7"], {}, (flags[0], flags[1])),
        ([], {f"MQD_{old.upper()}": "7"}, (f"MQD_{old.upper()} in the environment", f"MQD_{new.upper()}")),
        (["--config", str(file)], {}, (f"{old} in {file}", new)),
    ):
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            assert run(started, *arguments) == 0
        assert getattr(started.config, new) == 7
        told = capsys.readouterr().err
        assert told == f"mqd: warning: {warned[0]} is now named {warned[1]}; use the new name\n"


def test_present_name_in_the_environment_counts_before_the_earlier_one(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQD_QUEUE_REVIVALS_MAX", "7")
    monkeypatch.setenv("MQD_QUEUE_RESTART_TRIES_MAX", "8")
    assert run(started) == 0
    assert started.config is not None
    assert started.config.queue_restart_tries_max == 8


def test_configuration_is_read_again(started: Started, tmp_path: Path) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('log_level = "info"\n')
    assert run(started, "--config", str(file), "--node", "typed") == 0
    file.write_text('log_level = "debug"\nnode = "of-file"\n')
    again = started.reread()
    assert (again.log_level, again.node) == ("debug", "typed")
    for text, said in (
        ('log_level = "loud"\n', r"--log-level \(in .*mqd.toml\): 'loud' is not allowed"),
        ("nonsense", "mqd.toml"),
        ("outbox_low_bytes = 1_000_000_000\n", "outbox_low_bytes"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidOption, match=said):
            started.reread()


def test_where_each_value_comes_from(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('log_level = "debug"\nheartbeat_s = 11\n')
    monkeypatch.setenv("MQD_HEARTBEAT_S", "12")
    monkeypatch.setenv("MQD_QUEUE_REVIVALS_MAX", "7")
    assert run(started, "--config", str(file), "--node", "typed", "--no-http-page") == 0
    assert started.reread.sources == {
        "node": "command line: --node",
        "http_page": "command line: --http-page",
        "heartbeat_s": "environment variable: MQD_HEARTBEAT_S",
        "queue_restart_tries_max": "environment variable: MQD_QUEUE_REVIVALS_MAX",
        "log_level": f"file: {file}",
    }
    file.write_text("log_lines_max = 50\n")
    started.reread()
    assert started.reread.sources["log_lines_max"] == f"file: {file}"
    assert "log_level" not in started.reread.sources


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("MQD_" + "AMPQ", "MQD_AMQP"), ("MQD_DATADIR", "MQD_DATA_DIR"), ("MQD_CONFIG_FILE", "MQD_CONFIG")],
)
def test_mistyped_variable_is_told(
    started: Started,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    nearest: str,
) -> None:
    monkeypatch.setenv(name, "secret value")
    assert run(started) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"mqd: warning: {name} in the environment is not an option")
    assert told.endswith(f"the nearest option is {nearest}\n")
    assert "secret value" not in told


def test_variables_that_others_set_are_no_mistake(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets variables about services in each container; images set one for their version."""
    monkeypatch.setenv("MQD_AMQP", "127.0.0.1:0")
    # A variable for builds.
    monkeypatch.setenv("MQD_PURE", "1")
    for name in (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_AMQP",
        "PORT",
        "PORT_5672_TCP",
        "PORT_5672_TCP_ADDR",
    ):
        monkeypatch.setenv(f"MQD_{name}", "tcp://10.0.0.1:5672")
        monkeypatch.setenv(f"MQD_NODES_{name}", "tcp://10.0.0.1:5672")
    assert run(started) == 0
    assert capsys.readouterr().err == ""


def test_version_in_the_environment_is_not_asked_for(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQD_VERSION", "0.2.0")
    assert run(started) == 0
    assert started.config is not None


def test_way_back_needs_a_password_file(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(started, "--reset-administrator", "ann") == 2
    assert "empty unless default_password_file is given" in capsys.readouterr().err
    # A second password, as from a container's environment, does no harm.
    options = ["--default-password", "x", "--default-password-file", "y"]
    assert run(started, "--reset-administrator", "ann", *options) == 0


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_password_in_a_file_that_others_can_read(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('default_password = "secret value"\n')
    file.chmod(mode)
    assert run(started, "--config", str(file)) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"mqd: warning: others may read {file} (mode 0644)") is (mode == 0o644)
    assert "secret value" not in told
