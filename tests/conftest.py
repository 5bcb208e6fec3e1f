"""For all tests."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqp_server.build import BUILD
from conformance_tests import examples

examples.choose()

# Background jobs of a shell ignore Ctrl-C, and so do all processes that they start, unless this is undone.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Packages whose tests share something expensive: a Spark session, a cluster.
SHARED = (Path("tests/spark_sink"), Path("tests/amqp_server/cluster"), Path("tests/cluster"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compiled-elsewhere",
        default="",
        metavar="PATHS",
        help="leave out the tests in these files and folders that test-compiled runs, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    expected = os.environ.get("TEST_BUILD", BUILD)
    if expected != BUILD:
        pytest.exit(f"the {expected} mqd was to be tested, and the {BUILD} one was imported", returncode=3)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers may share the tests: each file, or each package that shares something, goes to one of
    them. Packages come first, because they take longest, except for their simulations, which share nothing.
    """
    _leave_out(config, items)
    groups: dict[pytest.Item, Path] = {}
    for item in items:
        path = item.path.relative_to(config.rootpath)
        alone = path.name.startswith("test_simulation")
        group = groups[item] = next((one for one in SHARED if one in path.parents and not alone), path)
        item.add_marker(pytest.mark.xdist_group(str(group)))
        if BUILD == "compiled" and item.get_closest_marker("pure"):
            item.add_marker(pytest.mark.skip("it replaces what cannot be replaced in a compiled class"))
    items.sort(key=lambda item: groups[item] not in SHARED)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [config.rootpath / each for each in config.getoption("--compiled-elsewhere").split()]

    def elsewhere(item: pytest.Item) -> bool:
        return not item.get_closest_marker("pure") and any(
            each == item.path or each in item.path.parents for each in left_out
        )

    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if elsewhere(item)])
        items[:] = [item for item in items if not elsewhere(item)]


@pytest.fixture
def quiet() -> Iterator[None]:
    """For nodes that would log a lot about the faults of a test."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
