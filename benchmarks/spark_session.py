"""One Spark session for all scenarios that need one: two tasks at once, on the loopback interface."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from spark_sink.java import use_java

from .client import HOST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
MASTER = "local[2]"
MEMORY = "1g"


@cache
def spark() -> SparkSession:
    """Return the session; it is started at the first call, and stopped with this process."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = HOST
    # The workers import the writers by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    from pyspark.sql import SparkSession

    from .drop_writer import DropDataSource
    from .pika_writer import PikaDataSource

    directory = tempfile.gettempdir()
    session: SparkSession = (
        SparkSession.builder.master(MASTER)
        .appName("benchmarks")
        .config("spark.driver.memory", MEMORY)
        .config("spark.driver.host", HOST)
        .config("spark.driver.bindAddress", HOST)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{directory}/bench-spark-warehouse")
        .config("spark.log.level", "FATAL")
        .getOrCreate()
    )
    session.dataSource.register(PikaDataSource)
    session.dataSource.register(DropDataSource)
    return session
