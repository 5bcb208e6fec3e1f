"""The example that users start first has to work, and checks its own counts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_sink.peer import Peer
from tests.spark_sink.session import JVM_OPTIONS

ROOT = Path(__file__).parents[2]
RUN_S = 250
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.timeout(RUN_S + 20)
def test_the_sensors(mqd_url: str, tmp_path: Path) -> None:
    picture = tmp_path / "sensors.png"
    command = [
        sys.executable,
        str(ROOT / "examples" / "sensors" / "run.py"),
        "--available-now",
        "--url",
        mqd_url,
    ]
    command += ["--seconds", "40", "--picture", str(picture)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["JDK_JAVA_OPTIONS"] = JVM_OPTIONS
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "801 readings go to the queue" in done.stdout
    assert re.search(r"^batch +0: +801 readings", done.stdout, re.MULTILINE), done.stdout
    # Four sensors, four windows of 10 s, 5 readings a second.
    assert "16 averages of 800 readings are in the queue 'sensors.averages', and right" in done.stdout
    assert picture.read_bytes().startswith(PNG)
    with Peer(mqd_url) as peer:
        assert peer.count("sensors.readings") == 0
        taken = peer.take("sensors.averages", 16)
        assert len(taken) == 16
        assert {method.routing_key for method, _, _ in taken} == {f"average.s{number}" for number in range(4)}
        peer.channel.queue_delete("sensors.readings")
        peer.channel.queue_delete("sensors.averages")
        peer.channel.exchange_delete("sensors")
