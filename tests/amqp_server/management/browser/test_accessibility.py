"""The page by axe, which looks for what screen readers and keyboards stumble over; what a user may not do.

TEST_AXE is the path of axe-core's axe.min.js (npm install axe-core); without it axe's tests are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqp_server.testing import Broker

from .visit import NARROW, WIDE, Visit, declare, expect, publish, unfold

AXE = os.environ.get("TEST_AXE", "")
PAGES = (
    (),
    ("queues",),
    ("queue", "/", "seen"),
    ("exchanges",),
    ("exchange", "/", "amq.topic"),
    ("connections",),
    ("channels",),
    ("consumers",),
    ("streams",),
    ("nodes",),
    ("users",),
    ("user", "guest"),
    ("vhosts",),
    ("policies",),
    ("definitions",),
)
#: What axe calls an impact that people cannot work around.
BAD = ("serious", "critical")


@pytest.fixture
def client(broker: Broker) -> Iterator[pika.BlockingConnection]:
    declare(broker, "seen")
    publish(broker, "seen", "a message")
    connection = pika.BlockingConnection(pika.URLParameters(broker.url()))
    channel = connection.channel()
    channel.queue_bind("seen", "amq.topic", "a.#")
    yield connection
    connection.close()


@pytest.mark.skipif(not AXE, reason="TEST_AXE is not given")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(
    chromium: Any, broker: Broker, client: pika.BlockingConnection, viewport: Any, scheme: str
) -> None:
    # The page's own policy would keep axe out.
    visit = Visit(chromium, broker.http_url, viewport=viewport, color_scheme=scheme, bypass_csp=True)
    found: list[str] = []

    def look(what: str) -> None:
        visit.page.evaluate(Path(AXE).read_text())
        told = visit.page.evaluate("axe.run()")
        found.extend(
            f"{what}: {each['id']}: {each['help']}: {each['nodes'][0]['html'][:120]}"
            for each in told["violations"]
            if each["impact"] in BAD
        )

    visit.page.goto(f"{broker.http_url}/")
    expect(visit.page.get_by_label("Password")).to_be_visible()
    look("login")
    visit.log_in()
    for parts in PAGES:
        visit.go(*parts)
        expect(visit.page.get_by_role("heading", level=1).first).to_be_visible()
        look("/".join(parts) or "overview")
    visit.go("queues")
    visit.page.get_by_role("button", name="Declare a queue").click()
    unfold(visit.page.get_by_role("dialog"))
    look("a form")
    visit.page.keyboard.press("Escape")
    visit.go("exchange", "/", "amq.headers")
    visit.page.get_by_role("button", name="Bind", exact=True).click()
    expect(visit.page.get_by_role("dialog").locator(".named-value")).to_be_visible()
    look("a binding")
    visit.page.keyboard.press("Escape")
    broker.api("PUT", "/api/nodes/n1/memory-limit", {"limit": "1MiB"})
    try:
        expect(visit.page.get_by_role("alert", name="Alarms")).to_be_visible()
        look("alarms")
    finally:
        broker.api("PUT", "/api/nodes/n1/memory-limit", {"limit": "0.6"})
    visit.context.close()
    assert found == []


def test_the_connection_of_another_user_is_not_offered_to_be_closed(
    visit: Visit, broker: Broker, client: pika.BlockingConnection
) -> None:
    for name, tags in (("watcher", "monitoring"), ("boss", "administrator")):
        broker.api("PUT", f"/api/users/{name}", {"password": name, "tags": tags})
    (told,) = broker.api("GET", "/api/connections")
    close = visit.page.get_by_role("button", name="Close", exact=True)
    for name, count in (("watcher", 0), ("boss", 1)):
        visit.log_in(name, name)
        visit.go("connection", told["name"])
        expect(visit.page.locator(".facts")).to_contain_text("guest")
        expect(close).to_have_count(count)
        visit.log_out()
