"""What an operator does to a running node, or to one that accepts no logins any more: signals, files, and the
log lines about them.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from conformance_tests.patience import PATIENCE_S
from conformance_tests.wire import RawClient, table_bytes
from tests.reliability.node import Node, run_once

ANY_PORTS = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "mqd.log").read_text()


def wait_for(tmp_path: Path, text: str) -> str:
    """Wait until the log has this text."""
    deadline = time.monotonic() + PATIENCE_S
    while text not in log_of(tmp_path):
        assert time.monotonic() < deadline, f"{text!r} is not in\n{log_of(tmp_path)}"
        time.sleep(0.02)
    return log_of(tmp_path)


def login(node: Node, **start_ok: object) -> RawClient:
    client = RawClient(f"amqp://guest:guest@127.0.0.1:{node.port}/")
    client.read_start()
    client.send_start_ok(**start_ok)  # type: ignore[arg-type]
    return client


def whoami(node: Node, user: str, password: str) -> int:
    return httpx.get(f"http://127.0.0.1:{node.http}/api/whoami", auth=(user, password)).status_code


def password_file(tmp_path: Path, password: str) -> str:
    file = tmp_path / "password"
    file.write_text(f"{password}\n")
    file.chmod(0o600)
    return str(file)


def test_hang_up_reloads_and_never_kills(tmp_path: Path) -> None:
    file = tmp_path / "mqd.toml"
    file.write_text('log_level = "info"\n')
    with Node(tmp_path, "--config", str(file)) as node:
        os.kill(node.pid, signal.SIGHUP)
        wait_for(tmp_path, "the configuration was reloaded: nothing has changed")
        file.write_text('log_level = "debug"\nlog_format = "json"\nchannel_max = 7\n')
        os.kill(node.pid, signal.SIGHUP)
        wait_for(tmp_path, '"message":"takes effect only at the next start: channel_max"')
        file.write_text("log_level = 7\n")
        os.kill(node.pid, signal.SIGHUP)
        wait_for(tmp_path, "the configuration was not reloaded")
        assert whoami(node, "guest", "guest") == 200
        assert node.stop() == 0
    told = [json.loads(line) for line in log_of(tmp_path).splitlines() if line.startswith("{")]
    assert {"info", "warning", "error"} <= {line["level"] for line in told}


def test_password_of_the_first_user_from_a_file(tmp_path: Path) -> None:
    file = password_file(tmp_path, "from the file")
    with Node(tmp_path, "--default-password-file", file, "--default-password", "other") as node:
        assert whoami(node, "guest", "from the file") == 200
        assert whoami(node, "guest", "guest") == 401
    Path(file).chmod(0o644)
    code, out, errors = run_once(
        ["--data-dir", str(tmp_path / "new"), *ANY_PORTS, "--default-password-file", file]
    )
    assert (code, out) == (1, "")
    assert errors.startswith(f"mqd: --default-password-file: others may read or write {file} (mode 0644)")
    assert not (tmp_path / "new").exists()


def test_way_back_for_whoever_starts_the_node(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        client = httpx.Client(base_url=f"http://127.0.0.1:{node.http}/api/", auth=("guest", "guest"))
        with client:
            assert client.delete("users/guest").status_code == 400
            assert client.delete("users/guest?force=true").status_code == 204
        assert whoami(node, "guest", "guest") == 401
    file = password_file(tmp_path, "new password")
    for user in ("guest", "ann"):
        options = ("--reset-administrator", user, "--default-password-file", file)
        with Node(tmp_path, *options) as node:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{node.http}/api/", auth=(user, "new password")
            ) as client:
                assert client.get("users").status_code == 200
                assert client.get(f"permissions/%2F/{user}").json()["configure"] == ".*"
            assert f"user '{user}' is now an administrator" in log_of(tmp_path)
    # The change lasts, and is not made again.
    with Node(tmp_path) as node:
        assert whoami(node, "ann", "new password") == 200


def test_user_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    options = ("--reset-administrator", "x" * 256, "--default-password-file", password_file(tmp_path, "x"))
    code, out, errors = run_once(["--data-dir", str(tmp_path / "data"), *ANY_PORTS, *options])
    assert (code, out) == (1, "")
    assert errors.splitlines()[-1].startswith("mqd: the name of a user must have 1 to 255 bytes")


#: None of these may be in a log, neither plain nor in base64.
CANARIES = ("canary-right", "canary-wrong", "canary-new", "canary-body", "canary-octets", "canary-http")


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_secret_is_ever_logged(tmp_path: Path, format: str) -> None:
    file = password_file(tmp_path, "canary-right")
    options = ("--default-password-file", file, "--log-level", "debug", "--log-format", format)
    with Node(tmp_path, *options) as node:
        clients = [login(node, password="canary-right")]
        for start_ok in (
            {"password": "canary-wrong"},
            {"user": "nobody", "password": "canary-wrong"},
            {"mechanism": "AMQPLAIN", "password": "canary-wrong"},
            {"mechanism": "EXTERNAL", "response": b"canary-wrong"},
            {"response": b"\0guest\0canary-wrong\0canary-right"},
            {
                "mechanism": "AMQPLAIN",
                "response": table_bytes({"LOGIN": "guest", "SECRET": "canary-wrong"})[4:],
            },
        ):
            clients.append(login(node, **start_ok))
        # A frame of an unknown type, out of order, with a possible password or body.
        for kind in (7, 3):
            client = RawClient(f"amqp://guest:guest@127.0.0.1:{node.port}/")
            client.read_start()
            client.send(bytes((kind, 0, 0, 0, 0, 0, 13)) + b"canary-octets\xce")
            clients.append(client)
        for said in (
            "user 'guest' - invalid",
            "user 'nobody' - invalid",
            "AMQPLAIN login refused",
            "all octets = …",
        ):
            wait_for(tmp_path, said)
        for client in clients:
            client.abort()
        with httpx.Client(
            base_url=f"http://127.0.0.1:{node.http}/api/", auth=("guest", "canary-right")
        ) as client_:
            assert client_.get("whoami").status_code == 200
            body: dict[str, object] = {"password": "canary-new", "tags": 5}
            assert client_.put("users/ann", json=body).status_code == 400
            assert client_.put("users/ann", json=body | {"tags": ""}).status_code == 201
            assert client_.put("users/ann", json={"password_hash": "canary-new"}).status_code == 400
            assert (
                client_.post("users/ann/authenticate", json={"password": "canary-wrong"}).status_code == 200
            )
            message = {
                "routing_key": "none",
                "payload": "canary-body",
                "payload_encoding": "string",
                "properties": {},
            }
            assert client_.post("exchanges/%2F/amq.default/publish", json=message).status_code == 200
            assert client_.get("whoami", auth=("guest", "canary-http")).status_code == 401
            assert (
                client_.get("whoami", auth=None, headers={"authorization": "Basic canary-http"}).status_code
                == 401
            )
            assert (
                client_.get("whoami", auth=None, headers={"authorization": "Bearer canary-http"}).status_code
                == 401
            )
        assert node.stop() == 0
    told = log_of(tmp_path)
    # The log does have all of these.
    for said in ("accepting AMQP connection", "PLAIN login refused: user 'nobody'", "HTTP access denied"):
        assert said in told
    for canary in CANARIES:
        assert canary not in told
        for shift in range(3):
            encoded = base64.b64encode(b"x" * shift + canary.encode()).decode()
            assert encoded[4:-4] not in told
