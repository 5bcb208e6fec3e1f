"""The ready line says how long mqd took to start, without what its process did before."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from conformance_tests import programs

#: Does what the shell of `make run` does: it compiles, and becomes mqd when the test lets it.
SHELL = 'sleep 1.5; echo compiled; read line; exec "$0" "$@"'


def test_what_a_shell_did_before_does_not_count(tmp_path: Path) -> None:
    mqd = [programs.directory() / "mqd", "--data-dir", tmp_path / "data", "--disk-free-min-bytes", "16MiB"]
    with subprocess.Popen(
        ["sh", "-c", SHELL, *map(str, mqd), "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "compiled\n"
            began = time.monotonic()
            print("go on", file=process.stdin, flush=True)
            line = process.stdout.readline()
            waited_s = time.monotonic() - began
        finally:
            process.kill()
    told = re.search(r"\((?:compiled|pure), (\d+\.\d\d) s\)$", line)
    assert told is not None, line
    # The line rounds, and the shell has used some CPU time of its own.
    assert 0 < float(told[1]) < waited_s + 0.1
