"""The examples must work, and they check their own counts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.shop import run as shop
from tests.spark_sink.peer import Peer
from tests.spark_sink.session import JVM_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.mark.long
def test_the_shop(
    mqd_url: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The killed driver is a process of its own; this session goes on."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", JVM_OPTIONS)
    picture = tmp_path / "shop.png"
    arguments = ["--url", mqd_url, "--orders", "1200", "--batches", "4", "--picture", str(picture)]
    assert shop.main(arguments, spark) == 0, capfd.readouterr()
    told = capfd.readouterr().out
    assert "600 orders are in the super stream 'shop.orders'" in told
    assert re.search(
        r"^kill -9 of the driver (in the middle of|after) batch 1; the table has \d+ rows$", told, re.M
    )
    assert re.search(r"^batch +0: ", told, re.M) and re.search(r"^batch +3: ", told, re.M), told
    # Five products, twenty minutes.
    assert "100 rows have all 1200 orders once" in told
    assert picture.read_bytes().startswith(PNG)
    with Peer(mqd_url) as peer:
        for name in ("shop.orders", "shop.revenue"):
            peer.channel.exchange_delete(name)
