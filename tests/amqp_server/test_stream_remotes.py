"""The option `stream_remotes`: as text, as tables of the file, and without its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp_server.config import Config, InvalidOption
from amqp_server.startup.options import command_line
from amqp_server.startup.remotes import open_remote
from amqp_server.startup.stream_remotes import StreamRemote, parse_remote, remote_of_table
from persistence.streams.remote.file_objects import FileObjects
from persistence.streams.remote.objects import Unavailable

GOOD = [
    ("a=s3://bucket/prefix", StreamRemote("a", "s3://bucket/prefix")),
    ("a.b=gs://bucket", StreamRemote("a.b", "gs://bucket")),
    ("a=file:///srv/streams", StreamRemote("a", "file:///srv/streams")),
    (
        "a=s3://b/p?region=eu-1&endpoint=http%3A%2F%2F127.0.0.1%3A9&allow_http=true&credentials_file=%2Fk",
        StreamRemote("a", "s3://b/p", "eu-1", "http://127.0.0.1:9", True, "/k"),
    ),
]
BAD = [
    "", "a", "a=", "=s3://b", "a b=s3://b", "a=ftp://b", "a=s3:///p", "a=file://host/p", "a=file:///",
    "a=s3://key:secret@bucket/p", "a=s3://b?secret_access_key=x", "a=s3://b?allow_http=1", "a=s3://b#f",
]  # fmt: skip


@pytest.mark.parametrize(("text", "remote"), GOOD)
def test_a_remote(text: str, remote: StreamRemote) -> None:
    assert parse_remote(text) == remote
    assert Config(stream_remotes=(text,)).remotes == {remote.name: remote}


@pytest.mark.parametrize("text", BAD)
def test_no_remote(text: str) -> None:
    assert parse_remote(text) is None
    with pytest.raises(InvalidOption):
        Config(stream_remotes=(text,))


def test_names_are_different() -> None:
    with pytest.raises(InvalidOption):
        Config(stream_remotes=("a=s3://b", "a=s3://c"))


def test_tables() -> None:
    table = {"url": "s3://b/p", "endpoint": "http://127.0.0.1:9/?", "allow_http": True}
    text = remote_of_table("a", table)
    assert text is not None
    assert parse_remote(text) == StreamRemote("a", "s3://b/p", "", "http://127.0.0.1:9/?", True)
    for wrong in (
        {},
        {"url": 5},
        {"url": "s3://b?x=1"},
        {"url": "s3://b", "key": "x"},
        {"url": "s3://b", "region": 1},
    ):
        assert remote_of_table("a", wrong) is None


def test_the_file_has_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('[stream_remotes.archive]\nurl = "file:///srv/x"\n[stream_remotes.b]\nurl = "s3://b"\n')
    found: list[str] = []

    def run(config: Config, reread: object) -> int:
        found.extend(config.remotes)
        return 0

    with pytest.raises(SystemExit):
        command_line(run)(["--config", str(file)])
    assert found == ["archive", "b"]
    file.write_text('[stream_remotes.archive]\npath = "x"\n')
    with pytest.raises(SystemExit):
        command_line(run)(["--config", str(file)])
    assert "stream_remotes.archive" in capsys.readouterr().err


def test_what_is_opened(tmp_path: Path) -> None:
    assert isinstance(open_remote(StreamRemote("a", f"file://{tmp_path}")), FileObjects)
    keys = tmp_path / "keys"
    remote = StreamRemote("a", "s3://bucket", credentials_file=str(keys))
    for text, mode in (("", 0), ("no toml", 0o600), ("access_key_id = 5", 0o600), ('a = "SECRET"', 0o644)):
        if mode:
            keys.write_text(text)
            keys.chmod(mode)
        with pytest.raises(Unavailable) as raised:
            open_remote(remote)
        assert "SECRET" not in str(raised.value) and str(keys) in str(raised.value)
