"""A node that imports definitions when it starts: before it serves, and at each start."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from conformance_tests.api import Api
from conformance_tests.patience import PATIENCE_S


def command(home: Path, file: Path) -> list[str]:
    told = [sys.executable, "-m", "amqp_server.main", "--data-dir", str(home / "data")]
    return [*told, "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--load-definitions", str(file)]


def test_a_start_with_definitions(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    told = {
        "users": [{"name": "ann", "password": "secret", "tags": "administrator"}],
        "vhosts": [{"name": "orders"}],
        "permissions": [{"user": "ann", "vhost": "orders", "configure": "", "write": "", "read": ""}],
        "policies": [
            {
                "vhost": "orders",
                "name": "p",
                "pattern": "",
                "apply-to": "all",
                "definition": {"ha-mode": "all", "max-length": 5},
            }
        ],
        "queues": [{"name": "q", "vhost": "orders", "durable": True, "auto_delete": False, "arguments": {}}],
    }
    file.write_text(json.dumps(told))
    for _ in range(2):
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command(tmp_path, file), stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r" http=(\S+)", process.stdout.readline())
            assert found, (tmp_path / "log").read_text()
            api = Api(f"http://ann:secret@{found[1]}")
            # The node has no default user as well.
            assert [user["name"] for user in api.ask("GET", "users").json] == ["ann"]
            assert api.ask("GET", "queues/orders/q").json["effective_policy_definition"] == {"max-length": 5}
            assert api.ask("GET", "whoami", login="guest:guest").status == 401
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            if process.stdout is not None:
                process.stdout.close()
        assert "policies 'p' in vhost 'orders' was not imported: ha-mode" in (tmp_path / "log").read_text()


def test_a_start_with_definitions_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    for text, reason in (("{", "failed_to_parse_json"), ('{"queues": [1]}', "must be a list of objects")):
        file.write_text(text)
        done = subprocess.run(
            command(tmp_path, file), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"mqd: load_definitions: {file}: ") and reason in last


def test_without_users_there_is_the_default_one(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text("{}")
    process = subprocess.Popen(
        command(tmp_path, file), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r" http=(\S+)", process.stdout.readline())
        assert found
        api = Api(f"http://guest:guest@{found[1]}")
        assert api.ask("GET", "queues/%2F").status == 200
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        if process.stdout is not None:
            process.stdout.close()
