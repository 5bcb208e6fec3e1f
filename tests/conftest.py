"""For all tests."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines differ in speed, and the first example on a clean clone waits for Unicode's tables to be made.
settings.register_profile("mqd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mqd")

# A shell's jobs in the background ignore Ctrl-C, and so do all that they start, unless it is taken back.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Packages whose tests share what is dear: a Spark session, a cluster.
SHARED = (Path("tests/spark_sink"), Path("tests/amqp_server/cluster"), Path("tests/cluster"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers may share the tests: a file, or a package that shares something, goes to one of them."""
    for item in items:
        path = item.path.relative_to(config.rootpath)
        group = next((shared for shared in SHARED if shared in path.parents), path)
        item.add_marker(pytest.mark.xdist_group(str(group)))
