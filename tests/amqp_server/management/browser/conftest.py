"""The page in a real Chromium, if there is one: Debian's packages chromium or chromium-headless-shell.

`make page` runs these tests. It installs playwright, and says so if there is no Chromium.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from amqp_server.testing import Broker, start

if TYPE_CHECKING:
    from .visit import Visit

CHROMIUM = (
    os.environ.get("TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-headless-shell")
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    from .visit import sync_api

    with sync_api.sync_playwright() as playwright:
        # Chromium's sandbox needs rights that root in a container does not have.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def broker(chromium: Any) -> Iterator[Broker]:
    """The broker is not started if there is no browser."""
    with start() as started:
        yield started


@pytest.fixture
def visit(chromium: Any, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Visit]:
    # The module needs playwright, which is not installed everywhere.
    from .visit import Visit

    visit = Visit(chromium, broker.http_url, **getattr(request, "param", {}))
    yield visit
    ran = visit.page.evaluate("window.ran")
    visit.context.close()
    assert ran is None
    assert visit.complaints == []
    assert visit.strangers == []
