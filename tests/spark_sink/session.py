"""Spark as the tests run it: small, quiet, on the loopback interface."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_sink.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
JVM_MEMORY = "1g"
#: Compilers and collectors made for long runs cost short runs more than they save.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Two tasks at once; a task may fail twice. Without the second number local mode never tries again.
MASTER = "local[2,3]"


def environment() -> None:
    """Set the variables that Spark's launcher and its Python workers read."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # The workers import this package and the tests' own by name.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in dict.fromkeys([*paths, str(ROOT)]) if path)


def start(directory: Path, master: str = MASTER) -> SparkSession:
    environment()
    from pyspark.sql import SparkSession

    session: SparkSession = (
        SparkSession.builder.master(master)
        .appName("spark_sink tests")
        .config("spark.driver.memory", JVM_MEMORY)
        .config("spark.driver.extraJavaOptions", JVM_OPTIONS)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "FATAL")
        .getOrCreate()
    )
    return session
