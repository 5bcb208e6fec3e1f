import dataclasses
from typing import Any

import pytest

from amqp_server.config import Config, InvalidOption, parse_address, parse_bytes


def test_defaults_are_allowed() -> None:
    config = Config()
    assert config.amqp == "127.0.0.1:5672"
    assert config.http == "127.0.0.1:15672"
    assert config.frame_max_bytes == 131_072


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().node = "n2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("frame_max_bytes", 4095),
        ("frame_max_bytes", "4096"),
        ("frame_max_bytes", True),
        ("channel_max", 65_536),
        ("heartbeat_s", -1),
        ("handshake_timeout_s", 0),
        ("message_bytes_max", 128 * 1024 * 1024 + 1),
        ("amqp", ""),
        ("amqp", "localhost"),
        ("amqp", "127.0.0.1:65536"),
        ("amqp", "::1:5672"),
        ("http", "nowhere"),
        ("node", "two words"),
        ("node", ""),
        ("log_level", "loud"),
        ("memory_limit", "1.5"),
        ("memory_limit", "0"),
        ("memory_limit", "much"),
        ("switch_fast_path", 1),
        ("loopback_users", ["guest"]),
        ("data_dir", ""),
        ("data_dir", "a\0b"),
    ],
)
def test_wrong_value_names_option_and_what_is_allowed(name: str, wrong: object) -> None:
    values: dict[str, Any] = {name: wrong}
    with pytest.raises(InvalidOption) as failure:
        Config(**values)
    assert failure.value.name == name
    assert str(failure.value).startswith(f"{name}: {wrong!r} is not allowed; it must be ")


def test_marks_of_the_outbox_are_in_order() -> None:
    with pytest.raises(InvalidOption, match="below outbox_high_bytes"):
        Config(outbox_low_bytes=8192, outbox_high_bytes=8192)


def test_tls_listener_needs_its_files() -> None:
    with pytest.raises(InvalidOption, match="tls_cert_file"):
        Config(amqps="127.0.0.1:5671")


def test_secret_is_not_shown() -> None:
    config = Config(default_password="canary-3141")
    assert "canary-3141" not in repr(config)
    assert "canary-3141" not in str(dict(config.shown()))
    with pytest.raises(InvalidOption) as failure:
        Config(default_password="canary\0")
    assert "canary" not in str(failure.value)


def test_memory_budget_follows_the_limit() -> None:
    config = Config(memory_limit="1GiB")
    assert config.memory_limit_bytes == 1 << 30
    assert config.body_budget_bytes == int(0.4 * (1 << 30))
    assert Config(memory_limit="1GiB", memory_budget_bytes=1000).body_budget_bytes == 1000
    assert config.stream_read_budget_bytes == (1 << 30) // 8
    assert Config(memory_limit="8GiB").stream_read_budget_bytes == 256 << 20
    assert 0 < Config(memory_limit="0.25").memory_limit_bytes < Config(memory_limit="0.5").memory_limit_bytes


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("131072", 131_072), ("128 KiB", 131_072), ("16m", 16 << 20), ("2GB", 2 * 10**9)]
    + [(wrong, None) for wrong in ("", "-1", "1.5k", "1 parsec", "k", "²")],
)
def test_an_amount_of_bytes_has_a_unit_or_none(text: str, amount: int | None) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:5672", ("::1", 5672)), ("host:1", ("host", 1))]
    + [(wrong, None) for wrong in ("", ":", ":5672", "host:", "host:x", "host:²", "::1:5672", "h:123456")],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert parse_address(text) == address
